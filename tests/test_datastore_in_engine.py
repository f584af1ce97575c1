"""Engines with a datastore: the second time takes a fraction of the passes, and no output depends on it."""

import gc
import logging
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import WORDS, Target, assert_clean, both_loops, collect, make_engine, prompt, run

from grimboost import engine as engine_module
from grimboost.adapters.datastore import Datastore
from grimboost.adapters.lookup_drafter import LookupDrafter
from grimboost.engine import Engine
from grimboost.errors import MisuseError
from grimboost.log import Log
from grimboost.replaying import replay


def story(seed: int, words: int = 40) -> bytes:
    """A text that says nothing twice in a row, so that looking up in it alone helps little."""
    drawn = random.Random(seed)
    return b"".join(drawn.choice(WORDS) + b"%d" % drawn.randrange(100) for _ in range(words))


STORIES = [story(seed) for seed in range(4)]


async def ask(engine: Engine, which: Sequence[int], **options: Any) -> int:
    """One after another; outputs are checked. Returns the passes that they took."""
    passes = 0
    for one in which:
        generation = engine.generate(prompt(one), **options)
        assert await collect(generation) == STORIES[one]
        passes += generation.result.statistics.target_passes
    return passes


@both_loops
def test_the_second_round_takes_at_most_a_third_of_the_passes(backend: str) -> None:
    target = Target(STORIES)

    async def main() -> None:
        async with make_engine(target, "lookup") as engine:
            first = await ask(engine, range(4))
            assert await ask(engine, range(4)) <= first / 3

    run(main, backend)
    assert_clean(target)


@both_loops
@pytest.mark.parametrize("off", [None, "none"])
def test_it_can_be_turned_off(backend: str, off: str | None) -> None:
    async def main() -> None:
        async with make_engine(Target(STORIES), "lookup", datastore=off) as engine:
            assert await ask(engine, range(4)) > 0.8 * await ask(engine, range(4)) > 0

    run(main, backend)


@both_loops
def test_generations_at_once_share_one_store(backend: str) -> None:
    target = Target(STORIES)

    async def main() -> None:
        async with make_engine(target, "lookup") as engine:
            counts: list[tuple[int, int]] = []

            async def client(one: int) -> None:
                counts.append((await ask(engine, [one, one]), await ask(engine, [one])))

            async with anyio.create_task_group() as tasks:
                for one in (0, 1, 2, 3, 0, 1):
                    tasks.start_soon(client, one)
            assert sum(last for _, last in counts) <= sum(before for before, _ in counts) / 3
            assert isinstance(engine.drafter, LookupDrafter)
            assert engine.drafter.datastore
            assert engine.drafter.datastore.statistics().texts == 4

    run(main, backend)
    assert_clean(target)


@both_loops
def test_what_one_engine_kept_in_a_file_the_next_one_uses(backend: str, tmp_path: Path) -> None:
    path, target = tmp_path / "past", Target(STORIES)

    async def main() -> None:
        async with make_engine(target, "lookup", datastore=path) as engine:
            first = await ask(engine, range(4))
        async with make_engine(target, "lookup", datastore=str(path)) as engine:
            assert await ask(engine, range(4)) <= first / 3
        async with make_engine(target, "lookup", datastore=path) as engine:
            assert await ask(engine, range(4)) <= first / 3

    run(main, backend)
    assert_clean(target)
    assert Datastore(path=path).statistics().texts == 4


def test_a_cancelled_generation_is_remembered_as_far_as_it_came() -> None:
    async def main() -> None:
        async with make_engine(Target(STORIES), "lookup") as engine:
            alone = await ask(engine, [1])
            async with engine.generate(prompt(0)) as generation:
                size = 0
                async for event in generation:
                    size += len(getattr(event, "data", b""))
                    if size > len(STORIES[0]) // 2:
                        break
            assert await ask(engine, [0]) < 0.8 * alone

    run(main)


def test_a_drafter_may_be_shared_by_engines() -> None:
    drafter = LookupDrafter(Datastore())

    async def main() -> None:
        async with make_engine(Target(STORIES), drafter) as one, make_engine(Target(STORIES), drafter) as other:
            first = await ask(one, range(4))
            assert await ask(other, range(4)) <= first / 3

    run(main)


