"""Other engines as contenders, each in its own fastest greedy way: llama.cpp and OpenVINO GenAI.

    python -m bench.peers llama.cpp  GGUF_FILE THREADS none
    python -m bench.peers openvino   DIRECTORY THREADS none | lookup

Both are optional (the extra `bench`) and may live in another environment, so this module gets paths and token ids
and imports nothing of grimboost. What is fair to them:

- Both get the prompt as ids, begin each prompt with an empty cache, choose greedily and ignore end-of-sequence.
  Neither turns tokens into text, which grimboost does.
- llama.cpp is called by its C interface: one `llama_decode` per part of the prompt of up to 512 tokens, with
  logits for the last one, then one for each token, chosen by its own greedy sampler. Python adds microseconds, not
  the copy of all logits that `Llama.generate` makes. Flash attention is left to its own choice.
- OpenVINO GenAI runs its default pipeline (paged attention, 8-bit cache, bf16 where the CPU has it). Prefix
  caching is off, or a second round would find the prompt of the first. Its prompt lookup gets 5 candidates behind
  n-grams of up to 3 tokens, the values of its own sample.
"""

import ctypes
import sys
import time
from typing import Any

from bench.contender import Answer, loop, say

CONTEXT = 4096
BATCH = 512
LOOKUP_TOKENS = 5
LOOKUP_NGRAM = 3


def llama_cpp_contender(file: str, threads: int) -> None:
    """llama.cpp on a GGUF file."""
    import llama_cpp as api

    quiet = api.llama_log_callback(lambda *_: None)
    api.llama_log_set(quiet, ctypes.c_void_p(0))
    api.llama_backend_init()
    model = api.llama_model_load_from_file(file.encode(), api.llama_model_default_params())
    settings = api.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = CONTEXT, BATCH, BATCH
    settings.n_threads = settings.n_threads_batch = threads
    context = api.llama_init_from_model(model, settings)
    memory = api.llama_get_memory(context)
    greedy = api.llama_sampler_init_greedy()

    def feed(ids: list[int]) -> None:
        held = (api.llama_token * len(ids))(*ids)  # a batch only points to it
        if status := api.llama_decode(context, api.llama_batch_get_one(held, len(ids))):
            raise SystemExit(f"llama_decode ended with {status}")

    def solve(ids: list[int], count: int, _: dict[str, Any]) -> Answer:
        api.llama_memory_clear(memory, True)
        chosen: list[int] = []
        first = 0.0
        begin = time.perf_counter()
        for start in range(0, len(ids), BATCH):
            feed(ids[start : start + BATCH])
        while True:
            chosen.append(api.llama_sampler_sample(greedy, context, -1))
            first = first or time.perf_counter() - begin
            if len(chosen) == count:
                break
            feed(chosen[-1:])
        return {"ids": chosen, "seconds": time.perf_counter() - begin, "first": first, "passes": count}

    loop(solve)


def openvino_contender(directory: str, threads: int, lookup: bool) -> None:
    """OpenVINO GenAI's pipeline on a directory that `bench.openvino_export` made."""
    import numpy
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    extra = {"prompt_lookup": True} if lookup else {}
    pipeline = openvino_genai.LLMPipeline(
        directory, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads, **extra
    )

    def solve(ids: list[int], count: int, _: dict[str, Any]) -> Answer:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        if lookup:
            config.num_assistant_tokens, config.max_ngram_size = LOOKUP_TOKENS, LOOKUP_NGRAM
        prompt = numpy.array([ids], dtype=numpy.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(prompt), openvino.Tensor(numpy.ones_like(prompt)))
        begin = time.perf_counter()
        result = pipeline.generate(inputs, config)
        seconds = time.perf_counter() - begin
        metrics = result.perf_metrics
        return {
            "ids": list(result.tokens[0]),
            "seconds": seconds,
            "first": metrics.get_ttft().mean / 1000,
            "passes": len(metrics.raw_metrics.token_infer_durations),
        }

    loop(solve)


def main() -> None:
    kind, path, threads, detail = sys.argv[1:]
    try:
        if kind == "llama.cpp":
            llama_cpp_contender(path, int(threads))
        else:
            openvino_contender(path, int(threads), detail == "lookup")
    except ImportError as error:
        say({"unavailable": f"{error} (install the extra `bench`, or name an interpreter with --peer-python)"})


if __name__ == "__main__":
    main()
