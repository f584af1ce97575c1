"""Records the logs in `tests/logs/` anew: `.venv/bin/python tests/record_logs.py`. No model is needed.

Each is one generation of the scripted target. Times and the interleaving of the stages differ from run to run;
what was decided does not. A log that is replaced hides a change of behaviour, so record anew only on purpose.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import numpy as np
from numpy.typing import NDArray
from scripted import (
    END,
    TEXTS,
    VOCABULARY,
    Target,
    forgiving,
    ids_of,
    judge,
    make_engine,
    oracle,
    prompt,
)

from grimboost.adapters.drafter import Proposal
from grimboost.adapters.scripted_target import ScriptedTarget
from grimboost.engine import Engine
from grimboost.errors import TargetError
from grimboost.messages import Chunk

LOGS = Path(__file__).parent / "logs"
TIE_BOUND = 0.1


class _BrokenDrafter:
    """Drafts twice, then raises."""

    name = "broken"

    def __init__(self) -> None:
        self._inner = oracle(longest=10).begin()
        self._left = 2

    def begin(self) -> "_BrokenDrafter":
        return self

    def extend(self, committed: bytes) -> None:
        self._inner.extend(committed)

    def propose(self, ahead: bytes, limit: int) -> Proposal:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("out of ideas")
        return self._inner.propose(ahead, limit)


def _failing_target() -> Target:
    target, left = Target(), [9]

    def step(_: object) -> None:
        left[0] -= 1
        if not left[0]:
            raise TargetError("device lost")

    target.on_step = step
    return target


def _logits(prefix: Sequence[int]) -> NDArray[np.float32]:
    """The script's token, with a competitor 0.01 behind at every third place: a near-tie."""
    logits = np.zeros(len(VOCABULARY), np.float32)
    chosen = judge()(prefix)
    logits[chosen] = 5.0
    if len(prefix) % 3 == 0:
        logits[chosen - 1] = 4.99
    return logits


def _near_ties() -> ScriptedTarget:
    return ScriptedTarget(VOCABULARY, logits=_logits, row_invariant=False, tie_bound=TIE_BOUND)


def _spelled_out() -> ScriptedTarget:
    """The first text, with " the quick fox" chosen letter by letter the second time: same bytes, other tokens."""
    text = TEXTS[0]
    return ScriptedTarget(VOCABULARY, judge([[*ids_of(text[:25]), *text[25:39], *ids_of(text[39:])]]))


def _sampled() -> ScriptedTarget:
    return ScriptedTarget(VOCABULARY, logits=lambda prefix: np.float32(0.2) * _logits(prefix))


STREAMING: dict[str, Any] = {"mode": "streaming", "release": "always", "threshold": 0.5, "max_new_tokens": 60}
LOOSE = {"release": "certified", "epsilon": 0.5, "delta": 0.5}


def _forgiving(broken_at: int | None = None) -> Engine:
    """A target that goes on from what was shown, and a drafter that is wrong now and then."""
    return make_engine(ScriptedTarget(VOCABULARY, forgiving()), oracle(broken_at=broken_at, longest=12))


SAMPLING = {"temperature": 0.9, "seed": 7, "max_new_tokens": 30}

MAKE: dict[str, tuple[Callable[[], Engine], int, dict[str, Any]]] = {
    "lookup": (lambda: make_engine(drafter="lookup"), 3, {}),
    "no-drafter": (make_engine, 0, {}),
    "realigned": (lambda: make_engine(_spelled_out(), oracle(broken_at=23, whole=False, longest=40)), 0, {}),
    "stop-string": (lambda: make_engine(drafter=oracle(longest=20)), 1, {"stop": (" ha ha!",)}),
    "length": (lambda: make_engine(drafter=oracle()), 0, {"max_new_tokens": 11}),
    "cancelled": (lambda: make_engine(drafter=oracle(longest=8), capacity=1), 2, {}),
    "drafter-failed": (lambda: make_engine(drafter=_BrokenDrafter()), 0, {}),
    "target-failed": (lambda: make_engine(_failing_target()), 0, {}),
    "near-ties": (lambda: make_engine(_near_ties(), oracle(longest=30)), 0, {}),
    "sampled": (lambda: make_engine(_sampled(), "lookup"), 0, SAMPLING),
    "slips": (lambda: _forgiving(19), 0, STREAMING),
    "retracted": (lambda: _forgiving(19), 0, STREAMING | {"on_slip": "retract"}),
    "takeover": (lambda: _forgiving(4), 1, STREAMING | {"max_repairs": 1, "takeover_tokens": 5}),
    "certified": (_forgiving, 1, STREAMING | LOOSE),
}
"""Name -> (engine, which prompt, options)."""

EXPECTED: dict[str, tuple[bytes, str]] = {
    "lookup": (TEXTS[3], "stop"),
    "no-drafter": (TEXTS[0], "stop"),
    "realigned": (TEXTS[0], "stop"),
    "stop-string": (TEXTS[1][: TEXTS[1].index(b" ha ha!")], "stop"),
    "length": (VOCABULARY.join([*ids_of(TEXTS[0]), END][:11]), "length"),
    "drafter-failed": (TEXTS[0], "stop"),
    "near-ties": (TEXTS[0], "stop"),
    "retracted": (TEXTS[0], "stop"),
    "certified": (TEXTS[1], "stop"),
}
"""Name -> (output, finish reason), where they are known beforehand."""


async def record(name: str, path: Path) -> None:
    """One log."""
    make, which, options = MAKE[name]
    async with make() as engine, engine.generate(prompt(which), record=path, **options) as generation:
        chunks = 0
        async for event in generation:
            chunks += isinstance(event, Chunk)
            if name == "cancelled" and chunks == 3:
                break


def main() -> None:
    """All of them, or those named on the command line."""
    LOGS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or MAKE:
        anyio.run(record, name, LOGS / f"{name}.grimlog")
        print(name, (LOGS / f"{name}.grimlog").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
