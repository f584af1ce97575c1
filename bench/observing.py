"""What watching a generation costs: recording it, profiling it, both, against the same generation unwatched.

    python -m bench.observing [--rounds 12] [--tokens 200] [--target smollm2-135m] [--precision int4]

One engine a drafter and mode. In each round every way answers the same prompt once, in an order that moves on by
one each round; a way's cost is the median over rounds of its time against the unwatched one of the same round.
Prefill is included. The flight recorder and the shell's own clocks are always on, so `off` has them too; what
these cost is measured by running `bench.overhead` on two commits. Prints a table for people and one JSON line for
machines.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync

from bench.prompts import PROMPTS
from grimboost.engine import Engine
from grimboost.profiler import Profiler

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "no drafter": ("none", {}),
    "lookup": ("lookup", {}),
    "lookup, streaming": ("lookup", {"mode": "streaming", "release": "always"}),
}
WAYS = ("off", "off again", "recording", "profiling", "both")


async def once(engine: Engine, prompt: str, way: str, log: Path, options: dict[str, Any]) -> tuple[float, bytes]:
    """Seconds of one generation, and its bytes."""
    profiler = Profiler() if way in {"profiling", "both"} else None
    if profiler:
        engine.instruments.add(profiler)
    begin = time.perf_counter()
    record = log if way in {"recording", "both"} else None
    async with engine.generate(prompt, record=record, ignore_eos=True, **options) as generation:
        async for _ in generation:
            pass
    seconds = time.perf_counter() - begin
    if profiler:
        engine.instruments.remove(profiler)
    return seconds, generation.result.data


async def compare(
    target: str, precision: Any, drafter: str, prompt: str, rounds: int, options: dict[str, Any], log: Path
) -> dict[str, Any]:
    """Ratios of each way to the unwatched run of its round, and what was seen beside."""
    load = Engine.load(target, precision=precision, drafter=drafter, datastore="none", certificates="memory")
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    texts = set()
    async with await load as engine:
        await once(engine, prompt, "off", log, options)
        for number in range(rounds):
            for place in range(len(WAYS)):
                way = WAYS[(number + place) % len(WAYS)]
                took, data = await once(engine, prompt, way, log, options)
                seconds[way].append(took)
                texts.add(data)
            print(f"{drafter}: round {number + 1}/{rounds}", file=sys.stderr, flush=True)
    logged = await run_sync(lambda: log.stat().st_size)
    ratios = {
        way: [one / off for one, off in zip(seconds[way], seconds["off"], strict=True)]
        for way in WAYS
        if way != "off"
    }
    return {
        "seconds": {way: statistics.median(times) for way, times in seconds.items()},
        "ratios": {way: statistics.quantiles(of, n=4) for way, of in ratios.items()},
        "texts": len(texts),
        "log_bytes": logged,
    }


def table(results: dict[str, dict[str, Any]], say: Callable[[str], None]) -> None:
    """For people: medians and quartiles."""
    say("| run | unwatched, s | " + " | ".join(f"{way}, of unwatched" for way in WAYS[1:]) + " | log, kB |")
    say("|---" * (len(WAYS) + 2) + "|")
    for name, result in results.items():
        cells = [f"{q[1]:.3f} ({q[0]:.3f} to {q[2]:.3f})" for q in result["ratios"].values()]
        log = f"{result['log_bytes'] / 1000:.0f}"
        say(f"| {name} | {result['seconds']['off']:.2f} | " + " | ".join(cells) + f" | {log} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--precision", default="int4")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=200)
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (drafter, more) in RUNS.items():
            arguments = {"max_new_tokens": options.tokens, **more}
            results[name] = anyio.run(
                compare,
                options.target,
                options.precision,
                drafter,
                PROMPTS["grounded"][0],
                options.rounds,
                arguments,
                Path(folder) / "log.grimlog",
            )
    table(results, print)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
