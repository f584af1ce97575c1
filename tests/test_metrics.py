"""Prometheus text: names and values as dashboards expect them, read by the library's own parser."""

import threading
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from prometheus_client.parser import text_string_to_metric_families
from scripted import TEXTS, Gate, Target, assert_clean, collect, make_engine, oracle, prompt, reached, run

from grimboost import messages as m
from grimboost.engine import Engine
from grimboost.histogram import Buckets
from grimboost.metrics import metrics

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

VLLM = {
    "spec_decode_num_drafts": "counter",
    "spec_decode_num_draft_tokens": "counter",
    "spec_decode_num_accepted_tokens": "counter",
    "spec_decode_num_accepted_tokens_per_pos": "counter",
    "prompt_tokens": "counter",
    "generation_tokens": "counter",
    "request_success": "counter",
    "num_requests_running": "gauge",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
}


def scrape(engine: Engine) -> tuple[dict[str, str], Samples]:
    """Types by family, and values by name and labels (without the model's)."""
    types, values = {}, {}
    for family in text_string_to_metric_families(metrics(engine)):
        types[family.name] = family.type
        for sample in family.samples:
            labels = {**sample.labels}
            assert labels.pop("model_name") == "scripted"
            values[sample.name, tuple(sorted(labels.items()))] = sample.value
    return types, values


def value(values: Samples, name: str, **labels: str) -> float:
    return values[f"grimboost_{name}", tuple(sorted(labels.items()))]


STREAMING: Any = {"mode": "streaming", "release": "always", "threshold": 0.0, "on_slip": "retract"}


def test_names_and_values_are_those_of_the_run() -> None:
    async def main() -> None:
        async with make_engine(drafter=oracle(broken_at=7)) as engine:
            first, second = engine.generate(prompt()), engine.generate(prompt(1), **STREAMING)
            await collect(first)
            await collect(second)
            before = engine.statistics().target.busy_seconds
            types, values = scrape(engine)
            assert {f"grimboost_{name}": kind for name, kind in VLLM.items()}.items() <= types.items()
            assert all(name.startswith("grimboost_") for name in types)
            one, other = first.counts, second.counts
            for name, expected in (
                ("spec_decode_num_drafts", one.drafted_blocks + other.drafted_blocks),
                ("spec_decode_num_draft_tokens", one.drafted_tokens + other.drafted_tokens),
                ("spec_decode_num_accepted_tokens", one.accepted_tokens + other.accepted_tokens),
                ("prompt_tokens", one.prompt_tokens + other.prompt_tokens),
                ("generation_tokens", one.new_tokens + other.new_tokens),
                ("released_tokens", other.released_tokens),
                ("slip_tokens", other.slip_tokens),
                ("retracted_bytes", other.retracted_bytes),
                ("takeovers", other.takeovers),
            ):
                assert value(values, f"{name}_total") == expected, name
            assert other.released_tokens > other.slip_tokens > 0
            places = [one.accepted_by_position, other.accepted_by_position]
            for place in range(max(map(len, places))):
                expected = sum(counts[place] for counts in places if place < len(counts))
                per_pos = "spec_decode_num_accepted_tokens_per_pos_total"
                assert value(values, per_pos, position=str(place)) == expected
            assert value(values, "request_success_total", finished_reason="stop") == 2
            assert value(values, "num_requests_running") == value(values, "open_slots") == 0
            gaps = len(first.lane.gaps) + len(second.lane.gaps)
            assert value(values, "inter_token_latency_seconds_count") == gaps
            assert value(values, "inter_token_latency_seconds_sum") == pytest.approx(
                sum(first.lane.gaps) + sum(second.lane.gaps)
            )
            assert value(values, "time_to_first_token_seconds_count") == 2
            assert value(values, "e2e_request_latency_seconds_bucket", le="+Inf") == 2
            busy = value(values, "worker_busy_seconds_total", worker="target")
            assert 0 < before <= busy <= engine.statistics().target.busy_seconds  # the worker may still give back
            assert value(values, "certificate_open", domain="default", epsilon="0.001", delta="0.05") == 0

    run(main)


def test_an_engine_that_did_nothing_has_all_names_but_places() -> None:
    async def main() -> None:
        async with make_engine(drafter=None) as engine:
            types, values = scrape(engine)
            assert {f"grimboost_{name}" for name in VLLM} <= set(types)
            assert not any(values.values())
            assert ("grimboost_worker_queue", (("worker", "drafter"),)) not in values

    run(main)


