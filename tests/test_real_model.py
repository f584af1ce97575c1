"""The whole, on the real default target: what the README promises, in small. Large runs are in bench/."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from anyio.from_thread import BlockingPortal, start_blocking_portal
from transformers import LlamaForCausalLM

from grimboost import Engine, FinishReason, Log
from grimboost.adapters.target import TargetFacts
from grimboost.errors import ModelReferenceError
from grimboost.generation import Generation
from grimboost.model_cache import cache_root
from grimboost.model_references import resolve
from grimboost.packed_store import PackedStore
from grimboost.replaying import replay

pytestmark = pytest.mark.model

CHAT = "Name three colours of the rainbow 🌈 and say where one sees them."
GROUNDED = (
    "Copy this list word for word: first the red kite, second the green boat, third the blue house, fourth the "
    "red kite again, fifth the green boat again."
)
TOKENS = 40
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 5}


@pytest.fixture(scope="module")
def directory() -> Path:
    try:
        return resolve("smollm2-135m").directory
    except ModelReferenceError as error:
        pytest.skip(f"the default target cannot be had here: {error}")


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    """An event loop in a thread, for all tests of this file: the engine is entered and left in one task of it."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def engine(directory: Path, portal: BlockingPortal) -> Iterator[Engine]:
    loaded = portal.call(partial(Engine.load, "smollm2-135m", precision="fp32", certificates="memory"))
    with portal.wrap_async_context_manager(loaded) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain_ids(directory: Path) -> Iterator[dict[str, list[int]]]:
    """transformers' own greedy continuation of both prompts, with its attention mask passed."""
    from grimboost.adapters.target_tokenizer import load_tokenizer

    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    tokenizer, found = load_tokenizer(directory), {}
    for prompt in (CHAT, GROUNDED):
        ids = torch.tensor([tokenizer.prompt_ids(prompt)])
        with torch.inference_mode():
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS
            )
        found[prompt] = output[0, ids.shape[1] :].tolist()
    del model
    gc.collect()
    yield found


async def finished(generation: Generation) -> Generation:
    async with generation:
        async for _ in generation:
            pass
    return generation


async def complete_without_drafting(engine: Engine, prompts: list[str], **options: Any) -> list[bytes]:
    """What the same target writes in an engine without a drafter."""
    async with Engine(engine.loaded, None) as plain:
        return [await plain.complete(prompt, **options) for prompt in prompts]


@pytest.mark.parametrize("prompt", [CHAT, GROUNDED], ids=["chat", "grounded"])
def test_fp32_ids_are_those_of_transformers(
    engine: Engine, portal: BlockingPortal, plain_ids: dict[str, list[int]], prompt: str, tmp_path: Path
) -> None:
    record = tmp_path / "run.grimlog"
    generation = engine.generate(prompt, ignore_eos=True, max_new_tokens=TOKENS, record=record)
    result = portal.call(finished, generation).result
    assert list(result.token_ids) == plain_ids[prompt]
    assert result.finish_reason is FinishReason.LENGTH
    assert result.data == engine.loaded.target.vocabulary.join(result.token_ids)
    assert replay(Log.open(record)) is None
    if prompt is GROUNDED:
        assert result.statistics.target_passes < TOKENS / 2


def test_generations_at_once_write_what_they_write_alone(
    engine: Engine, portal: BlockingPortal, plain_ids: dict[str, list[int]]
) -> None:
    prompts = (CHAT, GROUNDED, CHAT)

    async def together() -> list[list[int]]:
        generations = [engine.generate(prompt, ignore_eos=True, max_new_tokens=TOKENS) for prompt in prompts]
        async with anyio.create_task_group() as tasks:
            for generation in generations:
                tasks.start_soon(finished, generation)
        return [list(generation.result.token_ids) for generation in generations]

    assert portal.call(together) == [plain_ids[prompt] for prompt in prompts]
    assert engine.statistics().open_slots == 0


def test_a_seed_gives_the_same_text_with_and_without_drafting(engine: Engine, portal: BlockingPortal) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "max_new_tokens": TOKENS}

    async def texts() -> tuple[bytes, bytes, list[bytes]]:
        drafted = await engine.complete(GROUNDED, seed=3, **options)
        other = await engine.complete(GROUNDED, seed=4, **options)
        return drafted, other, await complete_without_drafting(engine, [GROUNDED], seed=3, **options)

    drafted, other, plain = portal.call(texts)
    assert plain == [drafted]
    assert other != drafted


