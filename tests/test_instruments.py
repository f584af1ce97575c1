"""Hooks: what they are told, and that one which raises costs itself and nothing else, in loop and threads."""

import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import anyio
import pytest
from scripted import Target, assert_clean, assert_whole, both_loops, collect, make_engine, oracle, prompt, run

from grimboost.errors import MisuseError
from grimboost.instruments import HOOKS, Instrument, Instruments, Turn


class Notes(Instrument):
    """Everything that it was told, by hook."""

    def __init__(self) -> None:
        self.told: dict[str, list[tuple[Any, ...]]] = {name: [] for name in HOOKS}

    def generation_started(self, *what: Any) -> None:
        self.told["generation_started"].append(what)

    def generation_ended(self, *what: Any) -> None:
        self.told["generation_ended"].append(what)

    def turn(self, *what: Any) -> None:
        self.told["turn"].append(what)

    def batch_begins(self, *what: Any) -> None:
        self.told["batch_begins"].append(what)

    def batch(self, *what: Any) -> None:
        self.told["batch"].append(what)

    def taken(self, *what: Any) -> None:
        self.told["taken"].append(what)


def raising(name: str, error: BaseException) -> object:
    """An instrument that notes everything, and raises in one hook."""

    def hook(self: Notes, *what: Any) -> None:
        getattr(Notes, name)(self, *what)
        raise error

    return type("Broken", (Notes,), {name: hook})()


@both_loops
def test_every_hook_is_told(backend: str) -> None:
    notes = Notes()

    async def main() -> None:
        async with make_engine(drafter=oracle(broken_at=7), instruments=[notes]) as engine:
            generation = engine.generate(prompt())
            await collect(generation)
            assert_whole(generation)

    run(main, backend)
    assert all(notes.told.values())
    turns = [turn for (turn,) in notes.told["turn"]]
    assert {turn.stage for turn in turns} == {"drafter", "gate", "verifier", "cascade", "revealer"}
    for stage in {turn.stage for turn in turns}:
        own: list[Turn] = [turn for turn in turns if turn.stage == stage]
        assert all(turn.idle <= turn.received <= turn.decided <= turn.sent for turn in own)
        assert all(one.sent == other.idle for one, other in pairwise(own))
        assert all(0 <= turn.blocked <= turn.sent - turn.decided and turn.queued >= 0 for turn in own)
    batches = [batch for (batch,) in notes.told["batch"]]
    assert len(batches) == len(notes.told["batch_begins"])
    assert all(batch.idle <= batch.begin <= batch.end for batch in batches)
    assert all(one.submitted <= batch.begin for batch in batches for one in batch.work)
    asked_at = [(asked, at) for _, _, asked, at in notes.told["taken"]]
    assert all(asked <= at for asked, at in asked_at)
    assert notes.told["taken"][-1][1] is None


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(3), RecursionError()], ids=repr)
def test_one_that_raises_is_removed_and_logged_and_breaks_nothing(
    name: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    target, broken, sound = Target(), raising(name, error), Notes()

    async def main() -> None:
        async with make_engine(target, oracle(broken_at=7), instruments=[broken, sound]) as engine:
            for _ in range(2):
                generation = engine.generate(prompt())
                await collect(generation)
                assert_whole(generation)

    with caplog.at_level(logging.WARNING):
        run(main)
    assert isinstance(broken, Notes)
    assert 1 <= len(broken.told[name]) <= 2  # a thread may have begun to tell it once more
    assert len(sound.told[name]) > len(broken.told[name])
    assert len(sound.told["generation_ended"]) == 2
    warnings = [record.message for record in caplog.records]
    assert all("an instrument failed and is removed (instrument=Broken.hook" in message for message in warnings)
    assert 1 <= len(warnings) <= 2
    assert repr(error) in warnings[0]
    assert_clean(target)


def test_ctrl_c_in_a_hook_is_ctrl_c() -> None:
    instruments = Instruments([raising("turn", KeyboardInterrupt())])
    with pytest.raises(KeyboardInterrupt):
        instruments.tell(instruments.turn, None)
    assert instruments.turn


@pytest.mark.parametrize(
    "make",
    [
        lambda call: type("Static", (), {"turn": staticmethod(call)})(),
        lambda call: _with_attribute(call),
        lambda call: type(
            "Called", (), {"turn": type("Hook", (), {"__call__": lambda _, *what: call(*what)})()}
        )(),
    ],
    ids=["static", "attribute", "object"],
)
def test_any_callable_is_a_hook_and_is_removed_when_it_raises(make: Callable[[Any], object]) -> None:
    calls: list[object] = []

    def call(*what: object) -> None:
        calls.append(what)
        raise ValueError

    instruments = Instruments([make(call)])
    for _ in range(3):
        instruments.tell(instruments.turn, None)
    assert len(calls) == 1
    assert instruments.turn == ()


def _with_attribute(call: Callable[..., object]) -> object:
    one = type("Attribute", (), {})()
    one.turn = call
    return one


def test_what_is_no_instrument_is_refused() -> None:
    instruments = Instruments()
    for wrong in (object(), Instrument(), type("Wrong", (), {"turn": 3})()):
        with pytest.raises(MisuseError, match="is no instrument: it has none of the hooks generation_started"):
            instruments.add(wrong)

    class Awaited:
        async def turn(self, turn: Turn) -> None: ...

    with pytest.raises(MisuseError, match=r"Awaited.turn is a coroutine function"):
        instruments.add(Awaited())
    instruments.remove(object())
    assert instruments.turn == ()


def test_an_instrument_can_come_and_go_while_generations_run() -> None:
    notes, target = Notes(), Target()

    async def main() -> None:
        async with make_engine(target, oracle(broken_at=7)) as engine:
            async with engine.generate(prompt()) as generation:
                async for _ in generation:
                    engine.instruments.add(notes)
                    await anyio.lowlevel.checkpoint()
                    engine.instruments.remove(notes)
            assert_whole(generation)
            told = len(notes.told["turn"])
            await collect(engine.generate(prompt()))
            assert len(notes.told["turn"]) == told

    run(main)
    assert_clean(target)