def test_the_ends_have_vllms_names_for_them() -> None:
    """Cancelled is aborted there."""
    target = Target()

    async def main() -> None:
        async with make_engine(target) as engine:
            await collect(engine.generate(prompt(), max_new_tokens=2))
            async with engine.generate(prompt()) as generation:
                generation.cancel()
            target.on_step = lambda batch: 1 // 0
            await collect(engine.generate(prompt()))
            _, values = scrape(engine)
            for reason, count in {"stop": 0, "length": 1, "abort": 1, "error": 1}.items():
                assert value(values, "request_success_total", finished_reason=reason) == count, reason

    run(main)
    assert_clean(target)


def test_what_runs_shows_at_once() -> None:
    target, gate = Target(), Gate()

    async def main() -> None:
        async with make_engine(target, None) as engine, engine.generate(prompt()) as generation:
            async for event in generation:
                if isinstance(event, m.Chunk):
                    break
            target.on_step = gate
            await reached(gate.begun)
            _, values = scrape(engine)
            assert value(values, "num_requests_running") == value(values, "open_slots") == 1
            assert value(values, "time_to_first_token_seconds_count") == 1
            assert value(values, "stage_messages_total", stage="cascade") > 0
            assert value(values, "request_success_total", finished_reason="stop") == 0
            gate.go.set()

    run(main)


def test_no_counter_goes_down_whoever_asks_and_when() -> None:
    """A thread scrapes all the time while generations begin and end."""
    found: list[Samples] = []
    failures: list[BaseException] = []

    async def main() -> None:
        async with make_engine(drafter=oracle(broken_at=5)) as engine:
            done = threading.Event()

            def scrape_on() -> None:
                try:
                    while not done.is_set():
                        found.append(scrape(engine)[1])
                        engine.statistics()
                except BaseException as error:
                    failures.append(error)

            thread = threading.Thread(target=scrape_on)
            thread.start()
            try:
                for _ in range(6):
                    async with anyio.create_task_group() as tasks:
                        for which in range(len(TEXTS)):
                            tasks.start_soon(collect, engine.generate(prompt(which)))
            finally:
                done.set()
                await anyio.to_thread.run_sync(thread.join)
            found.append(scrape(engine)[1])

    run(main, seconds=30.0)
    assert not failures
    assert len(found) > 5
    highest: Samples = {}
    for values in found:
        for key, now in values.items():
            if key[0].endswith(("_total", "_count", "_sum", "_bucket")):
                assert now >= highest.get(key, 0.0), key
                highest[key] = now
    assert highest["grimboost_request_success_total", (("finished_reason", "stop"),)] == 6 * len(TEXTS)


def test_statistics_are_told_by_stage_while_it_runs_and_after() -> None:
    async def main() -> None:
        async with make_engine(drafter=oracle(broken_at=7)) as engine:
            before = engine.statistics()
            assert set(before.stages) == {"drafter", "gate", "verifier", "cascade", "revealer"}
            async with engine.generate(prompt()) as generation:
                async for event in generation:
                    if isinstance(event, m.Chunk):
                        during = engine.statistics()
            after = engine.statistics()
            for name in before.stages:
                assert 0 == before.stages[name].received < during.stages[name].received
                assert during.stages[name].busy_seconds <= after.stages[name].busy_seconds
                assert after.stages[name].queue == 0
                assert after.stages[name].mean_queued_seconds >= 0
            assert during.generations == 1
            assert after.generations == 0
            assert after.stages == {
                name: stage.plus(before.stages[name]) for name, stage in generation.stages().items()
            }

    run(main)


def test_a_stage_that_waits_for_room_says_since_when() -> None:
    async def main() -> None:
        async with make_engine(drafter=None, capacity=1) as engine, engine.generate(prompt()) as generation:
            await anyio.wait_all_tasks_blocked()
            while not engine.statistics().stages["revealer"].full_seconds:
                await checkpoint()
            first = engine.statistics().stages["revealer"]
            second = engine.statistics().stages["revealer"]
            assert second.full_seconds > first.full_seconds > 0
            assert first.blocked_seconds == second.blocked_seconds
            async for _ in generation:
                pass
            assert engine.statistics().stages["revealer"].blocked_seconds > first.full_seconds

    run(main)


def test_buckets() -> None:
    buckets = Buckets((1.0, 2.0))
    for one in (0.5, 1.0, 1.5, 2.0, 7.0):
        buckets.add(one)
    histogram = buckets.snapshot()
    assert (histogram.counts, histogram.sum, histogram.count) == ((2, 2, 1), 12.0, 5)
