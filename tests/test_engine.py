"""The engine from the outside: many generations at once, and every way in which one can end.

After each of them no slot is open, no task is left and what other generations got is what they get alone.
"""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
import torch
import trio._core._run
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import (
    END,
    POISON,
    PROMPT_TOKENS,
    SCRIPTS,
    TEXTS,
    VOCABULARY,
    Gate,
    Target,
    assert_clean,
    assert_whole,
    both_loops,
    collect,
    interrupted,
    make_engine,
    oracle,
    prompt,
    reached,
    run,
)

from grimboost import engine as engine_module
from grimboost import generation as generation_module
from grimboost import messages as m
from grimboost.adapters.drafter import DraftSession, Proposal
from grimboost.adapters.script_drafter import ScriptDrafter
from grimboost.engine import Engine
from grimboost.errors import GrimboostError, MisuseError, StageError, TargetError
from grimboost.generation import Generation
from grimboost.messages import Chunk, Done, DraftToken, Progress
from grimboost.parameters import Parameters
from grimboost.stages.revealer import RevealerStage

trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True

CAPACITIES = pytest.mark.parametrize("capacity", [0, 1, 8])


def drafters() -> dict[str, Callable[[], Any]]:
    return {
        "none": lambda: None,
        "lookup": lambda: "lookup",
        "oracle": oracle,
        "broken now and then": lambda: oracle(broken_at=7),
        "half words": lambda: oracle(broken_at=11, whole=False),
        "foreign bytes": lambda: ScriptDrafter(lambda _, limit: b"\xf0\x9f\x80\xc3" * 9),
        "always wrong": lambda: ScriptDrafter(lambda _, limit: b"zzzzzzzz"),
    }


every_drafter = pytest.mark.parametrize("name", list(drafters()))


@asynccontextmanager
async def several(engine: Engine, which: Sequence[int], **options: Any) -> AsyncIterator[list[Generation]]:
    """Generations that run to their end in tasks of their own beside the block; checked behind it."""
    generations = [engine.generate(prompt(one), **options) for one in which]
    async with anyio.create_task_group() as tasks:
        for generation in generations:
            tasks.start_soon(collect, generation)
        yield generations
    for one, generation in zip(which, generations, strict=True):
        assert_whole(generation, one)


# ---------------------------------------------------------------- together and alone


@both_loops
@CAPACITIES
@every_drafter
def test_many_generations_at_once_each_get_what_they_get_alone(backend: str, capacity: int, name: str) -> None:
    target = Target()

    async def main() -> None:
        async with make_engine(target, drafters()[name](), capacity=capacity) as engine:
            async with several(engine, [0, 1, 2, 3, 0, 2]):
                pass
            assert target.open_slots == 0
            assert engine.statistics().generations == 0

    run(main, backend)
    assert_clean(target)


@both_loops
@every_drafter
def test_what_is_streamed_is_the_result_and_the_bytes_of_its_ids(backend: str, name: str) -> None:
    async def main() -> None:
        async with make_engine(drafter=drafters()[name]()) as engine:
            for which, text in enumerate(TEXTS):
                events: list[m.ClientEvent] = []
                async with engine.generate(prompt(which)) as generation:
                    async for event in generation:
                        events.append(event)
                chunks = [event for event in events if isinstance(event, Chunk)]
                offsets = [sum(len(chunk.data) for chunk in chunks[:place]) for place in range(len(chunks))]
                assert [chunk.offset for chunk in chunks] == offsets
                streamed = b"".join(chunk.data for chunk in chunks)
                assert streamed == generation.result.data == text
                assert streamed == VOCABULARY.join(generation.result.token_ids)
                assert isinstance(events[0], Progress)
                assert events[-1] == Done(
                    m.FinishReason.STOP,
                    (*SCRIPTS[which], END),
                    len(text),
                    events[-1].counts,  # type: ignore[union-attr]
                )
                assert await engine.complete(prompt(which)) == text
                assert b"".join([chunk async for chunk in engine.stream(prompt(which))]) == text

    run(main, backend)


