"""What the datastore saves: target passes of the same questions asked again, and of others on the same documents.

    python -m bench.datastore [--tokens 120] [--precision fp32] [--target smollm2-135m] [--classes grounded chat]

One engine with a datastore in memory answers the prompts of the classes (round one), answers them again (round
two), and then a second, different question on each document. An engine without a datastore answers the second
questions too, for comparison. All outputs are compared: they must not depend on the datastore. Seconds include
the prefill, passes do not. Prints a table for people and one JSON line for machines.
"""

import argparse
import json
import sys
import time
from typing import Any

import anyio

from bench.prompts import HARBOUR, LISTING, MINUTES, PROMPTS
from grimboost.adapters.lookup_drafter import LookupDrafter
from grimboost.engine import Engine

SECOND = [
    f"Here is a text about a harbour:\n\n{HARBOUR}\n\nQuote all sentences about the basins, nothing else.",
    f"These are the minutes of a meeting:\n\n{MINUTES}\n\nWho has to do what, and until when? Quote the items.",
    f"Here is a function:\n\n```python\n{LISTING}```\n\nWrite it again, but let it know weeks (w) too. Only code.",
]


async def answer(engine: Engine, prompt: str, tokens: int) -> dict[str, Any]:
    """One generation, read to its end."""
    begin = time.perf_counter()
    async with engine.generate(prompt, ignore_eos=True, max_new_tokens=tokens) as generation:
        async for _ in generation:
            pass
    s = generation.result.statistics
    return {
        "ids": generation.result.token_ids,
        "passes": s.target_passes,
        "rows": s.target_rows,
        "seconds": time.perf_counter() - begin,
    }


async def ask(engine: Engine, name: str, prompts: list[str], tokens: int) -> list[dict[str, Any]]:
    answers = []
    for place, prompt in enumerate(prompts, 1):
        answers.append(await answer(engine, prompt, tokens))
        print(f"{name} {place}/{len(prompts)}: {answers[-1]['passes']} passes", file=sys.stderr, flush=True)
    return answers


async def measure(target: str, precision: str, tokens: int, classes: list[str]) -> dict[str, Any]:
    """Rounds by name, each a list of answers."""
    first = [prompt for kind in classes for prompt in PROMPTS[kind]]
    rounds: dict[str, Any] = {}
    async with await Engine.load(target, precision=precision) as engine:  # type: ignore[arg-type]
        loaded = engine.loaded
        await answer(engine, "Hello!", 4)
        for name, prompts in (("first", first), ("again", first), ("second question", SECOND)):
            rounds[name] = await ask(engine, name, prompts, tokens)
        assert isinstance(engine.drafter, LookupDrafter)
        assert engine.drafter.datastore
        rounds["statistics"] = engine.drafter.datastore.statistics()
    async with Engine(loaded, datastore=None) as engine:
        rounds["second question, no datastore"] = await ask(engine, "without", SECOND, tokens)
    return rounds


def report(rounds: dict[str, Any], tokens: int, precision: str) -> dict[str, Any]:
    """Sums by round, and whether outputs are equal where they have to be."""
    statistics = rounds.pop("statistics")
    same = [one["ids"] for one in rounds["first"]] == [one["ids"] for one in rounds["again"]]
    other = [one["ids"] for one in rounds["second question"]]
    same &= other == [one["ids"] for one in rounds["second question, no datastore"]]
    result: dict[str, Any] = {"precision": precision, "tokens": tokens, "outputs_equal": same, "rounds": {}}
    for name, answers in rounds.items():
        result["rounds"][name] = {
            "prompts": len(answers),
            "passes": [one["passes"] for one in answers],
            "rows": sum(one["rows"] for one in answers),
            "seconds": round(sum(one["seconds"] for one in answers), 2),
        }
    result["datastore"] = {"texts": statistics.texts, "bytes": statistics.bytes}
    return result


def show(result: dict[str, Any]) -> None:
    """The table, in Markdown."""
    print(f"\n{result['precision']}, {result['tokens']} tokens each; equal outputs: {result['outputs_equal']}\n")
    print("| round | prompts | passes | rows | seconds |\n|---|---|---|---|---|")
    for name, row in result["rounds"].items():
        passes = f"{sum(row['passes'])} ({', '.join(map(str, row['passes']))})"
        print(f"| {name} | {row['prompts']} | {passes} | {row['rows']} | {row['seconds']:.1f} |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16", "int8", "int4"], default="fp32")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--classes", nargs="+", choices=list(PROMPTS), default=["grounded", "chat"])
    options = parser.parse_args()
    rounds = anyio.run(measure, options.target, options.precision, options.tokens, options.classes)
    result = report(rounds, options.tokens, options.precision)
    show(result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
