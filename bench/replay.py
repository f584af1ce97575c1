"""How fast a log is replayed, against the run that it records.

    python -m bench.replay [--tokens 2000] [--target smollm2-135m] [--precision int4]

Records generations of so many tokens on the real model: strict without and with a drafter, streaming with what was
shown standing, and taken back. Each log is then read and replayed several times in this process (the median
counts), and once by the command, its start included. Prints a table for people and one JSON line for machines.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

from bench.prompts import PROMPTS
from grimboost.engine import Engine
from grimboost.log import Log
from grimboost.replaying import replay

STREAMING = {"mode": "streaming", "release": "always"}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "strict, no drafter": ("none", PROMPTS["chat"][0], {}),
    "strict, lookup": ("lookup", PROMPTS["chat"][0], {}),
    "strict, lookup, grounded": ("lookup", PROMPTS["grounded"][0], {}),
    "streaming": ("lookup", PROMPTS["chat"][0], STREAMING),
    "streaming, grounded": ("lookup", PROMPTS["grounded"][0], STREAMING),
    "streaming, taken back": ("lookup", PROMPTS["grounded"][0], STREAMING | {"on_slip": "retract"}),
}
TIMES = 9


async def record(target: str, precision: Any, name: str, tokens: int, path: Path) -> float:
    """Seconds of one recorded generation."""
    drafter, prompt, options = RUNS[name]
    load = Engine.load(target, precision=precision, drafter=drafter, datastore="none", certificates="memory")
    async with await load as engine:
        await engine.complete(prompt, max_new_tokens=8)
        begin = time.perf_counter()
        generation = engine.generate(prompt, record=path, max_new_tokens=tokens, ignore_eos=True, **options)
        async with generation:
            async for _ in generation:
                pass
        return time.perf_counter() - begin


def replayed(path: Path) -> dict[str, float]:
    """Median seconds of reading and of replaying, and those of the whole command."""
    reading, running = [], []
    for _ in range(TIMES):
        begin = time.perf_counter()
        log = Log.open(path)
        read = time.perf_counter()
        assert replay(log) is None
        reading.append(read - begin)
        running.append(time.perf_counter() - read)
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "grimboost", "replay", str(path)], check=True, stdout=subprocess.DEVNULL)
    command = time.perf_counter() - begin
    return {"read": statistics.median(reading), "replay": statistics.median(running), "command": command}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--precision", default="int4")
    parser.add_argument("--tokens", type=int, default=2000)
    options = parser.parse_args()
    results = {}
    print("| run | seconds | messages | log, kB | read, ms | replay, ms | run / (read + replay) | command, s |")
    print("|---" * 8 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for place, name in enumerate(RUNS):
            path = Path(folder) / f"{place}.grimlog"
            seconds = anyio.run(record, options.target, options.precision, name, options.tokens, path)
            took = replayed(path)
            times = seconds / (took["read"] + took["replay"])
            entries, size = len(Log.open(path).entries), path.stat().st_size
            results[name] = {"seconds": seconds, "entries": entries, "bytes": size, "times": times, **took}
            print(
                f"| {name} | {seconds:.2f} | {entries} | {size / 1000:.0f} | {1000 * took['read']:.1f} | "
                f"{1000 * took['replay']:.1f} | {times:.0f} | {took['command']:.2f} |",
                flush=True,
            )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