@both_loops
def test_drafting_saves_passes(backend: str) -> None:
    async def passes(drafter: Any) -> int:
        async with make_engine(drafter=drafter) as engine:
            generation = engine.generate(prompt())
            await collect(generation)
            assert_whole(generation)
            return generation.result.statistics.target_passes

    async def main() -> None:
        alone, drafted = await passes(None), await passes(oracle())
        assert alone == len(SCRIPTS[0]) + 1
        assert drafted < alone / 2

    run(main, backend)


@settings(max_examples=30, deadline=None)
@given(
    st.random_module(),
    st.integers(0, 2),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=4),
    st.sampled_from(list(drafters())),
)
def test_D6_any_order_of_tasks_on_trio(
    _random: object, capacity: int, clients: list[tuple[int, int]], name: str
) -> None:
    """Clients that leave after some events (0: never read one), beside one that reads to the end."""
    target = Target()

    async def leaving(generation: Generation, events: int, text: bytes) -> None:
        got = b""
        async with generation:
            for _ in range(events):
                try:
                    event = await anext(generation)
                except StopAsyncIteration:
                    break
                got += event.data if isinstance(event, Chunk) else b""
        result = generation.result
        assert text.startswith(result.data)
        assert result.data.startswith(got)
        assert VOCABULARY.join(result.token_ids) == result.data

    async def main() -> None:
        async with make_engine(target, drafters()[name](), capacity=capacity) as engine:
            async with several(engine, [1]), anyio.create_task_group() as tasks:
                for which, events in clients:
                    tasks.start_soon(leaving, engine.generate(prompt(which)), events, TEXTS[which])
            assert target.open_slots == 0

    run(main, "trio")
    assert_clean(target)


# ---------------------------------------------------------------- clients that go away


@both_loops
@CAPACITIES
def test_closing_a_stream_early_gives_the_slot_back(backend: str, capacity: int) -> None:
    target = Target()

    async def main() -> None:
        async with make_engine(target, "lookup", capacity=capacity) as engine, several(engine, [1]):
            stream = engine.stream(prompt())
            first = await anext(stream)
            await stream.aclose()
            assert TEXTS[0].startswith(first)

    run(main, backend)
    assert_clean(target)


async def test_a_stream_that_is_broken_off_and_collected_gives_the_slot_back() -> None:
    target = Target()
    async with make_engine(target, "lookup") as engine, several(engine, [1]):
        async for _ in engine.stream(prompt()):
            break
        gc.collect()
        while engine.statistics().generations > 1:
            await anyio.lowlevel.checkpoint()
    assert_clean(target)


@pytest.mark.filterwarnings("ignore:Async generator")
def test_a_stream_that_is_broken_off_and_collected_gives_the_slot_back_on_trio() -> None:
    """Trio warns of it, and closes the generator in a scope that is already cancelled."""
    target = Target()

    async def main() -> None:
        async with make_engine(target, "lookup") as engine, several(engine, [1]):
            async for _ in engine.stream(prompt()):
                break
            gc.collect()
            while engine.statistics().generations > 1:
                await anyio.lowlevel.checkpoint()

    run(main, "trio")
    assert_clean(target)


@both_loops
def test_what_was_never_entered_or_iterated_costs_nothing(backend: str) -> None:
    target = Target()

    async def main() -> None:
        async with make_engine(target) as engine:
            untouched = engine.statistics()
            generation = engine.generate(prompt())
            stream = engine.stream(prompt())
            await anyio.wait_all_tasks_blocked()
            assert engine.statistics() == untouched
            assert engine.statistics().target.jobs == 0
            assert generation.result.finish_reason == "cancelled"
            await stream.aclose()
        with pytest.raises(MisuseError, match="left"):
            await generation.__aenter__()

    run(main, backend)
    assert_clean(target)


@both_loops
@CAPACITIES
def test_a_generation_cancelled_before_it_is_entered_ends_at_once(backend: str, capacity: int) -> None:
    target = Target()

    async def main() -> None:
        async with make_engine(target, "lookup", capacity=capacity) as engine:
            generation = engine.generate(prompt())
            generation.cancel()
            assert await collect(generation) == b""
            assert generation.result.finish_reason == "cancelled"
            generation.cancel()  # and once more after its end

    run(main, backend)
    assert_clean(target)


SHORT = (TEXTS[0][:24], TEXTS[1])


