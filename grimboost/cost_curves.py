"""The measured cost curve of a target: milliseconds of a pass by its rows. Kept beside the model's cache.

The verifier plans with ratios of these numbers, so they are measured interleaved, and the fastest round counts:
other work on the machine only ever adds. It does not know what the numbers are used for.
"""

import platform
import time
from pathlib import Path

import msgspec
import torch

from grimboost.adapters.target import Rows, Target
from grimboost.stages.configuration import CostCurve
from grimboost.stages.sampling_rule import SamplingRule

ROWS = (1, 2, 4, 8, 16, 32)
CONTEXT = 128
ROUNDS = 5


def measure(target: Target, rounds: int = ROUNDS) -> CostCurve:
    """Time passes over 1 to 32 rows behind a context of about 128 tokens; seconds for a small model."""
    limit = target.facts.context_limit
    sizes = [rows for rows in ROWS if rows <= limit // 2] or [1]
    context = max(1, min(CONTEXT, limit - sizes[-1]))
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
    return CostCurve(tuple(sizes), tuple(round(min(times[rows]), 3) for rows in sizes))


def kept_or_measured(target: Target, directory: Path) -> CostCurve:
    """The curve kept for this target on this machine, or a new one, which is then kept if that is possible."""
    facts = target.facts
    machine = f"{platform.machine()}-{torch.get_num_threads()}threads-torch{torch.__version__}"
    kernels = "row-exact" if facts.row_invariant else "plain"
    path = directory / f"{facts.digest[:12] or 'unnamed'}-{facts.precision}-{kernels}-{machine}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=CostCurve)
    except (OSError, msgspec.DecodeError):
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
