"""Milliseconds of one target pass by its rows: transformers' own kernels against the row-exact ones.

    python -m bench.pass_cost [--rounds 9] [--target smollm2-135m]

Each set of kernels is measured in a process of its own, one after the other, behind a context of 128 tokens; the
fastest of the rounds counts. Prints a table and one JSON line.
"""

import argparse
import json
import subprocess
import sys

from grimboost.cost_curves import ROWS, measure
from grimboost.loading import load_target

KERNELS = ("stock", "row-exact")


def one(reference: str, precision: str, kernels: str, rounds: int) -> None:
    """The curve of one kind of kernels, as JSON on standard output."""
    loaded = load_target(reference, precision, kernels)  # type: ignore[arg-type]
    print(json.dumps(measure(loaded.target, rounds).milliseconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--one", nargs=2, metavar=("PRECISION", "KERNELS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.target, *options.one, rounds=options.rounds)
        return
    print("| precision | kernels | " + " | ".join(f"{rows} rows" for rows in ROWS) + " |")
    print("|---" * (len(ROWS) + 2) + "|")
    result = {}
    for precision in ("fp32", "bf16"):
        for kernels in KERNELS:
            command = [sys.executable, "-m", "bench.pass_cost", "--target", options.target]
            command += ["--rounds", str(options.rounds), "--one", precision, kernels]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            curve = json.loads(output.splitlines()[-1])
            result[f"{precision} {kernels}"] = curve
            print(f"| {precision} | {kernels} | " + " | ".join(f"{ms:.1f}" for ms in curve) + " |", flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