@pytest.mark.parametrize("manner", ["task.cancel", "asyncio scope", "trio scope"])
@pytest.mark.parametrize("capacity", [1, 8])
def test_D6_a_client_cancelled_at_any_await_leaves_nothing_behind(manner: str, capacity: int) -> None:
    """The client's every await in turn, entering and leaving the generation included."""
    target = Target(SHORT)
    seen: set[bytes] = set()

    async def client(engine: Engine, at: int) -> int:
        """One generation, cancelled at its `at`-th await. Returns how often it awaited."""
        generation = engine.generate(prompt())
        inner = collect(generation)
        awaits = 0
        if manner == "task.cancel":
            task = asyncio.create_task(interrupted(inner, at, lambda: task.cancel()))  # type: ignore[arg-type]
            try:
                _, awaits = await task
            except asyncio.CancelledError:
                awaits = at
        else:
            with anyio.CancelScope() as scope:
                _, awaits = await interrupted(inner, at, scope.cancel)
            awaits = at if scope.cancelled_caught else awaits
        await generation.finished.wait()
        assert SHORT[0].startswith(generation.result.data)
        assert VOCABULARY.join(generation.result.token_ids) == generation.result.data
        seen.add(generation.result.data)
        return awaits

    async def main() -> None:
        async with make_engine(target, "lookup", capacity=capacity) as engine:
            at = awaits = 0
            while awaits == at:
                at += 1
                async with anyio.create_task_group() as tasks:
                    neighbour = engine.generate(prompt(1))
                    tasks.start_soon(collect, neighbour)
                    awaits = await client(engine, at)
                assert neighbour.result.data == TEXTS[1]
                assert target.open_slots == 0
            assert at > 5

    run(main, "trio" if manner.startswith("trio") else "asyncio")
    assert_clean(target)
    assert len(seen) > 3  # it was cut at different places, and at the last not at all
    assert SHORT[0] in seen


@pytest.mark.parametrize("manner", ["task.cancel", "asyncio scope", "trio scope"])
def test_D6_an_engine_whose_owner_is_cancelled_at_any_await_leaves_nothing_behind(manner: str) -> None:
    """Cancelled while it enters the engine, while generations run, and while it leaves the engine."""
    reached_end = False

    async def owner(target: Target) -> None:
        async with make_engine(target, "lookup") as engine:
            bystander = engine.generate(prompt(1))
            await bystander.__aenter__()  # nobody reads it, nobody leaves it
            generation = engine.generate(prompt())
            await collect(generation)
        nonlocal reached_end
        reached_end = True

    async def attempt(target: Target, at: int) -> None:
        if manner == "task.cancel":
            task = asyncio.create_task(interrupted(owner(target), at, lambda: task.cancel()))  # type: ignore[arg-type]
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled() or task.exception() is None
        else:
            with anyio.CancelScope() as scope:
                await interrupted(owner(target), at, scope.cancel)

    at = 1
    while not reached_end:
        target = Target(SHORT)
        run(lambda target=target, at=at: attempt(target, at), "trio" if manner.startswith("trio") else "asyncio")
        assert_clean(target)
        at += 1
    assert at > 8


@both_loops
@CAPACITIES
def test_D6_an_engine_that_is_left_while_generations_run_ends_them(backend: str, capacity: int) -> None:
    target = Target()
    generations: list[Generation] = []

    async def main() -> None:
        async with make_engine(target, "lookup", capacity=capacity) as engine:
            for which in range(4):
                generation = engine.generate(prompt(which))
                await generation.__aenter__()
                generations.append(generation)
            await anext(generations[0])
        assert target.open_slots == 0  # as soon as the engine is left, not later
        for which, generation in enumerate(generations):
            assert generation.finished.is_set()
            assert TEXTS[which].startswith(generation.result.data)
            async for _ in generation:  # what was delivered can be read, then it ends
                pass

    run(main, backend)
    assert_clean(target)


@both_loops
def test_an_error_in_the_engine_block_comes_out_as_it_is(backend: str) -> None:
    target = Target()

    async def main() -> None:
        with pytest.raises(KeyError):
            async with make_engine(target) as engine, engine.generate(prompt()):
                raise KeyError("mine")

    run(main, backend)
    assert_clean(target)


