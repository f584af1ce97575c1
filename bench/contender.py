"""One contender in a process of its own: reads prompts as JSON lines, answers with ids and seconds.

Contenders do not share a process, because OpenMP pools of two threads that compute slow each other down; they
take turns, so only one works at a time. Every time includes the prefill. Run by the benchmarks, not by people:

    python -m bench.contender transformers | grimboost  REFERENCE PRECISION none | lookup  [THREADS]

An answer has `ids`, `seconds`, `first` (seconds to the first byte, or the first token where no bytes are made) and
`passes` (target passes that chose tokens). Here are transformers and grimboost, in `bench.peers` the engines that
may be installed beside them; that module takes the protocol from here, so nothing else is imported at the top.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Answer = dict[str, Any]
Solve = Callable[[list[int], int, dict[str, Any]], Answer]

LOOKUP_TOKENS = 10
"""Candidates of transformers' prompt lookup, the value of its documentation."""


def transformers_contender(reference: str, precision: str, lookup: bool) -> None:
    """transformers' own greedy `generate`, with its attention mask, optionally with its own prompt lookup."""
    import torch
    from transformers import LlamaForCausalLM
    from transformers.generation.streamers import BaseStreamer
    from transformers.utils import logging

    from grimboost.model_references import resolve

    class Arrivals(BaseStreamer):  # type: ignore[misc]
        """When the prompt (first) and the tokens behind it were handed out."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, value: object) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None:
            pass

    logging.disable_progress_bar()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    model = LlamaForCausalLM.from_pretrained(resolve(reference).directory, dtype=dtype).eval()
    model.generation_config.eos_token_id = None  # all contenders write the full number of tokens
    extra = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if lookup else {}
    passes = 0

    def count_pass(*_: object) -> None:
        nonlocal passes
        passes += 1

    model.register_forward_pre_hook(count_pass)

    def solve(ids: list[int], count: int, _: dict[str, Any]) -> Answer:
        nonlocal passes
        passes = 0
        arrivals = Arrivals()
        prompt = torch.tensor([ids])
        mask = torch.ones_like(prompt)
        begin = time.perf_counter()
        with torch.inference_mode():
            output = model.generate(
                prompt, attention_mask=mask, do_sample=False, max_new_tokens=count, streamer=arrivals, **extra
            )
        seconds = time.perf_counter() - begin
        first = arrivals.times[1] - begin
        return {"ids": output[0, len(ids) :].tolist(), "seconds": seconds, "first": first, "passes": passes}

    loop(solve)


def grimboost_contender(reference: str, precision: str, drafter: str, threads: int) -> None:
    """An engine in strict mode; options of a request become parameters.

    It has no datastore, or it would draft a second round from its own answers of the first.
    """
    import anyio

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
        loading = Engine.load(reference, precision=precision, drafter=drafter, datastore="none", threads=threads)  # type: ignore[arg-type]
        async with await loading as engine:
            say({"ready": True})
            while line := await anyio.to_thread.run_sync(sys.stdin.readline):
                request = json.loads(line)
                say(await answer(engine, request["ids"], request["count"], request.get("options", {})))

    anyio.run(main)


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
    contender, reference, precision, detail, *threads = sys.argv[1:]
    if contender == "transformers":
        transformers_contender(reference, precision, detail == "lookup")
    else:
        grimboost_contender(reference, precision, detail, int(threads[0]) if threads else 0)
