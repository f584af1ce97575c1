"""What actors, channels and pure stages cost: milliseconds per block with a target that costs nothing.

    python -m bench.overhead [--tokens 2000] [--rounds 5]

The wall time of a generation over a scripted target, less the time in which the workers' services computed,
divided by the blocks. Also without that subtraction, and recording to a file. Prints a table and one JSON line.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

from grimboost.adapters.drafter import Drafter
from grimboost.adapters.script_drafter import ScriptDrafter
from grimboost.adapters.scripted_target import ScriptedTarget, following
from grimboost.adapters.vocabulary import Vocabulary
from grimboost.engine import Engine
from grimboost.loading import LoadedTarget
from grimboost.stages.configuration import CostCurve

TEXT = b"".join(b"line %d of a text that goes on and on; " % number for number in range(2000))
PROMPT = [97, 98, 99]
CURVE = CostCurve((1, 2, 4, 8, 16), (20.0, 21.0, 22.0, 24.0, 28.0))


async def once(drafter: Drafter | str, tokens: int, record: Path | None) -> dict[str, float]:
    """One generation in an engine of its own."""
    target = ScriptedTarget(
        Vocabulary([bytes([byte]) for byte in range(256)]), following(len(PROMPT), TEXT, 0), context_limit=1 << 20
    )
    async with Engine(LoadedTarget(target, CURVE), drafter) as engine:
        begin = time.perf_counter()
        async with engine.generate(PROMPT, max_new_tokens=tokens, record=record) as generation:
            async for _ in generation:
                pass
        wall = time.perf_counter() - begin
        statistics_ = engine.statistics()
    result = generation.result
    assert result.data == TEXT[:tokens]
    blocks = result.statistics.target_passes
    busy = statistics_.target.busy_seconds + (statistics_.drafter.busy_seconds if statistics_.drafter else 0.0)
    return {"blocks": blocks, "wall": 1000 * wall / blocks, "overhead": 1000 * (wall - busy) / blocks}


def script(context: bytes, limit: int) -> bytes:
    """The true continuation, broken in each hundredth byte."""
    start = len(context) - len(PROMPT)
    data = bytearray(TEXT[start : start + limit])
    for place in range(len(data)):
        if (start + place) % 100 == 99:
            data[place] ^= 1
    return bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    result: dict[str, Any] = {}
    print("| drafter | recording | blocks | ms per block | of these, actors, channels and stages |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("none", "lookup", "script"):
            for record in (None, Path(folder) / "log.grimlog"):
                drafter: Drafter | str = ScriptDrafter(script) if name == "script" else name
                runs = [anyio.run(once, drafter, options.tokens, record) for _ in range(options.rounds)]
                row = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
                result[f"{name}{', recording' if record else ''}"] = row
                print(
                    f"| {name} | {'yes' if record else 'no'} | {row['blocks']:.0f} | {row['wall']:.3f} | "
                    f"{row['overhead']:.3f} |"
                )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
