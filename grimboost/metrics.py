"""An engine's figures as Prometheus text, in the names that dashboards for speculative decoding know.

They are vLLM's names with `grimboost_` in front; the others are ours. Where several tokens come at once, the
latency between tokens is that between two chunks, as it is there. Counts of tokens and drafts are those of
generations that ended; latencies, stages and workers are counted as they happen. Nothing is registered: each
call makes the text from a snapshot, in any thread, while generations run. It knows no server.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from grimboost.engine import Engine
from grimboost.histogram import Histogram
from grimboost.messages import FinishReason
from grimboost.statistics import EngineStatistics, Totals
from grimboost.worker import WorkerStatistics

CONTENT_TYPE = CONTENT_TYPE_LATEST

_TOTALS = {
    "spec_decode_num_drafts": ("drafted_blocks", "Blocks with a draft in them that the target has judged."),
    "spec_decode_num_draft_tokens": ("drafted_tokens", "Drafted tokens in them."),
    "spec_decode_num_accepted_tokens": ("accepted_tokens", "Drafted tokens that the target accepted."),
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts."),
    "generation_tokens": ("new_tokens", "Tokens of outputs."),
    "generation_bytes": ("new_bytes", "Bytes of outputs."),
    "target_passes": ("target_passes", "Passes of the target."),
    "target_rows": ("target_rows", "Tokens fed to it in these passes."),
    "mismatches": ("mismatches", "Blocks in which the target chose other bytes than were drafted."),
    "released_tokens": ("released_tokens", "Tokens shown before the target had checked them."),
    "released_bytes": ("released_bytes", "Bytes shown before the target had checked them."),
    "audited_tokens": ("audited_tokens", "Released tokens that the target has checked since."),
    "slip_tokens": ("slip_tokens", "Shown tokens that the target would not have chosen."),
    "slip_bytes": ("slip_bytes", "Their bytes."),
    "retracted_bytes": ("retracted_bytes", "Shown bytes that were taken back."),
    "doubt_tokens": ("doubt_tokens", "Output tokens made while nothing was released, behind a slip."),
    "takeovers": ("takeovers", "How often the target went on by itself."),
    "takeover_tokens": ("takeover_tokens", "Output tokens that it made so."),
}
"""Counter -> field of `Totals`, and what it says."""

_REASONS = {reason: reason.value for reason in FinishReason} | {FinishReason.CANCELLED: "abort"}
"""vLLM calls a cancelled request aborted."""


def metrics(engine: Engine) -> str:
    """The text of a scrape; its content type is `CONTENT_TYPE`. A millisecond or two."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(engine))
    return generate_latest(registry).decode()


class _Collector(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._model = {"model_name": engine.loaded.target.facts.name}

    def collect(self) -> Iterator[Metric]:
        statistics = self._engine.statistics(spreads=False)
        yield from self._counted(statistics.totals)
        yield from self._requests(statistics)
        yield from self._stages(statistics)
        yield from self._workers(statistics)
        yield from self._certificates()

    def describe(self) -> Iterator[Metric]:
        yield from ()

    def _counted(self, totals: Totals) -> Iterator[Metric]:
        for name, (field, text) in _TOTALS.items():
            yield self._counter(name, text, {(): float(getattr(totals, field))})
        places = {(str(place),): float(count) for place, count in enumerate(totals.accepted_by_position)}
        text = "Accepted tokens by their place in the draft."
        yield self._counter("spec_decode_num_accepted_tokens_per_pos", text, places, "position")

    def _requests(self, statistics: EngineStatistics) -> Iterator[Metric]:
        yield self._gauge("num_requests_running", "Generations that run.", {(): statistics.generations})
        yield self._gauge("open_slots", "Slots of the target that are in use.", {(): statistics.open_slots})
        finished = {(_REASONS[reason],): float(count) for reason, count in statistics.finished.items()}
        yield self._counter("request_success", "Generations that ended, by reason.", finished, "finished_reason")
        for name, text, histogram in (
            (
                "time_to_first_token",
                "From a generation's start to its first bytes.",
                statistics.time_to_first_token_seconds,
            ),
            ("inter_token_latency", "Between two chunks of one generation.", statistics.inter_token_seconds),
            ("e2e_request_latency", "From a generation's start to its end.", statistics.request_seconds),
        ):
            yield self._histogram(f"{name}_seconds", text, histogram)

    def _stages(self, statistics: EngineStatistics) -> Iterator[Metric]:
        stages = {(name,): stage for name, stage in statistics.stages.items()}
        for name, field, text in (
            ("stage_messages", "received", "Messages that the stages received."),
            ("stage_busy_seconds", "busy_seconds", "Seconds in which the stages decided and sent."),
            ("stage_blocked_seconds", "blocked_seconds", "Seconds in which they waited for room."),
            ("stage_queued_seconds", "queued_seconds", "Seconds in which messages lay in their mailboxes."),
        ):
            values = {label: float(getattr(stage, field)) for label, stage in stages.items()}
            yield self._counter(name, text, values, "stage")
        waiting = {label: stage.queue for label, stage in stages.items()}
        yield self._gauge("stage_queue", "Messages that lie in their mailboxes.", waiting, "stage")

    def _workers(self, statistics: EngineStatistics) -> Iterator[Metric]:
        workers: dict[tuple[str, ...], WorkerStatistics] = {("target",): statistics.target}
        if statistics.drafter is not None:
            workers["drafter",] = statistics.drafter
        for name, field, text in (
            ("worker_batches", "batches", "Batches that the workers ran."),
            ("worker_requests", "jobs", "Requests in them."),
            ("worker_busy_seconds", "busy_seconds", "Seconds in which the workers' threads worked."),
            ("worker_queued_seconds", "queued_seconds", "Seconds in which requests waited for them."),
        ):
            values = {label: float(getattr(worker, field)) for label, worker in workers.items()}
            yield self._counter(name, text, values, "worker")
        waiting = {label: worker.queue for label, worker in workers.items()}
        yield self._gauge("worker_queue", "Requests that wait for them.", waiting, "worker")

    def _certificates(self) -> Iterator[Metric]:
        standing = {
            (key.domain, str(key.epsilon), str(key.delta)): int(is_open)
            for key, is_open in self._engine.certificates().items()
        }
        text = "1 while drafts of this kind may be shown unchecked, 0 while they may not."
        yield self._gauge("certificate_open", text, standing, "domain", "epsilon", "delta")

    # ------------------------------------------------------------ families

    def _counter(self, name: str, text: str, values: Mapping[Any, float], *labels: str) -> Metric:
        family = CounterMetricFamily(f"grimboost_{name}", text, labels=[*self._model, *labels])
        for label, value in values.items():
            family.add_metric([*self._model.values(), *label], value)
        return family

    def _gauge(self, name: str, text: str, values: Mapping[Any, int], *labels: str) -> Metric:
        family = GaugeMetricFamily(f"grimboost_{name}", text, labels=[*self._model, *labels])
        for label, value in values.items():
            family.add_metric([*self._model.values(), *label], value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(f"grimboost_{name}", text, labels=[*self._model])
        bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
        counts = accumulate(histogram.counts)
        buckets = [(bound, float(count)) for bound, count in zip(bounds, counts, strict=True)]
        family.add_metric([*self._model.values()], buckets, histogram.sum)
        return family
