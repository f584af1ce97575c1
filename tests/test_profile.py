"""Profiles: sums that have to add up, who was slow, bounded memory, and the command that shows them."""

import time
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import (
    BOUND,
    PROMPT_TOKENS,
    TEXTS,
    Gate,
    Target,
    both_loops,
    collect,
    make_engine,
    oracle,
    prompt,
    reached,
    run,
)

from grimboost import messages as m
from grimboost.actor import Actor
from grimboost.adapters.script_drafter import ScriptDrafter
from grimboost.engine import Engine
from grimboost.instruments import Work
from grimboost.profile import (
    CLIENT,
    DRAFTER,
    LAYERS,
    RUNNING,
    STAGES,
    TARGET,
    Overlap,
    PassProfile,
    Profile,
    StageProfile,
    cut,
    limit,
    overlap,
    passes_of,
    sweep,
)
from grimboost.profile_report import report
from grimboost.profiler import KEPT, Profiler, Sample
from grimboost.spread import Spread
from grimboost.stages.sampling_rule import SamplingRule

# ---------------------------------------------------------------- intervals

MOMENTS = st.integers(0, 60)
INTERVALS = st.lists(st.tuples(MOMENTS, MOMENTS, st.sampled_from(LAYERS)), max_size=12)


def slowly(intervals: list[tuple[int, int, int]]) -> dict[int, int]:
    """The same by asking at each moment."""
    found: dict[int, int] = {}
    for moment in range(61):
        layers = 0
        for begin, end, layer in intervals:
            layers |= layer if begin <= moment < end else 0
        if layers:
            found[layers] = found.get(layers, 0) + 1
    return found


@given(INTERVALS)
def test_a_sweep_finds_what_asking_at_each_moment_finds(intervals: list[tuple[int, int, int]]) -> None:
    assert sweep(intervals) == slowly(intervals)


@given(INTERVALS, MOMENTS)
def test_a_sweep_may_be_made_in_parts(intervals: list[tuple[int, int, int]], at: int) -> None:
    found: dict[int, int] = {}
    for part in cut(intervals, at):
        for layers, duration in sweep(part).items():
            found[layers] = found.get(layers, 0) + duration
    assert found == sweep(intervals)


@given(INTERVALS)
def test_the_five_parts_are_the_wall_time(intervals: list[tuple[int, int, int]]) -> None:
    found = sweep(intervals)
    parts = overlap(found)
    wall = sum(duration for layers, duration in found.items() if layers & RUNNING)
    five = (
        parts.both_seconds,
        parts.target_seconds,
        parts.drafter_seconds,
        parts.stages_seconds,
        parts.nobody_seconds,
    )
    assert round(sum(five) * 1e9) == wall
    assert 0 <= parts.client_seconds <= parts.nobody_seconds


def test_who_works_beside_whom() -> None:
    second = 10**9
    found = sweep(
        [
            (0, 10 * second, RUNNING),
            (0, 4 * second, TARGET),
            (3 * second, 5 * second, DRAFTER),
            (4 * second, 6 * second, STAGES),
            (7 * second, 9 * second, CLIENT),
            (9 * second, 20 * second, DRAFTER),  # it remembers after the end
        ]
    )
    assert overlap(found) == Overlap(1.0, 3.0, 2.0, 1.0, 3.0, 2.0)


# ---------------------------------------------------------------- passes, samples, words


def work(seconds: float, rows: int, slots: int, length: int, choose: int, fed: int = 1) -> Work:
    request = m.PassRequested(1, 0, (1,) * fed, choose)
    return Work(1, request, m.PassReturned(1, (), length, seconds, rows, slots), 0.0)


def test_passes_of_a_batch() -> None:
    together = [work(0.5, 5, 2, 10, 0), work(0.5, 5, 2, 20, 1)]
    opened = Work(1, m.OpenRequested(SamplingRule()), m.Opened(), 0.0)
    failed = Work(1, m.PassRequested(1, 0, (1,), 1), m.PassFailed("no"), 0.0)
    [one] = passes_of([opened, *together, failed])
    assert (one.kind, one.rows, one.seconds, one.contexts) == ("mixed", 5, 0.5, (10, 20))
    alone = [work(0.1, 2, 1, 10, 0), work(0.2, 3, 1, 20, 3)]
    assert [(one.kind, one.rows, one.contexts) for one in passes_of(alone)] == [
        ("prefill", 2, (10,)),
        ("decode", 3, (20,)),
    ]
    assert passes_of([]) == []


