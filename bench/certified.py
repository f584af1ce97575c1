"""A certificate on the real model: what opens it, and what it gives once it is open.

    python -m bench.certified [--rounds 6] [--tokens 200] [--precision int4] [--target smollm2-135m]
                              [--epsilon 0.001]

One engine with a datastore answers the same questions again and again, as a service does whose questions come
back: from the second round on the lookup drafter knows the answers. Each question is answered in certified
streaming mode and in strict mode, in turns, from the same datastore. Per round: whether the certificate was open
when it began and at its end, coverage, slips, target passes, seconds, the median gap, each beside strict; and the
texts are compared. Prints a table for people and one JSON line for machines.
"""

import argparse
import json
import sys
import time
from typing import Any

import anyio

from bench.prompts import PROMPTS
from grimboost.engine import Engine
from grimboost.generation import Generation


async def answer(engine: Engine, prompt: str, tokens: int, **options: Any) -> tuple[Generation, float]:
    """One generation, read to its end, and its seconds with the prefill."""
    begin = time.perf_counter()
    async with engine.generate(prompt, max_new_tokens=tokens, **options) as generation:
        async for _ in generation:
            pass
    return generation, time.perf_counter() - begin


def row(made: list[Generation]) -> dict[str, Any]:
    """Sums over one round; the gap is the median over answers."""
    figures = [one.result.statistics for one in made]
    tokens = sum(one.new_tokens for one in figures)
    gaps = sorted(one.gap_seconds.p50 for one in figures if one.gap_seconds)
    return {
        "tokens": tokens,
        "released": sum(one.released_tokens for one in figures),
        "coverage": sum(one.coverage * one.new_tokens for one in figures) / tokens,
        "slips": sum(one.slip_tokens for one in figures),
        "passes_per_1000": 1000 * sum(one.target_passes for one in figures) / tokens,
        "gap_ms": 1000 * gaps[len(gaps) // 2] if gaps else None,
    }


async def one_round(engine: Engine, prompts: list[str], streaming: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Each question once in each mode, in turns."""
    made: dict[str, list[Generation]] = {"strict": [], "streaming": []}
    seconds = {"strict": 0.0, "streaming": 0.0}
    for place, prompt in enumerate(prompts):
        ways: list[tuple[str, dict[str, Any]]] = [("strict", {}), ("streaming", streaming)]
        for name, more in ways if place % 2 else reversed(ways):
            generation, took = await answer(engine, prompt, tokens, **more)
            made[name].append(generation)
            seconds[name] += took
    report = made["streaming"][-1].result.statistics.certificate
    assert report is not None
    same = [
        one.result.token_ids == other.result.token_ids
        for one, other in zip(made["strict"], made["streaming"], strict=True)
    ]
    return {
        "began_open": made["streaming"][0].request.configs.gate.certified,
        "ended_open": report.open,
        "threshold": report.threshold,
        "reason": report.reason,
        "answers_upper": report.answers_upper,
        "same_text": sum(same),
        "seconds": seconds,
        "streaming": row(made["streaming"]),
        "strict": row(made["strict"]),
    }


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    prompts = [prompt for kind in PROMPTS.values() for prompt in kind]
    streaming = {"mode": "streaming", "domain": "questions that come back", "epsilon": options.epsilon}
    rounds: list[dict[str, Any]] = []
    async with await Engine.load(options.target, precision=options.precision, certificates="memory") as engine:
        for number in range(1, options.rounds + 1):
            rounds.append(await one_round(engine, prompts, streaming, options.tokens) | {"round": number})
            print(f"round {number}: {rounds[-1]['reason']}", file=sys.stderr, flush=True)
    return {"bench": "certified", "questions": len(prompts), "rounds": rounds}


def show(result: dict[str, Any]) -> None:
    """The table."""
    print(
        "| round | open before, after | coverage | slips | passes/1000 (strict) | seconds (strict) | gap p50, ms |"
    )
    print("|---|---|---|---|---|---|---|")
    for one in result["rounds"]:
        s, strict = one["streaming"], one["strict"]
        print(
            f"| {one['round']} | {one['began_open']}, {one['ended_open']} | {s['coverage']:.1%} | {s['slips']} of "
            f"{s['released']} | {s['passes_per_1000']:.0f} ({strict['passes_per_1000']:.0f}) | "
            f"{one['seconds']['streaming']:.1f} ({one['seconds']['strict']:.1f}) | "
            f"{s['gap_ms']:.2f} ({strict['gap_ms']:.2f}) |"
        )
    print(f"\nlast: {result['rounds'][-1]['reason']}")
    print(f"same text as strict, last round: {result['rounds'][-1]['same_text']} of {result['questions']}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--precision", default="int4")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--epsilon", type=float, default=0.001)
    result = anyio.run(measure, parser.parse_args())
    show(result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