# ---------------------------------------------------------------- slow clients


@both_loops
@CAPACITIES
def test_D6_a_client_that_does_not_read_stops_its_own_generation_and_no_other(backend: str, capacity: int) -> None:
    target = Target((b" ha" * 200, TEXTS[1]))
    steps: list[int] = []

    def step(batch: Sequence[Any]) -> None:
        steps.extend(rows.tokens[0] for rows in batch if VOCABULARY.data(rows.tokens[0]) == b" ha")

    async def main() -> None:
        async with make_engine(target, capacity=capacity) as engine:
            async with engine.generate(prompt()) as slow:
                for _ in range(3):
                    assert await engine.complete(prompt(1)) == TEXTS[1]
                await anyio.wait_all_tasks_blocked()
                target.on_step = step
                assert await engine.complete(prompt(1)) == TEXTS[1]
                neighbour = len([id for id in SCRIPTS[1] if VOCABULARY.data(id) == b" ha"])
                assert len(steps) <= neighbour  # the slow one's own did not go on
                standing = len(slow.result.data) // 3
                assert standing <= 5 * capacity + 5
                assert b"".join([event.data async for event in slow if isinstance(event, Chunk)]) == b" ha" * 200
            assert slow.result.finish_reason == "stop"

    run(main, backend)
    assert_clean(target)


@both_loops
@CAPACITIES
@pytest.mark.parametrize("way", ["cancel", "leave", "leave the engine"])
def test_D6_shutdown_while_everything_is_full(backend: str, capacity: int, way: str) -> None:
    target = Target((b" ha" * 200, TEXTS[1]))

    async def main() -> None:
        async with make_engine(target, capacity=capacity) as engine:
            slow = engine.generate(prompt())
            await slow.__aenter__()
            assert await engine.complete(prompt(1)) == TEXTS[1]
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(2.0):
                if way == "cancel":
                    slow.cancel()
                    await slow.finished.wait()
                    events = [event async for event in slow]
                    streamed = b"".join(event.data for event in events if isinstance(event, Chunk))
                    assert streamed == slow.result.data
                    assert isinstance(events[-1], Done)
                    assert events[-1].reason == "cancelled"
                elif way == "leave":
                    await slow.__aexit__(None, None, None)
            if way != "leave the engine":
                assert target.open_slots == 0
                assert await engine.complete(prompt(1)) == TEXTS[1]
        assert slow.result.finish_reason == "cancelled"
        assert (b" ha" * 200).startswith(slow.result.data)

    run(main, backend, seconds=5.0)
    assert_clean(target)


# ---------------------------------------------------------------- targets that fail


@both_loops
@pytest.mark.parametrize("drafter", [None, "lookup"])
def test_a_target_that_fails_in_the_middle_leaves_what_is_committed(backend: str, drafter: str | None) -> None:
    target = Target()
    passes = 0

    def step(batch: Sequence[Any]) -> None:
        nonlocal passes
        passes += 1
        if passes == 12:
            raise TargetError("out of memory")

    async def main() -> None:
        nonlocal passes
        # no datastore, so that the second one takes as many passes until it fails as the first
        async with make_engine(target, drafter, datastore=None) as engine:
            target.on_step = step
            generation = engine.generate(prompt())
            streamed = await collect(generation)
            result = generation.result
            assert (result.finish_reason, result.error) == ("error", "out of memory")
            assert streamed == result.data == VOCABULARY.join(result.token_ids)
            assert b"" < streamed < TEXTS[0]
            assert TEXTS[0].startswith(streamed)
            with pytest.raises(TargetError, match="out of memory"):
                generation.raise_for_error()
            passes, chunks = 0, []
            with pytest.raises(TargetError, match="out of memory"):
                async for chunk in engine.stream(prompt()):
                    chunks.append(chunk)
            assert b"".join(chunks) == streamed
            assert await engine.complete(prompt()) == TEXTS[0]
            assert target.open_slots == 0

    run(main, backend)
    assert_clean(target)


