"""A profile as text: a table per stage and worker, one of the target's passes, and a last line that says who
was slow.

Plain columns, so that a pipe gets what a terminal shows. It measures nothing.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import astuple

from grimboost.columns import aligned
from grimboost.profile import PassProfile, Profile, StageProfile, WorkerProfile
from grimboost.spread import Spread

_STAGES = "stage|in|out|busy ms|waiting|blocked|wall|queue|max|wait ms|p95|tokens|bytes"
_WORKERS = "worker|batches|requests|busy ms|waiting|batch ms|p95|wait ms|p95|rows|max|tokens|bytes"
_PASSES = "passes|rows|count|ms|p50|p95|context|max|generations"


def report(profile: Profile) -> str:
    """Several lines, the last one without an end."""
    tables = [
        _table(_STAGES, map(_stage, profile.stages)),
        _table(_WORKERS, map(_worker, profile.workers)),
        _table(_PASSES, map(_pass, profile.passes)),
    ]
    return "\n".join([*(line for table in tables if table for line in (*table, "")), *_sentences(profile)])


def _sentences(profile: Profile) -> list[str]:
    wall, client = profile.wall_seconds or 1.0, profile.client
    both, target, drafter, stages, nobody, waiting = (
        f"{100 * seconds / wall:.1f}%" for seconds in astuple(profile.overlap)
    )
    return [
        f"wall time {profile.wall_seconds:.3f} s: target and drafter {both}, target alone {target}, "
        f"drafter alone {drafter}, stages alone {stages}, nobody {nobody} (the client {waiting})",
        f"client: {client.events} events, waited {1000 * client.waiting_seconds:.1f} ms for them, "
        f"was busy with them for {1000 * client.busy_seconds:.1f} ms",
        profile.limit,
    ]


def _stage(stage: StageProfile) -> list[str]:
    depth, wait = stage.queue_depth or Spread(), stage.queue_seconds or Spread()
    times = (stage.busy_seconds, stage.waiting_seconds, stage.blocked_seconds, stage.wall_seconds)
    return [
        stage.name,
        *(str(count) for count in (stage.received, stage.sent)),
        *(_ms(seconds, 1) for seconds in times),
        *(f"{depth.mean:.1f}", f"{depth.max:.0f}", _ms(wait.mean), _ms(wait.p95)),
        *(str(stage.tokens) if stage.tokens else "-", str(stage.bytes)),
    ]


def _worker(worker: WorkerProfile) -> list[str]:
    batch, wait, rows = worker.batch_seconds or Spread(), worker.queue_seconds or Spread(), worker.rows
    return [
        worker.name,
        *(str(count) for count in (worker.batches, worker.requests)),
        *(_ms(seconds, 1) for seconds in (worker.busy_seconds, worker.waiting_seconds)),
        *(_ms(seconds) for seconds in (batch.mean, batch.p95, wait.mean, wait.p95)),
        *((f"{rows.mean:.1f}", f"{rows.max:.0f}") if rows else ("-", "-")),
        *(str(worker.tokens), str(worker.bytes)),
    ]


def _pass(one: PassProfile) -> list[str]:
    seconds, generations = one.seconds or Spread(), one.generations or Spread()
    return [
        one.kind,
        str(one.rows_to) if one.rows_from == one.rows_to else f"{one.rows_from}-{one.rows_to}",
        str(one.count),
        *(_ms(value) for value in (seconds.mean, seconds.p50, seconds.p95)),
        *(f"{one.context_mean:.0f}", str(one.context_max), f"{generations.mean:.1f}"),
    ]


def _ms(seconds: float, places: int = 2) -> str:
    return f"{1000 * seconds:.{places}f}"


def _table(head: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """Aligned lines; nothing without rows."""
    lines = [head.split("|"), *rows]
    return aligned(lines) if len(lines) > 1 else []
