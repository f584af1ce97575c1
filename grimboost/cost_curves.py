"""The measured cost curve of a target: milliseconds of a pass by its rows. Kept beside the model's cache.

The verifier plans with ratios of these numbers, so they are measured interleaved, and the fastest round counts:
other work on the machine only ever adds. It does not know what the numbers are used for.
"""

import platform
import re
import time
from pathlib import Path

import msgspec

from grimboost.adapters.target import Rows, Target
from grimboost.model_references import Progress
from grimboost.stages.configuration import CostCurve
from grimboost.stages.sampling_rule import SamplingRule

ROWS = (1, 2, 4, 8, 16, 32)
CONTEXT = 128
ROUNDS = 5
STALE = 0.7


def measure(
    target: Target, rounds: int = ROUNDS, points: tuple[int, ...] = ROWS, context: int = CONTEXT
) -> CostCurve:
    """Time passes over 1 to 32 rows behind a context of about 128 tokens; seconds for a small model."""
    limit = target.facts.context_limit
    sizes = [rows for rows in points if rows <= limit // 2] or [1]
    context = max(1, min(context, limit - sizes[-1]))
    id = next(id for id, data in enumerate(target.vocabulary.table) if data)
    slot = target.open(SamplingRule())
    times: dict[int, list[float]] = {rows: [] for rows in sizes}
    try:
        target.step([Rows(slot, (id,) * context, 0)])
        for _ in range(rounds):
            for rows in sizes:
                begin = time.perf_counter()
                target.step([Rows(slot, (id,) * rows, rows)])
                times[rows].append(1000.0 * (time.perf_counter() - begin))
                target.rollback(slot, context)
    finally:
        target.close(slot)
    fastest = [round(min(times[rows]), 3) for rows in sizes]
    # no pass costs less than one row does; stock kernels may well cost more for two rows than for eight
    return CostCurve(tuple(sizes), tuple(max(one, fastest[0]) for one in fastest))


def single_row(target: Target) -> float:
    """Milliseconds of a pass over one row, the faster of two."""
    return measure(target, rounds=2, points=ROWS[:1], context=8).milliseconds[0]


def kept_or_measured(target: Target, directory: Path, progress: Progress | None = None) -> CostCurve:
    """The curve kept for this target on this machine, or a new one, which is then kept if that is possible.

    A kept one that is far slower than what a pass takes now was measured beside other work: it is made again.
    """
    facts = target.facts
    kernels = re.sub(r"[^\w.+-]+", "-", facts.kernels)
    path = directory / f"{facts.digest[:12] or 'unnamed'}-{facts.precision}-{kernels}-{platform.machine()}.json"
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=CostCurve)
        if single_row(target) > STALE * kept.milliseconds[0]:
            return kept
    except (OSError, msgspec.DecodeError):
        pass
    if progress:
        progress("measuring", 0, 1)
    curve = measure(target)
    if facts.digest:
        _keep(path, curve)
    return curve


def _keep(path: Path, curve: CostCurve) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(curve))
        part.replace(path)
    except OSError:
        return  # a read-only cache costs a second at each start, nothing else