@both_loops
@pytest.mark.parametrize("once", [False, True])
def test_a_failure_in_a_shared_batch_reaches_only_its_own_generation(backend: str, once: bool) -> None:
    """Also where the device recovers at once: the batch is repeated and nobody notices."""
    target = Target()
    failed = threading.Event()
    shared: list[int] = []

    def step(batch: Sequence[Any]) -> None:
        mine = [rows for rows in batch if target._slots[rows.slot].tokens[:1] == [ord("A")]]
        if mine and len(target._slots[mine[0].slot].tokens) > 8 and not (once and failed.is_set()):
            failed.set()
            shared.append(len(batch))
            raise RuntimeError("device error")

    async def main() -> None:
        target.on_step = step
        async with make_engine(target, None) as engine:
            # the first pass waits until all are there, so that they share batches from then on
            together = threading.Event()
            open_hooks = target.on_step
            target.on_step = lambda batch: together.wait(5.0) and open_hooks(batch)
            generations = [engine.generate(prompt(which)) for which in (0, 1, 2)]
            async with anyio.create_task_group() as tasks:
                for generation in generations:
                    tasks.start_soon(collect, generation)
                await anyio.wait_all_tasks_blocked()
                together.set()
            assert_whole(generations[1], 1)
            assert_whole(generations[2], 2)
            if once:
                assert_whole(generations[0])
            else:
                assert generations[0].result.finish_reason == "error"
                assert TEXTS[0].startswith(generations[0].result.data)
            assert max(shared) > 1, "never in one batch: the test shows nothing"

    run(main, backend)
    assert_clean(target)


@both_loops
def test_a_target_that_fails_to_open_fails_that_generation(backend: str) -> None:
    target = Target()

    def broken() -> None:
        target.on_open = lambda: None
        raise RuntimeError("no memory for a slot")

    async def main() -> None:
        async with make_engine(target, "lookup") as engine:
            target.on_open = broken
            generation = engine.generate(prompt())
            assert await collect(generation) == b""
            assert generation.result.finish_reason == "error"
            assert "no memory for a slot" in (generation.result.error or "")
            target.on_open = broken
            with pytest.raises(TargetError, match="no memory for a slot"):
                await engine.complete(prompt())
            assert await engine.complete(prompt()) == TEXTS[0]

    run(main, backend)
    assert_clean(target)


@both_loops
def test_a_device_that_is_gone_ends_every_generation_without_waiting(backend: str) -> None:
    class Dying(Target):
        dead = False

        def check(self, *_: object) -> None:
            if self.dead:
                raise RuntimeError("device is gone")

        def rollback(self, slot: Any, length: int) -> None:
            self.check()
            super().rollback(slot, length)

        def length(self, slot: Any) -> int:
            self.check()
            return super().length(slot)

    target = Dying()

    def step(_: object) -> None:
        if len(steps) == 9:
            target.dead = True
        steps.append(1)
        target.check()

    async def main() -> None:
        target.on_step = step
        async with make_engine(target) as engine:
            generations = [engine.generate(prompt(which)) for which in (0, 1)]
            async with anyio.create_task_group() as tasks:
                for generation in generations:
                    tasks.start_soon(collect, generation)
            assert {generation.result.finish_reason for generation in generations} == {m.FinishReason.ERROR}

    steps: list[int] = []
    run(main, backend, seconds=5.0)
    assert_clean(target)


