"""Strict mode with drafting against without: the same ids, greedy and sampled, in every precision.

    python -m bench.exactness [--tokens 200] [--precision bf16]... [--way greedy]... [--target smollm2-135m]

Prints for each precision and way of choosing on how many prompts the ids are equal, and one JSON line.
"""

import argparse
import json
import sys
from typing import Any

from bench.prompts import all_prompts
from bench.turns import Contender, prompt_ids
from grimboost.loading import PRECISIONS

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "seed": 7},
    "sampled, filtered": {"temperature": 1.0, "top_k": 50, "top_p": 0.9, "min_p": 0.02, "seed": 11},
    "greedy, penalty": {"repetition_penalty": 1.2},
}


def compare(reference: str, precision: str, tokens: int, ways: list[str]) -> dict[str, Any]:
    """Way of choosing -> prompts on which the ids are equal, and the passes of both."""
    found = {way: {"equal": 0, "prompts": 0, "passes": 0, "passes_without": 0, "ties": 0} for way in ways}
    with (
        Contender("without", "grimboost", reference, precision, "none") as without,
        Contender("with", "grimboost", reference, precision, "lookup") as with_lookup,
    ):
        for kind, prompt in all_prompts():
            ids = prompt_ids(reference, prompt)
            for way in ways:
                options = WAYS[way]
                plain, drafted = without.ask(ids, tokens, **options), with_lookup.ask(ids, tokens, **options)
                cell = found[way]
                cell["prompts"] += 1
                cell["equal"] += plain["ids"] == drafted["ids"]
                cell["passes"] += drafted["passes"]
                cell["passes_without"] += plain["passes"]
                cell["ties"] += drafted["ties"]
                print(f"{precision} {kind} {way}: {plain['ids'] == drafted['ids']}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--precision", choices=list(PRECISIONS), action="append")
    parser.add_argument("--way", choices=list(WAYS), action="append")
    options = parser.parse_args()
    result = {
        precision: compare(options.target, precision, options.tokens, options.way or list(WAYS))
        for precision in options.precision or PRECISIONS
    }
    print("| precision | way | equal | passes with | without | near-ties |\n|---|---|---|---|---|---|")
    for precision, ways in result.items():
        for way, c in ways.items():
            equal = f"{c['equal']}/{c['prompts']}"
            print(f"| {precision} | {way} | {equal} | {c['passes']} | {c['passes_without']} | {c['ties']} |")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