def test_a_sample_keeps_the_latest_and_the_sums_of_all() -> None:
    sample = Sample()
    assert sample.spread() is None
    for value in [100.0] + [1.0] * KEPT:
        sample.add(value)
    spread = sample.spread()
    assert spread is not None
    assert len(sample.latest) == KEPT
    assert (spread.p50, spread.p95, spread.max) == (1.0, 1.0, 100.0)
    assert spread.mean == pytest.approx((100 + KEPT) / (KEPT + 1))


STAGE = StageProfile("verifier", 1, 1, 0.1, 0.1, 0.0, 0.2)
DECODE = PassProfile("decode", 1, 1, 9, Spread(0.0045), 10.0, 12, Spread(1.0))
LARGER = PassProfile("decode", 5, 8, 203, Spread(0.009), 10.0, 12, Spread(1.0))


@pytest.mark.parametrize(
    ("parts", "who", "words"),
    [
        (
            Overlap(0.08, 1.52, 0.02, 0.1, 0.2),
            "target",
            "limited by the target: 83% of 1.92 s in 212 passes of 1 to 8 rows (4.5 ms for one row); "
            "the drafter worked in 5%, beside the target in 4%",
        ),
        (
            Overlap(0.1, 0.3, 1.3, 0.1, 0.12),
            "drafter",
            "limited by the drafter: alone at work in 68% of 1.92 s; the target worked in 21%",
        ),
        (
            Overlap(0.0, 0.1, 0.1, 1.5, 0.22),
            "event loop",
            "limited by the event loop: its stages alone at work in 78% of 1.92 s, most of it the verifier; "
            "the target worked in 5%",
        ),
        (
            Overlap(0.0, 0.2, 0.0, 0.02, 1.7, 1.6),
            "client",
            "limited by the client: in 83% of 1.92 s everything waited until it took the next event; "
            "the target worked in 10%",
        ),
        (
            Overlap(0.0, 0.2, 0.0, 0.02, 1.7, 0.2),
            "hand-overs",
            "limited by hand-overs: in 78% of 1.92 s nobody worked, threads and event loop woke each other; "
            "the target worked in 10%",
        ),
    ],
)
def test_the_last_line_says_who_was_slow(parts: Overlap, who: str, words: str) -> None:
    assert limit(1.92, parts, [STAGE], [], [DECODE, LARGER]) == (who, words)


def test_nothing_ran() -> None:
    profile = Profiler().profile()
    assert profile.limited_by == "nothing"
    assert report(profile).splitlines()[-1] == "nothing ran"


# ---------------------------------------------------------------- of an engine


SWITCH = 1e-3
"""Seconds that a change of threads between two readings of the clock may take; runs of some 10 ms need it."""


async def timed(actor: Actor, inner: Any, walls: dict[str, float]) -> None:
    begin = time.perf_counter()
    try:
        await inner(actor)
    finally:
        walls[actor.name] = walls.get(actor.name, 0.0) + time.perf_counter() - begin


def check_sums(profile: Profile, walls: dict[str, float]) -> None:
    """What stages say of their time, against how long they ran as seen from outside."""
    assert {stage.name for stage in profile.stages} == set(walls)
    for stage in profile.stages:
        parts = stage.busy_seconds + stage.waiting_seconds + stage.blocked_seconds
        assert parts == pytest.approx(walls[stage.name], rel=0.03, abs=SWITCH), stage
        assert parts == pytest.approx(stage.wall_seconds, rel=0.03, abs=SWITCH), stage
    o = profile.overlap
    five = o.both_seconds + o.target_seconds + o.drafter_seconds + o.stages_seconds + o.nobody_seconds
    assert five == pytest.approx(profile.wall_seconds, abs=1e-9)