@both_loops
def test_a_target_that_hangs_does_not_keep_the_engine(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(generation_module, "RELEASE_SECONDS", 0.05)
    target, gate = Target(), Gate()
    target.on_step = gate

    async def main() -> None:
        async with make_engine(target, "lookup") as engine:
            async with engine.generate(prompt()) as generation:
                await reached(gate.begun)
            assert not generation.finished.is_set()
        assert generation.finished.is_set()
        assert target.open_slots == 1

    run(main, backend, seconds=5.0)
    gate.go.set()
    assert_clean(target)


@both_loops
def test_a_defect_in_a_stage_ends_its_generation_only(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target()
    receive = RevealerStage.receive
    broken: list[RevealerStage] = []

    def faulty(stage: RevealerStage, message: Any) -> list[m.Message]:
        if isinstance(message, m.Commit) and message.offset > 10 and (not broken or broken[0] is stage):
            broken.append(stage)
            raise StageError("revealer: a defect")
        return receive(stage, message)

    async def main() -> None:
        async with make_engine(target, "lookup") as engine:
            monkeypatch.setattr(RevealerStage, "receive", faulty)
            generation = engine.generate(prompt())
            with pytest.raises(StageError, match="a defect"):
                await collect(generation)
            assert generation.result.finish_reason == "error"
            assert TEXTS[0].startswith(generation.result.data)
            async with several(engine, [1, 2]):
                pass
            assert target.open_slots == 0

    run(main, backend)
    assert_clean(target)


@both_loops
def test_who_leaves_the_engine_finds_every_slot_given_back(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a generation that broke, on a device that takes its time: the thread is waited for."""

    def faulty(stage: RevealerStage, message: Any) -> list[m.Message]:
        raise StageError("revealer: a defect")

    target = Target()
    target.on_close = lambda: time.sleep(0.05)

    async def main() -> None:
        monkeypatch.setattr(RevealerStage, "receive", faulty)
        async with make_engine(target) as engine:
            with pytest.raises(StageError):
                await engine.complete(prompt())
        assert target.open_slots == 0

    run(main, backend)


@both_loops
def test_an_unknown_failure_in_a_generation_is_still_one_of_ours(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(stage: RevealerStage, message: Any) -> list[m.Message]:
        raise ZeroDivisionError("oops")

    target = Target()

    async def main() -> None:
        monkeypatch.setattr(RevealerStage, "receive", faulty)
        async with make_engine(target) as engine:
            with pytest.raises(GrimboostError, match="oops") as caught:
                await engine.complete(prompt())
            assert isinstance(caught.value.__cause__, ZeroDivisionError)

    run(main, backend)
    assert_clean(target)


# ---------------------------------------------------------------- drafters that fail


class Faulty:
    """The oracle, except that the `nth` call of `method` does `fault`."""

    name = "faulty"

    def __init__(self, method: str, nth: int, fault: Callable[[], Any]) -> None:
        self.method, self.nth, self.fault = method, nth, fault
        self.calls: dict[str, int] = {}
        self.inner = oracle(longest=10)

    def at(self, method: str) -> Any:
        self.calls[method] = self.calls.get(method, 0) + 1
        return self.fault() if method == self.method and self.calls[method] == self.nth else None

    def begin(self) -> DraftSession:
        self.at("begin")
        return FaultySession(self, self.inner.begin())


class FaultySession:
    def __init__(self, drafter: Faulty, inner: DraftSession) -> None:
        self.drafter, self.inner = drafter, inner

    def extend(self, committed: bytes) -> None:
        self.drafter.at("extend")
        self.inner.extend(committed)

    def propose(self, ahead: bytes, limit: int) -> Proposal:
        given = self.drafter.at("propose")
        return self.inner.propose(ahead, limit) if given is None else given


def raising() -> None:
    raise RuntimeError("drafter is broken")


@both_loops
@pytest.mark.parametrize(
    ("method", "nth"),
    [("begin", 1), ("extend", 1), ("extend", 2), ("extend", 4), ("propose", 1), ("propose", 2), ("propose", 5)],
)
def test_a_drafter_that_raises_costs_speed_never_output(backend: str, method: str, nth: int) -> None:
    drafter = Faulty(method, nth, raising)

    async def main() -> None:
        async with make_engine(drafter=drafter) as engine:
            async with several(engine, [0]) as [generation]:
                pass
            assert drafter.calls[method] == nth  # it was reached, and this generation asked no more
            first = generation.result.statistics.target_passes
            async with several(engine, [0]) as [generation]:
                pass
            assert generation.result.statistics.target_passes <= first  # the next one drafts again

    run(main, backend)


NONSENSE: dict[str, Callable[[], Any]] = {
    "over the limit": lambda: Proposal(b"x" * 5000, (DraftToken(5000, 0.9),)),
    "tokens too short": lambda: Proposal(b" the quick", (DraftToken(3, 0.9),)),
    "tokens too long": lambda: Proposal(b" the", (DraftToken(9, 0.9),)),
    "no tokens": lambda: Proposal(b" the"),
    "negative length": lambda: Proposal(b" the", (DraftToken(7, 0.9), DraftToken(-3, 0.9))),
    "confidence is nan": lambda: Proposal(b" the", (DraftToken(4, float("nan")),)),
    "confidence over one": lambda: Proposal(b" the", (DraftToken(4, 1e300),)),
    "a float of numpy": lambda: Proposal(b" the", (DraftToken(4, np.float32(0.5)),)),  # type: ignore[arg-type]
    "text": lambda: Proposal(" the", (DraftToken(4, 0.9),)),  # type: ignore[arg-type]
    "not a proposal": lambda: 5,
}


@pytest.mark.parametrize("kind", list(NONSENSE))
@pytest.mark.parametrize("nth", [1, 3])
def test_a_drafter_that_talks_nonsense_costs_speed_never_output(kind: str, nth: int, tmp_path: Any) -> None:
    """Recorded as well: whatever it said, the log holds it and replays."""
    from grimboost.log import Log
    from grimboost.replaying import replay

    drafter, path = Faulty("propose", nth, NONSENSE[kind]), tmp_path / "nonsense.grimlog"

    async def main() -> None:
        async with make_engine(drafter=drafter) as engine:
            async with several(engine, [0], record=path):
                pass
            assert drafter.calls["propose"] >= nth

    run(main)
    log = Log.open(path)
    assert replay(log) is None
    assert any(isinstance(entry.message, m.DraftFailed) for entry in log)


@both_loops
@pytest.mark.parametrize(("method", "nth"), [("begin", 1), ("extend", 3), ("propose", 1), ("propose", 3)])
def test_a_drafter_that_hangs_costs_speed_never_output(backend: str, method: str, nth: int) -> None:
    hang, target = threading.Event(), Target()
    drafter = Faulty(method, nth, lambda: hang.wait(20.0) and None)

    async def main() -> None:
        async with make_engine(target, drafter) as engine:
            async with several(engine, [0, 1, 2]):
                pass
            assert drafter.calls[method] >= nth
            async with several(engine, [0]):  # the drafter still hangs
                pass

    run(main, backend, seconds=8.0)
    assert target.open_slots == 0
    hang.set()
    assert_clean(target)


@both_loops
def test_a_generation_that_has_ended_keeps_no_drafter_session(backend: str) -> None:
    sessions: list[weakref.ref[Any]] = []

    class Drafter(Faulty):
        def begin(self) -> DraftSession:
            session = super().begin()
            sessions.append(weakref.ref(session))
            return session

    async def main() -> None:
        async with make_engine(drafter=Drafter("none", 0, raising)) as engine:
            async with several(engine, [0]) as [kept]:
                pass
            async with several(engine, [1]):  # an answer to it means that the thread has let go of the first
                pass
            gc.collect()
            assert sessions[0]() is None
            assert kept.result.data == TEXTS[0]

    run(main, backend)


# ---------------------------------------------------------------- limits


def test_budgets_and_stop_strings_cut_at_one_place() -> None:
    async def main() -> None:
        async with make_engine(drafter=oracle()) as engine:
            text = await engine.complete(prompt(1), stop=(" ha ha!",))
            assert text == TEXTS[1][: TEXTS[1].index(b" ha ha!")]
            for budget in range(len(SCRIPTS[0]) + 2):
                generation = engine.generate(prompt(), max_new_tokens=budget)
                await collect(generation)
                assert list(generation.result.token_ids) == [*SCRIPTS[0], END][:budget]
                assert generation.result.finish_reason == ("stop" if budget > len(SCRIPTS[0]) else "length")

    run(main)


def test_B9_near_the_context_limit() -> None:
    async def main() -> None:
        for limit in (PROMPT_TOKENS, PROMPT_TOKENS + 1, PROMPT_TOKENS + 6):
            target = Target(context_limit=limit)
            async with make_engine(target, oracle()) as engine:
                generation = engine.generate(prompt())
                await collect(generation)
                assert list(generation.result.token_ids) == SCRIPTS[0][: limit - PROMPT_TOKENS]
                assert generation.result.finish_reason == "length"

    run(main)


# ---------------------------------------------------------------- misuse


class Untouched(Target):
    """A target that must not be asked for anything."""

    def open(self, rule: Any) -> Any:
        raise AssertionError("work was done")


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "empty": ((), {}, "prompt is empty"),
    "no tokenizer": ("hello", {}, "no tokenizer"),
    "id too large": ((65, len(VOCABULARY)), {}, f"prompt id {len(VOCABULARY)} at place 1"),
    "id negative": ((65, 66, -1), {}, "prompt id -1 at place 2"),
    "over the context limit": ((65,) * 4097, {}, "4097 tokens.*limit is 4096"),
    "unknown option": ((65,), {"max_tokens": 5}, "unknown option 'max_tokens'"),
    "wrong type of option": ((65,), {"max_new_tokens": "5"}, "max_new_tokens is '5'"),
    "negative budget": ((65,), {"max_new_tokens": -1}, "max_new_tokens is -1; it has to be between 0"),
    "bytes": (b"hello", {}, "prompt is bytes"),
    "numbers that are no ids": ((65.0, 66.0), {}, "neither text nor token ids"),
    "nothing": (None, {}, "neither text nor token ids"),
    "a batch of prompts": (((65, 66), (65, 67)), {}, "neither text nor token ids"),
    "a stop that is one string": ((65,), {"stop": "x"}, "stop is 'x'"),
}


@pytest.mark.parametrize("kind", list(WRONG))
def test_wrong_input_is_refused_before_any_work(kind: str) -> None:
    given, options, message = WRONG[kind]

    async def main() -> None:
        async with make_engine(Untouched(), "lookup") as engine:
            for entry in (engine.generate, engine.stream):
                with pytest.raises(MisuseError, match=message):
                    entry(given, **options)
            with pytest.raises(MisuseError, match=message):
                await engine.complete(given, **options)
            statistics = engine.statistics()
            assert (statistics.generations, statistics.target.jobs) == (0, 0)

    run(main)


def test_prompt_ids_may_come_as_an_array_or_a_tensor_also_when_recorded(tmp_path: Any) -> None:
    async def main() -> None:
        async with make_engine() as engine:
            for ids in (list(prompt()), np.array(prompt()), torch.tensor(prompt())):
                generation = engine.generate(ids, record=tmp_path / "ids.grimlog")
                assert await collect(generation) == TEXTS[0]
                assert all(type(id) is int for id in generation.request.prompt.prompt_ids)

    run(main)


def test_parameters_and_options_merge() -> None:
    async def main() -> None:
        async with make_engine() as engine:
            params = Parameters(max_new_tokens=4)
            assert await engine.complete(prompt(), params) == VOCABULARY.join(SCRIPTS[0][:4])
            assert await engine.complete(prompt(), params, max_new_tokens=2) == VOCABULARY.join(SCRIPTS[0][:2])

    run(main)


@both_loops
def test_an_engine_is_used_inside_its_block_and_entered_once(backend: str) -> None:
    async def main() -> None:
        engine = make_engine()
        for entry in (engine.generate, engine.stream):
            with pytest.raises(MisuseError, match="async with"):
                entry(prompt())
        async with engine:
            with pytest.raises(MisuseError, match="entered once"):
                await engine.__aenter__()
            assert await engine.complete(prompt()) == TEXTS[0]
        with pytest.raises(MisuseError, match="async with"):
            engine.generate(prompt())
        with pytest.raises(MisuseError, match="entered once"):
            await engine.__aenter__()

    run(main, backend)
    assert_clean(Target())


@both_loops
def test_a_generation_is_entered_once(backend: str) -> None:
    async def main() -> None:
        async with make_engine() as engine:
            async with engine.generate(prompt()) as generation:
                with pytest.raises(MisuseError, match="entered once"):
                    await generation.__aenter__()
                async for _ in generation:
                    pass
            assert_whole(generation)
            with pytest.raises(MisuseError, match="entered once"):
                await generation.__aenter__()

    run(main, backend)


def test_a_drafter_by_a_wrong_name_is_refused() -> None:
    with pytest.raises(MisuseError, match="there is no drafter 'loookup'"):
        make_engine(drafter="loookup")


def test_the_judge_judges() -> None:
    """The scripted target itself: anything fed beside the script is answered with poison."""
    assert TEXTS[0].find(b"#") == -1
    target = Target()
    follow = target._next_token
    assert follow is not None
    assert follow([*prompt(), *SCRIPTS[0][:3]]) == SCRIPTS[0][3]
    assert follow([*prompt(), *SCRIPTS[0][:2], POISON]) == POISON