@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_every_precision_writes_the_same_with_and_without_drafting_alone_and_in_company(
    portal: BlockingPortal, directory: Path, precision: Any, sampling: dict[str, Any]
) -> None:
    prompts = [CHAT, GROUNDED, CHAT + " Briefly."]

    async def texts() -> tuple[list[bytes], list[bytes], list[bytes]]:
        together: dict[str, bytes] = {}
        async with await Engine.load("smollm2-135m", precision=precision) as engine:
            assert engine.loaded.target.facts.row_invariant

            async def one(prompt: str) -> None:
                together[prompt] = await engine.complete(prompt, max_new_tokens=TOKENS, **sampling)

            drafted = [await engine.complete(prompt, max_new_tokens=TOKENS, **sampling) for prompt in prompts]
            async with anyio.create_task_group() as tasks:
                for prompt in prompts:
                    tasks.start_soon(one, prompt)
        plain = await complete_without_drafting(engine, prompts, max_new_tokens=TOKENS, **sampling)
        return drafted, plain, [together[prompt] for prompt in prompts]

    drafted, plain, together = portal.call(texts)
    assert drafted == plain
    assert together == plain


def test_auto_takes_what_is_fastest_within_the_bound(portal: BlockingPortal, directory: Path) -> None:
    async def facts() -> TargetFacts:
        async with await Engine.load("smollm2-135m", drafter=None) as engine:
            return engine.loaded.target.facts

    measured = PackedStore(cache_root()).measured(resolve("smollm2-135m"))
    chosen = portal.call(facts).precision
    assert chosen in measured
    assert measured[chosen].perplexity <= 1.02 * measured["fp32"].perplexity
    assert measured[chosen].milliseconds < measured["fp32"].milliseconds


def test_near_ties_of_transformers_own_kernels_are_settled(
    portal: BlockingPortal, plain_ids: dict[str, list[int]]
) -> None:
    async def ids() -> list[int]:
        async with await Engine.load("smollm2-135m", precision="fp32", kernels="stock") as stock:
            assert not stock.loaded.target.facts.row_invariant
            generation = stock.generate(GROUNDED, ignore_eos=True, max_new_tokens=TOKENS)
            return list((await finished(generation)).result.token_ids)

    assert portal.call(ids) == plain_ids[GROUNDED]


def test_the_event_loop_stays_responsive_while_the_target_works(engine: Engine, portal: BlockingPortal) -> None:
    async def worst_delay() -> float:
        worst = 0.0

        async def heartbeat() -> None:
            nonlocal worst
            while True:
                begin = time.perf_counter()
                await anyio.sleep(0.005)
                worst = max(worst, time.perf_counter() - begin - 0.005)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(heartbeat)
            await finished(engine.generate(CHAT * 20, max_new_tokens=20))
            tasks.cancel_scope.cancel()
        return worst

    assert portal.call(worst_delay) < 0.05


# ---------------------------------------------------------------- streaming mode


STREAMING: dict[str, Any] = {"mode": "streaming", "release": "always", "threshold": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def audit(directory: Path) -> Callable[[Sequence[int], Sequence[int]], list[int]]:
    """An auditor that shares nothing with the engine: transformers, asked about each token by itself."""
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def positions(prompt: Sequence[int], output: Sequence[int]) -> list[int]:
        ids = torch.tensor([[*prompt, *output]])
        with torch.inference_mode():
            logits = model(ids, attention_mask=torch.ones_like(ids)).logits[0]
        chosen = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
        return [place for place, (token, own) in enumerate(zip(output, chosen, strict=True)) if token != own]

    return positions


NEW = "Name three animals of a farm, and for each one what it eats and what it gives."
"""Not answered before in this engine: its datastore knows the other answers by heart, and nothing would slip."""


@pytest.mark.parametrize("prompt", [NEW, GROUNDED])
def test_the_slips_that_the_engine_counts_are_those_of_an_audit_by_transformers(
    engine: Engine, portal: BlockingPortal, audit: Callable[[Sequence[int], Sequence[int]], list[int]], prompt: str
) -> None:
    made = portal.call(finished, engine.generate(prompt, max_new_tokens=TOKENS, **STREAMING))
    result, figures = made.result, made.result.statistics
    assert figures.released_tokens > 0
    assert figures.audited_tokens == figures.released_tokens
    assert len(result.token_ids) == TOKENS
    assert list(figures.slip_positions) == audit(made.request.prompt.prompt_ids, result.token_ids)
    if prompt == NEW:
        assert figures.slip_tokens > 0  # whatever is drafted is shown; else this would prove nothing


@pytest.mark.parametrize("prompt", [CHAT, GROUNDED])
def test_a_client_that_takes_back_ends_with_transformers_greedy_ids(
    engine: Engine, portal: BlockingPortal, plain_ids: dict[str, list[int]], prompt: str
) -> None:
    made = portal.call(finished, engine.generate(prompt, max_new_tokens=TOKENS, on_slip="retract", **STREAMING))
    assert list(made.result.token_ids) == plain_ids[prompt]
    assert made.result.statistics.released_tokens > 0
    vocabulary = engine.loaded.target.vocabulary
    assert made.result.data == vocabulary.join(made.result.token_ids)
