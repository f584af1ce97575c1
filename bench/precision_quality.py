"""Perplexity of each precision on a fixed text: what rounding weights and rows costs in quality.

    python -m bench.precision_quality [--tokens 20480] [--target smollm2-135m]

The text is the Python language reference as the standard library carries it (`pydoc_data`, PSF licence), in
windows of 1,024 tokens. fp32 is the model's file without further rounding. Prints a table and one JSON line.
"""

import argparse
import json
import sys

from grimboost.adapters.packed_runner import Runner, usable_processors
from grimboost.adapters.perplexity import perplexity, sample_ids
from grimboost.adapters.target_tokenizer import load_tokenizer
from grimboost.model_cache import cache_root
from grimboost.model_references import resolve
from grimboost.packed_store import CANDIDATES, PackedStore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=20480)
    options = parser.parse_args()
    resolved = resolve(options.target)
    tokenizer = load_tokenizer(resolved.directory)
    ids = sample_ids(tokenizer, options.tokens)
    found: dict[str, float] = {}
    print("| precision | weights read per pass | perplexity | over fp32 |\n|---|---|---|---|")
    for precision in CANDIDATES:
        model = PackedStore(cache_root()).obtain(resolved, precision)
        runner = Runner(model, len(tokenizer.vocabulary), usable_processors())
        found[precision] = perplexity(runner, model, ids)
        more = 100 * (found[precision] / found["fp32"] - 1)
        size = model.weight_bytes / 1e6
        print(f"| {precision} | {size:.0f} MB | {found[precision]:.4f} | {more:+.2f}% |", flush=True)
        print(f"{precision} measured on {len(ids)} tokens", file=sys.stderr)
    print(json.dumps({"tokens": len(ids), "perplexity": found}))


if __name__ == "__main__":
    main()
