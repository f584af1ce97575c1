"""One contender in a process of its own: reads prompts as JSON lines, answers with ids and seconds.

Contenders do not share a process, because OpenMP pools of two threads that compute slow each other down; they
take turns, so only one works at a time. Every time includes the prefill. Run by the benchmarks, not by people.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import anyio

Answer = dict[str, Any]
Solve = Callable[[list[int], int, dict[str, Any]], Answer]


def transformers_contender(reference: str, precision: str, lookup: bool, loop: Callable[[Solve], None]) -> None:
    """transformers' own greedy `generate`, with its attention mask, optionally with its own prompt lookup."""
    import torch
    from transformers import LlamaForCausalLM
    from transformers.utils import logging

    from grimboost.model_references import resolve

    logging.disable_progress_bar()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    model = LlamaForCausalLM.from_pretrained(resolve(reference).directory, dtype=dtype).eval()
    model.generation_config.eos_token_id = None  # all contenders write the full number of tokens
    extra = {"prompt_lookup_num_tokens": 10} if lookup else {}

    def solve(ids: list[int], count: int, _: dict[str, Any]) -> Answer:
        prompt = torch.tensor([ids])
        begin = time.perf_counter()
        with torch.inference_mode():
            output = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=count, **extra
            )
        seconds = time.perf_counter() - begin
        return {"ids": output[0, len(ids) :].tolist(), "seconds": seconds}

    loop(solve)


def grimboost_contender(reference: str, precision: str, drafter: str, loop: Callable[[Solve], None]) -> None:
    """An engine in strict mode; options of a request become parameters."""
    from grimboost.engine import Engine
    from grimboost.messages import Chunk

    async def answer(engine: Engine, ids: list[int], count: int, options: dict[str, Any]) -> Answer:
        begin = time.perf_counter()
        first = None
        async with engine.generate(ids, ignore_eos=True, max_new_tokens=count, **options) as generation:
            async for event in generation:
                if first is None and isinstance(event, Chunk):
                    first = time.perf_counter() - begin
        s = generation.result.statistics
        return {
            "ids": list(generation.result.token_ids),
            "seconds": time.perf_counter() - begin,
            "first": first,
            "passes": s.target_passes,
            "accepted": s.accepted_tokens,
            "drafted": s.drafted_tokens,
            "ties": s.ties_rechecked,
            "row_invariant": engine.loaded.target.facts.row_invariant,
        }

    async def main() -> None:
        async with await Engine.load(reference, precision=precision, drafter=drafter) as engine:  # type: ignore[arg-type]
            await loop_async(lambda ids, count, options: answer(engine, ids, count, options))

    anyio.run(main)


async def loop_async(solve: Callable[[list[int], int, dict[str, Any]], Any]) -> None:
    """The protocol, for a contender with an event loop of its own."""
    say({"ready": True})
    while line := await anyio.to_thread.run_sync(sys.stdin.readline):
        request = json.loads(line)
        say(await solve(request["ids"], request["count"], request.get("options", {})))


def loop(solve: Solve) -> None:
    """The protocol: one JSON line in, one out, `ready` first."""
    say({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        say(solve(request["ids"], request["count"], request.get("options", {})))


def say(answer: Answer) -> None:
    """One line on standard output."""
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    kind, reference, precision, detail = sys.argv[1:]
    if kind == "transformers":
        transformers_contender(reference, precision, detail == "lookup", loop)
    else:
        grimboost_contender(reference, precision, detail, loop)
