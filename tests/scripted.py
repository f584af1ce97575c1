"""A world without a model, shared by the tests of the shell: a vocabulary, a few texts, a target that knows them.

The target is a strict judge: its next token depends on every id that was fed. A cache that holds anything but the
committed path answers `POISON`, so a wrong rollback or a mixed-up slot shows in the output at once.
"""

import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import coroutine
from typing import Any

import anyio
import pytest

from grimboost.adapters.drafter import Drafter
from grimboost.adapters.script_drafter import ScriptDrafter
from grimboost.adapters.scripted_target import ScriptedTarget
from grimboost.adapters.segmentation import LongestMatchSegmenter
from grimboost.adapters.target import Chosen, Rows, Slot
from grimboost.adapters.vocabulary import Vocabulary
from grimboost.engine import Engine
from grimboost.generation import Generation
from grimboost.loading import LoadedTarget
from grimboost.stages.configuration import CostCurve
from grimboost.stages.sampling_rule import SamplingRule

WORDS = (b" the", b" quick", b" fox", b" jumps", b" over", b" lazy", b" dog", b" ha", b"th", b"er", b" yes")
VOCABULARY = Vocabulary([*(bytes([byte]) for byte in range(256)), *WORDS, None])
END = len(VOCABULARY) - 1
POISON = VOCABULARY.ids[b"#"]
CURVE = CostCurve((1, 2, 4, 8, 16), (20.0, 21.0, 22.0, 24.0, 28.0))

PROMPT_TOKENS = 3
TEXTS = (
    b" the quick fox jumps over the quick fox \xf0\x9f\x8d\x82 jumps over the quick fox yes",
    b" dog ha ha ha ha ha! the lazy dog ha ha \xe4\xb8\xad\xe6\x96\x87 ha ha ha!",
    b" over and over and over the lazy fox, over and over \xff\xfe\x00 and over",
    b"abcabcabX abcabcabX abc",
)

BOUND = 5.0
"""Seconds after which a test gives up on something that should come at once."""

both_loops = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def prompt(which: int = 0) -> tuple[int, ...]:
    """The prompt whose answer is `TEXTS[which]`; its text does not give the answer away."""
    return (ord("A") + which, ord(">"), ord(">"))


def ids_of(text: bytes) -> list[int]:
    """The path the target takes for a text, without its end."""
    return [id for id, _ in LongestMatchSegmenter(VOCABULARY).cut(text)]


SCRIPTS = tuple(ids_of(text) for text in TEXTS)


def judge(scripts: Sequence[Sequence[int]] = SCRIPTS) -> Callable[[Sequence[int]], int]:
    """A next-token function: the script that the prompt names, as long as the prefix is that script."""

    def next_token(prefix: Sequence[int]) -> int:
        script = scripts[prefix[0] - ord("A")]
        place = len(prefix) - PROMPT_TOKENS
        if place < 0 or tuple(prefix[PROMPT_TOKENS:]) != tuple(script[:place]):
            return POISON
        return script[place] if place < len(script) else END

    return next_token


def forgiving(texts: Sequence[bytes] = TEXTS) -> Callable[[Sequence[int]], int]:
    """A next-token function that goes on with its text at the same offset, whatever stands before it."""

    def next_token(prefix: Sequence[int]) -> int:
        text, at = texts[prefix[0] - ord("A")], len(VOCABULARY.join(prefix[PROMPT_TOKENS:]))
        return ids_of(text[at : at + VOCABULARY.longest])[0] if at < len(text) else END

    return next_token


class Target(ScriptedTarget):
    """The scripted target with hooks, called in the worker's thread before the real thing."""

    def __init__(self, texts: Sequence[bytes] = TEXTS, **options: Any) -> None:
        super().__init__(VOCABULARY, judge([ids_of(text) for text in texts]), **options)
        self.on_open: Callable[[], object] = lambda: None
        self.on_step: Callable[[Sequence[Rows]], object] = lambda batch: None
        self.on_close: Callable[[], object] = lambda: None

    def open(self, rule: SamplingRule) -> Slot:
        self.on_open()
        return super().open(rule)

    def step(self, batch: Sequence[Rows]) -> list[list[Chosen]]:
        self.on_step(batch)
        return super().step(batch)

    def close(self, slot: Slot) -> None:
        self.on_close()
        super().close(slot)


def make_engine(
    target: ScriptedTarget | None = None, drafter: Drafter | str | None = None, **options: Any
) -> Engine:
    """An engine around a scripted target; `drafter` as for `Engine`."""
    return Engine(LoadedTarget(target or Target(), CURVE, end_ids={END: ["x"]}), drafter, **options)


def oracle(
    texts: Sequence[bytes] = TEXTS, broken_at: int | None = None, whole: bool = True, longest: int = 160
) -> ScriptDrafter:
    """Drafts the true continuation, `longest` bytes at a time; with `broken_at`, every n-th byte is wrong."""

    def script(context: bytes, limit: int) -> bytes:
        at = len(context) - PROMPT_TOKENS
        if at < 0:
            return b""
        data = bytearray(texts[context[0] - ord("A")][at : at + min(limit, longest)])
        for place in range(len(data)):
            if broken_at and (at + place) % broken_at == broken_at - 1:
                data[place] ^= 1
        return bytes(data)

    return ScriptDrafter(script, whole=whole)


class Gate:
    """A step that blocks until it is let go, as a device does: without holding the interpreter."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.begun.set()
        assert self.go.wait(BOUND), "nobody let the step go"


async def reached(event: threading.Event) -> None:
    """Wait for a thread without stopping the loop."""
    assert await anyio.to_thread.run_sync(event.wait, BOUND)


async def collect(generation: Generation) -> bytes:
    """Enter, read to the end, leave; the bytes that were streamed."""
    from grimboost.messages import Chunk

    async with generation:
        return b"".join([event.data async for event in generation if isinstance(event, Chunk)])


def assert_whole(generation: Generation, which: int = 0) -> None:
    """The generation came to exactly what the target alone says."""
    result = generation.result
    assert result.data == TEXTS[which]
    assert list(result.token_ids) == [*SCRIPTS[which], END]
    assert result.finish_reason == "stop"


def assert_clean(target: ScriptedTarget) -> None:
    """After an event loop has ended: the worker threads end by themselves and no slot is left open."""
    for thread in threading.enumerate():
        # a packed target's team belongs to that target, which another test may have kept
        if thread.name.startswith("grimboost") and not thread.name.startswith("grimboost team"):
            thread.join(5.0)
            assert not thread.is_alive(), f"{thread.name} is still running"
    assert target.open_slots == 0


def run(main: Callable[[], Awaitable[Any]], backend: str = "asyncio", seconds: float = 8.0) -> Any:
    """Run `main` within a bound, shorter than those of the engine; on asyncio no task may be left behind it."""

    async def bounded() -> Any:
        with anyio.fail_after(seconds):
            value = await main()
        if backend == "asyncio":
            import asyncio

            assert asyncio.all_tasks() == {asyncio.current_task()}
        return value

    return anyio.run(bounded, backend=backend)


@coroutine
def interrupted(inner: Coroutine[Any, Any, Any], at: int, interrupt: Callable[[], object]) -> Any:
    """Run a coroutine and call `interrupt` when it awaits for the `at`-th time. Returns (result, awaits)."""
    awaits, throw, value = 0, None, None
    while True:
        try:
            trap = inner.throw(throw) if throw is not None else inner.send(value)
        except StopIteration as stop:
            return stop.value, awaits
        awaits += 1
        if awaits == at:
            interrupt()
        throw = value = None
        try:
            value = yield trap
        except BaseException as error:
            throw = error