@settings(max_examples=25, deadline=None)
@given(st.data(), st.random_module())
def test_whatever_the_store_holds_the_output_is_the_targets_own(data: st.DataObject, _random: object) -> None:
    """Answers of others to the same prompt, broken ones, foreign bytes; on trio, in any order of tasks."""
    store = Datastore(capacity=data.draw(st.sampled_from([300, 5000])))
    for _ in range(data.draw(st.integers(0, 6))):
        answer = bytearray(data.draw(st.sampled_from([*STORIES, b"zz\xff\x00#" * 9])))
        for place in data.draw(st.lists(st.integers(0, len(answer) - 1), max_size=3)):
            answer[place] ^= 1
        which = data.draw(st.integers(0, 3))
        store.add(bytes(prompt(which)), bytes(answer))

    async def main() -> None:
        async with (
            make_engine(Target(STORIES), LookupDrafter(store)) as engine,
            anyio.create_task_group() as tasks,
        ):
            for one in range(4):
                tasks.start_soon(ask, engine, [one])

    run(main, "trio")


def test_a_log_of_drafts_from_the_store_replays(tmp_path: Path) -> None:
    record = tmp_path / "again.grimlog"

    async def main() -> None:
        async with make_engine(Target(STORIES), "lookup") as engine:
            await ask(engine, [0])
            await ask(engine, [0], record=record)

    run(main)
    log = Log.open(record)
    assert replay(log) is None  # without the store: what it proposed stands in the log


# ---------------------------------------------------------------- failures and misuse


class Forgetful(LookupDrafter):
    """Fails at what a drafter that remembers does."""

    def remember(self, prompt: bytes, output: bytes) -> None:
        raise RuntimeError("cannot remember")

    def settle(self) -> None:
        raise RuntimeError("cannot settle")


@both_loops
def test_a_drafter_that_cannot_remember_costs_nothing_else(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    target = Target(STORIES)

    async def main() -> None:
        async with make_engine(target, Forgetful()) as engine:
            await ask(engine, [0, 1])

    with caplog.at_level(logging.WARNING):
        run(main, backend)
    assert_clean(target)
    assert "cannot remember" in caplog.text
    assert "cannot settle" in caplog.text


def test_an_engine_does_not_wait_for_ever_for_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "CLOSE_SECONDS", 0.1)

    class Slow(LookupDrafter):
        def settle(self) -> None:
            time.sleep(1.0)

    async def main() -> float:
        begin = time.perf_counter()
        async with make_engine(Target(STORIES), Slow()) as engine:
            await ask(engine, [0])
        return time.perf_counter() - begin

    assert run(main) < 0.9
    gc.collect()


@pytest.mark.parametrize("drafter", [None, "none", LookupDrafter()], ids=["None", "none", "ready-made"])
def test_a_file_that_would_serve_nobody_is_refused(drafter: Any, tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="past would serve nobody"):
        make_engine(drafter=drafter, datastore=tmp_path / "past")


@both_loops
def test_a_wrong_place_is_refused_before_a_model_is_loaded(backend: str, tmp_path: Path) -> None:
    (tmp_path / "diary").write_text("dear diary")

    async def main() -> None:
        with pytest.raises(MisuseError, match="diary is no datastore"):
            await Engine.load("no/such/model", datastore=tmp_path / "diary")
        with pytest.raises(MisuseError, match="folder does not exist"):
            await Engine.load("no/such/model", datastore=tmp_path / "absent" / "past")

    run(main, backend)
    assert (tmp_path / "diary").read_text() == "dear diary"


# ---------------------------------------------------------------- the real target


@pytest.mark.model
def test_the_real_target_answers_a_question_asked_again_in_a_third_of_the_passes(tmp_path: Path) -> None:
    from grimboost.errors import ModelReferenceError

    async def main() -> None:
        question = "Name three colours of the rainbow and say where one sees them."
        counts, outputs = [], []
        try:
            engine = await Engine.load("smollm2-135m", datastore=tmp_path / "past")
        except ModelReferenceError as error:
            pytest.skip(f"the default target cannot be had here: {error}")
        async with engine:
            for _ in range(2):
                generation = engine.generate(question, max_new_tokens=40)
                outputs.append(await collect(generation))
                counts.append(generation.result.statistics.target_passes)
        assert outputs[0] == outputs[1]
        assert counts[1] <= counts[0] / 3

    run(main, seconds=120.0)
