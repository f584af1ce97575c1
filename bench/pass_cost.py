"""Milliseconds of one target pass by its rows, for each precision and kind of kernels, and the floor below it.

    python -m bench.pass_cost [--rounds 9] [--threads 0] [--target smollm2-135m]

Each is measured in a process of its own, one after the other, behind a context of 128 tokens; the fastest of
the rounds counts. The floor is the time that reading the weights of one pass once takes at this machine's read
bandwidth, measured in the same run. Prints a table and one JSON line.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np

from grimboost.cost_curves import ROWS, measure
from grimboost.loading import load_target

WAYS = (
    ("fp32", "stock"),
    ("fp32", "row-exact"),
    ("bf16", "stock"),
    ("bf16", "row-exact"),
    ("fp32", "packed"),
    ("bf16", "packed"),
    ("int8", "packed"),
    ("int4", "packed"),
)
PROBE_BYTES = 1 << 29


def one(reference: str, precision: str, kernels: str, rounds: int, threads: int) -> None:
    """The curve of one kind of kernels, as JSON on standard output."""
    loaded = load_target(reference, precision, kernels, threads)  # type: ignore[arg-type]
    weights = 0
    if kernels == "packed":
        weights = loaded.target._model.weight_bytes  # type: ignore[attr-defined]
    print(json.dumps({"milliseconds": measure(loaded.target, rounds).milliseconds, "weight_bytes": weights}))


def read_bandwidth(threads: int = 2, rounds: int = 7) -> float:
    """Bytes per second that so many threads read together from memory that no cache holds; the best round."""
    from numba import njit

    @njit(nogil=True, fastmath=True)  # type: ignore[untyped-decorator]
    def total(values: Any) -> int:
        found = 0
        for value in values:
            found += value
        return found

    parts = np.array_split(np.ones(PROBE_BYTES // 8, np.int64), threads)
    total(parts[0][:8])
    best = float("inf")
    for _ in range(rounds):
        workers = [threading.Thread(target=total, args=(part,)) for part in parts]
        begin = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = min(best, time.perf_counter() - begin)
    return PROBE_BYTES / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0, help="of the packed decoder; 0 for one per processor")
    parser.add_argument("--packed-only", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("PRECISION", "KERNELS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.target, *options.one, rounds=options.rounds, threads=options.threads)
        return
    bandwidth = read_bandwidth()
    print(f"\nread bandwidth {bandwidth / 1e9:.1f} GB/s\n")
    print(
        "| precision | kernels | "
        + " | ".join(f"{rows} rows" for rows in ROWS)
        + " | MB read | floor | 1 row / floor |"
    )
    print("|---" * (len(ROWS) + 5) + "|")
    result: dict[str, Any] = {"bandwidth": bandwidth}
    for precision, kernels in WAYS:
        if options.packed_only and kernels != "packed":
            continue
        command = [sys.executable, "-m", "bench.pass_cost", "--target", options.target, "--threads"]
        command += [str(options.threads), "--rounds", str(options.rounds), "--one", precision, kernels]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = json.loads(output.splitlines()[-1])
        curve, size = found["milliseconds"], found["weight_bytes"]
        result[f"{precision} {kernels}"] = found
        floor = 1000 * size / bandwidth
        tail = f"{size / 1e6:.0f} | {floor:.1f} ms | {curve[0] / floor:.2f}" if size else "| |"
        print(
            f"| {precision} | {kernels} | " + " | ".join(f"{ms:.1f}" for ms in curve) + f" | {tail} |", flush=True
        )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
