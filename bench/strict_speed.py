"""Strict mode against transformers, in one run, turn by turn, prefill included.

    python -m bench.strict_speed [--tokens 200] [--precision fp32] [--rounds 1] [--target smollm2-135m]

For each prompt, every contender generates the same number of tokens (end-of-sequence ignored). Seconds include
the prefill; of several rounds the fastest counts. `exact` counts the prompts on which the ids equal
transformers' own greedy ids (fp32) or the contender's own ids without drafting (bf16, where transformers'
kernels themselves depend on the shape of the pass). Prints a table for people and one JSON line for machines.
"""

import argparse
import json
import sys
from contextlib import ExitStack
from typing import Any

from bench.prompts import all_prompts
from bench.turns import Contender, prompt_ids

CONTENDERS = (
    ("transformers", "transformers", "none"),
    ("transformers lookup", "transformers", "lookup"),
    ("grimboost none", "grimboost", "none"),
    ("grimboost lookup", "grimboost", "lookup"),
)
OWN_PLAIN = {"transformers lookup": "transformers", "grimboost lookup": "grimboost none"}

Row = dict[str, dict[str, Any]]


def measure(reference: str, precision: str, tokens: int, rounds: int) -> list[tuple[str, Row]]:
    """One row per prompt: contender -> its fastest answer."""
    rows = []
    with ExitStack() as stack:
        contenders = [
            stack.enter_context(Contender(name, kind, reference, precision, detail))
            for name, kind, detail in CONTENDERS
        ]
        warm = prompt_ids(reference, "Hello!")
        for contender in contenders:
            contender.ask(warm, 8)
        prompts = all_prompts()
        for place, (kind, prompt) in enumerate(prompts, 1):
            ids = prompt_ids(reference, prompt)
            row: Row = {}
            for _ in range(rounds):
                for contender in contenders:
                    answer = contender.ask(ids, tokens)
                    best = row.get(contender.name)
                    if best is None or answer["seconds"] < best["seconds"]:
                        row[contender.name] = answer
            rows.append((kind, row))
            times = ", ".join(f"{name} {answer['seconds']:.1f} s" for name, answer in row.items())
            print(f"{place}/{len(prompts)} {kind}, {len(ids)} prompt tokens: {times}", file=sys.stderr, flush=True)
    return rows


def exact(name: str, row: Row, precision: str) -> bool:
    """Whether the ids are what they have to be."""
    reference = "transformers" if precision == "fp32" else OWN_PLAIN.get(name, name)
    return bool(row[name]["ids"] == row[reference]["ids"])


def report(rows: list[tuple[str, Row]], precision: str, tokens: int) -> dict[str, Any]:
    """Per class and over all: tokens/s and the ratio to transformers."""
    kinds = [*dict.fromkeys(kind for kind, _ in rows), "all"]
    result: dict[str, Any] = {"precision": precision, "tokens": tokens, "classes": {}}
    for kind in kinds:
        chosen = [row for k, row in rows if kind in {k, "all"}]
        seconds = {name: sum(row[name]["seconds"] for row in chosen) for name, *_ in CONTENDERS}
        result["classes"][kind] = {
            name: {
                "tokens_per_second": round(tokens * len(chosen) / seconds[name], 2),
                "ratio": round(seconds["transformers"] / seconds[name], 3),
                "exact": f"{sum(exact(name, row, precision) for row in chosen)}/{len(chosen)}",
                "passes": sum(row[name].get("passes", 0) for row in chosen),
            }
            for name, *_ in CONTENDERS
        }
    return result


def show(result: dict[str, Any]) -> None:
    """The table, in Markdown."""
    names = [name for name, *_ in CONTENDERS]
    print(
        f"\n{result['precision']}, {result['tokens']} tokens a prompt: tokens/s (ratio to transformers, exact)\n"
    )
    print("| class | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for kind, cells in result["classes"].items():
        texts = [
            f"{cells[name]['tokens_per_second']:.1f} ({cells[name]['ratio']:.2f}, {cells[name]['exact']})"
            for name in names
        ]
        print(f"| {kind} | " + " | ".join(texts) + " |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    rows = measure(options.target, options.precision, options.tokens, options.rounds)
    result = report(rows, options.precision, options.tokens)
    show(result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
