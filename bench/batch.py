"""Several generations in one engine against one: total tokens/s, and whether each writes what it writes alone.

    python -m bench.batch [--generations 8] [--tokens 120] [--precision auto] [--drafter none] [--rounds 3]

One and all take turns in the same process; of several rounds the fastest counts. Prints a line and one JSON line.
"""

import argparse
import json
import time
from typing import Any

import anyio

from bench.prompts import all_prompts
from bench.turns import prompt_ids
from grimboost.engine import Engine


async def run(engine: Engine, prompts: list[list[int]], tokens: int) -> tuple[float, list[list[int]]]:
    """All prompts at once; seconds with prefill, and the ids of each."""
    answers: list[list[int]] = [[] for _ in prompts]

    async def one(place: int) -> None:
        async with engine.generate(prompts[place], ignore_eos=True, max_new_tokens=tokens) as generation:
            async for _ in generation:
                pass
        answers[place] = list(generation.result.token_ids)

    begin = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for place in range(len(prompts)):
            tasks.start_soon(one, place)
    return time.perf_counter() - begin, answers


async def measure(options: Any) -> dict[str, Any]:
    prompts = [prompt_ids(options.target, prompt) for _, prompt in all_prompts()][: options.generations]
    loading = Engine.load(options.target, precision=options.precision, drafter=options.drafter, datastore="none")
    async with await loading as engine:
        precision = engine.loaded.target.facts.precision
        solo_seconds = together_seconds = float("inf")
        equal = True
        for _ in range(options.rounds):
            times, alone = [], []
            for prompt in prompts:
                seconds, [ids] = await run(engine, [prompt], options.tokens)
                times.append(seconds)
                alone.append(ids)
            seconds, together = await run(engine, prompts, options.tokens)
            solo_seconds, together_seconds = min(solo_seconds, sum(times)), min(together_seconds, seconds)
            equal = equal and together == alone
    count = options.tokens * len(prompts)
    return {
        "precision": precision,
        "drafter": options.drafter,
        "generations": len(prompts),
        "alone_tokens_per_second": count / solo_seconds,
        "together_tokens_per_second": count / together_seconds,
        "ratio": solo_seconds / together_seconds,
        "identical": equal,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--drafter", choices=["none", "lookup"], default="none")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found = anyio.run(measure, options)
    alone, together = found["alone_tokens_per_second"], found["together_tokens_per_second"]
    same = "each identical to its solo run" if found["identical"] else "NOT identical to the solo runs"
    print(f"{found['precision']}, drafter {found['drafter']}: one generation {alone:.0f} tokens/s,")
    print(f"{found['generations']} at once {together:.0f} tokens/s, {found['ratio']:.2f} times that; {same}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