@both_loops
@pytest.mark.parametrize("capacity", [0, 1, 8])
@pytest.mark.parametrize(
    "mode", [{}, {"mode": "streaming", "release": "always", "threshold": 0.0}], ids=["strict", "streaming"]
)
def test_stage_times_add_up_to_the_wall_time(
    mode: Any, capacity: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    walls: dict[str, float] = {}
    inner = Actor.run
    monkeypatch.setattr(Actor, "run", lambda actor: timed(actor, inner, walls))
    profiler = Profiler()

    async def main() -> None:
        options: Any = {"capacity": capacity, "instruments": [profiler]}
        async with (
            make_engine(Target(), oracle(broken_at=11), **options) as engine,
            anyio.create_task_group() as tasks,
        ):
            for which in range(3):
                tasks.start_soon(collect, engine.generate(prompt(which), **mode))

    run(main, backend)
    profile = profiler.profile()
    check_sums(profile, walls)
    assert profile.generations == 3


def test_figures_are_those_of_the_run() -> None:
    profiler, target = Profiler(), Target()
    rows: list[int] = []
    target.on_step = lambda batch: rows.append(sum(len(one.tokens) for one in batch))

    async def main() -> tuple[m.Counts, Any, Profile]:
        async with make_engine(target, oracle(broken_at=7), instruments=[profiler]) as engine:
            generation = engine.generate(prompt())
            await collect(generation)
            return generation.counts, engine.statistics(), profiler.profile()

    counts, statistics, profile = run(main)
    stages = {stage.name: stage for stage in profile.stages}
    workers = {worker.name: worker for worker in profile.workers}
    for name, stage in stages.items():
        assert stage.received == statistics.stages[name].received
        assert stage.queue_seconds is not None
    assert stages["revealer"].bytes == counts.new_bytes
    assert stages["cascade"].bytes >= counts.new_bytes
    assert sum(one.count for one in profile.passes) == len(rows)
    assert workers["target"].rows == Spread(
        pytest.approx(sum(rows) / len(rows)), *(pytest.approx(q) for q in quantiles(rows)), max(rows)
    )
    [prefill] = [one for one in profile.passes if one.kind == "prefill"]
    assert (prefill.rows_from, prefill.rows_to, prefill.count) == (PROMPT_TOKENS - 1, PROMPT_TOKENS - 1, 1)
    assert prefill.context_max == PROMPT_TOKENS - 1
    decode = [one for one in profile.passes if one.kind == "decode"]
    assert max(one.context_max for one in decode) >= PROMPT_TOKENS + counts.new_tokens - 1
    assert profile.client.events > 2


def quantiles(values: list[int]) -> list[float]:
    ordered = sorted(values)
    return [ordered[-(-len(ordered) * q // 100) - 1] for q in (50, 95, 99)]


def test_passes_of_several_generations_count_them() -> None:
    profiler, target, gate = Profiler(), Target(), Gate()
    target.on_open = gate

    async def main() -> None:
        async with make_engine(target, None, instruments=[profiler]) as engine, anyio.create_task_group() as tasks:
            for which in range(3):
                tasks.start_soon(collect, engine.generate(prompt(which)))
            await reached(gate.begun)
            gate.go.set()

    run(main)
    together = [one.generations.max for one in profiler.profile().passes if one.generations]
    assert max(together) >= 2


@pytest.mark.parametrize("slow", ["target", "drafter", "client"])
def test_the_slow_one_is_named(slow: str) -> None:
    """Each takes ten milliseconds where the others take microseconds."""

    def doze(*_: object) -> None:
        time.sleep(0.01)

    target, profiler = Target(), Profiler()
    if slow == "target":
        target.on_step = doze

    def script(context: bytes, most: int) -> bytes:
        doze()
        at = len(context) - PROMPT_TOKENS
        return TEXTS[0][at : at + min(most, 2)]

    drafter = ScriptDrafter(script) if slow == "drafter" else oracle(longest=2)

    async def main() -> None:
        async with (
            make_engine(target, drafter, capacity=1, instruments=[profiler]) as engine,
            engine.generate(prompt()) as generation,
        ):
            async for _ in generation:
                if slow == "client":
                    await anyio.sleep(0.01)

    run(main)
    assert profiler.profile().limited_by == slow


def test_a_profile_can_be_made_while_it_runs_and_after_a_cancel() -> None:
    profiler, target, gate = Profiler(), Target(), Gate()

    async def main() -> tuple[Profile, Profile]:
        async with make_engine(target, oracle(broken_at=7), instruments=[profiler]) as engine:
            async with engine.generate(prompt()) as generation:
                async for event in generation:
                    if isinstance(event, m.Chunk):
                        break
                target.on_step = gate
                await anyio.to_thread.run_sync(gate.begun.wait, BOUND)
                during = profiler.profile()
                generation.cancel()
                gate.go.set()
                async for _ in generation:
                    pass
            return during, profiler.profile()

    during, after = run(main)
    assert 0 < during.wall_seconds < after.wall_seconds
    for profile in (during, after):
        assert profile.generations == 1
        assert profile.limit.startswith("limited by ")
    for stage in after.stages:
        parts = stage.busy_seconds + stage.waiting_seconds + stage.blocked_seconds
        assert parts == pytest.approx(stage.wall_seconds, rel=0.03, abs=SWITCH)


def test_memory_is_bounded_and_sums_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grimboost.profiler.CHUNK", 4)
    monkeypatch.setattr("grimboost.profiler.MOST_INTERVALS", 8)
    small, kept, walls = Profiler(), 0, list[float]()

    async def main() -> None:
        nonlocal kept
        async with make_engine(drafter=oracle(broken_at=5), instruments=[small]) as engine:
            for which in range(4):
                begin = time.perf_counter()
                async with engine.generate(prompt(which)) as generation:
                    async for _ in generation:
                        kept = max(kept, len(small._intervals), len(small._pending))
                walls.append(time.perf_counter() - begin)

    run(main)
    assert kept < 40
    profile = small.profile()
    assert 0 < profile.wall_seconds <= sum(walls)
    o = profile.overlap
    five = o.both_seconds + o.target_seconds + o.drafter_seconds + o.stages_seconds + o.nobody_seconds
    assert five == pytest.approx(profile.wall_seconds, abs=1e-9)
    [target] = [worker for worker in profile.workers if worker.name == "target"]
    assert target.busy_seconds / 2 < o.target_seconds + o.both_seconds <= target.busy_seconds + 1e-6


def test_generations_that_began_before_are_not_measured() -> None:
    profiler = Profiler()

    async def main() -> None:
        async with make_engine(drafter=oracle(broken_at=7)) as engine:
            async with engine.generate(prompt()) as generation:
                async for event in generation:
                    if isinstance(event, m.Chunk):
                        engine.instruments.add(profiler)
                        break
                async for _ in generation:
                    pass
            assert profiler.profile().limited_by == "nothing"
            await collect(engine.generate(prompt(1)))

    run(main)
    assert profiler.profile().generations == 1


def test_a_report_lines_up_and_json_has_all_of_it() -> None:
    profiler = Profiler()

    async def main() -> None:
        async with make_engine(drafter=oracle(broken_at=7), instruments=[profiler]) as engine:
            await collect(engine.generate(prompt()))

    run(main)
    profile = profiler.profile()
    tables = report(profile).split("\n\n")
    assert [table.split()[0] for table in tables] == ["stage", "worker", "passes", "wall"]
    for table in tables[:3]:
        assert len({len(line) for line in table.splitlines()}) == 1
    assert report(profile).splitlines()[-1] == profile.limit
    assert msgspec.json.decode(msgspec.json.encode(profile), type=Profile) == profile


# ---------------------------------------------------------------- on the real model


@pytest.mark.model
@pytest.mark.parametrize("mode", ["strict", "streaming"])
def test_stage_times_add_up_on_the_real_model(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    walls: dict[str, float] = {}
    inner = Actor.run
    monkeypatch.setattr(Actor, "run", lambda actor: timed(actor, inner, walls))
    profiler = Profiler()

    async def main() -> None:
        loaded = Engine.load("smollm2-135m", precision="fp32", certificates="memory", instruments=[profiler])
        async with await loaded as engine:
            params: Any = {"mode": mode, "max_new_tokens": 24, "ignore_eos": True}
            params |= {"release": "always"} if mode == "streaming" else {}
            await collect(engine.generate("Copy this: one two three, one two three, one two three.", **params))

    run(main, seconds=60.0)
    profile = profiler.profile()
    check_sums(profile, walls)
    assert profile.limited_by == "target"
    workers = {worker.name: worker for worker in profile.workers}
    target = profile.overlap.target_seconds + profile.overlap.both_seconds
    assert target == pytest.approx(workers["target"].busy_seconds, rel=0.03)
