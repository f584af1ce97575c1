"""How much the shape of a pass moves a margin: the measurement behind `TIE_BOUNDS` of the eager target.

    python -m bench.near_ties [--tokens 120] [--precision fp32] [--stock]

The target writes row by row; then the same tokens are fed in blocks of 4, 8 and 16 rows, and the lead of each
chosen token over its runner-up is compared. `--stock` measures transformers' own kernels, otherwise the
row-exact ones, whose difference has to be zero. Prints a table and one JSON line.
"""

import argparse
import json

from bench.prompts import all_prompts
from grimboost.adapters.sequential import decode_sequentially
from grimboost.adapters.target import Chosen, Rows, Target
from grimboost.loading import load_target
from grimboost.stages.sampling_rule import SamplingRule

BLOCKS = (4, 8, 16)


def in_blocks(target: Target, prompt: tuple[int, ...], ids: list[int], rows: int) -> list[Chosen]:
    """Choices behind each place of `ids`, fed `rows` at a time."""
    slot = target.open(SamplingRule())
    target.step([Rows(slot, prompt[:-1], 0)])
    feed = (prompt[-1], *ids[:-1])
    chosen: list[Chosen] = []
    for start in range(0, len(feed), rows):
        part = feed[start : start + rows]
        chosen += target.step([Rows(slot, part, len(part))])[0]
    target.close(slot)
    return chosen


def moved(alone: Chosen, together: Chosen) -> float:
    """Change of the lead of the token that was chosen alone."""
    return abs(alone.margin - (together.margin if together.id == alone.id else -together.margin))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--stock", action="store_true")
    options = parser.parse_args()
    loaded = load_target(options.target, options.precision, "stock" if options.stock else "row-exact")
    assert loaded.tokenizer is not None
    changes: dict[int, list[float]] = {rows: [] for rows in BLOCKS}
    margins: list[float] = []
    flips = dict.fromkeys(BLOCKS, 0)
    for _, prompt in all_prompts()[::3]:
        ids = loaded.tokenizer.prompt_ids(prompt)
        alone = decode_sequentially(loaded.target, ids, SamplingRule(), options.tokens)
        margins += [one.margin for one in alone]
        for rows in BLOCKS:
            together = in_blocks(loaded.target, ids, [one.id for one in alone], rows)
            changes[rows] += [moved(a, b) for a, b in zip(alone, together, strict=True)]
            flips[rows] += sum(a.id != b.id for a, b in zip(alone, together, strict=True))
    print("| rows | tokens | largest change | 99% below | flips |\n|---|---|---|---|---|")
    result = {}
    for rows in BLOCKS:
        ordered = sorted(changes[rows])
        largest, most = ordered[-1], ordered[int(0.99 * len(ordered))]
        result[rows] = {"largest": largest, "p99": most, "flips": flips[rows], "tokens": len(ordered)}
        print(f"| {rows} | {len(ordered)} | {largest:.2e} | {most:.2e} | {flips[rows]} |")
    below = {bound: sum(margin < bound for margin in margins) for bound in (1e-4, 2e-4, 1e-3, 1e-1, 1.0)}
    print(json.dumps({"precision": options.precision, "stock": options.stock, "rows": result, "below": below}))


if __name__ == "__main__":
    main()
