"""The whole, on the real default target: what the README promises, in small. Large runs are in bench/."""

import gc
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest
import pytest_asyncio
import torch
from transformers import LlamaForCausalLM

from grimboost import Engine, FinishReason, Log
from grimboost.errors import ModelReferenceError
from grimboost.generation import Generation
from grimboost.model_references import resolve
from grimboost.replay import replay

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

CHAT = "Name three colours of the rainbow 🌈 and say where one sees them."
GROUNDED = (
    "Copy this list word for word: first the red kite, second the green boat, third the blue house, fourth the "
    "red kite again, fifth the green boat again."
)
TOKENS = 40


@pytest.fixture(scope="module")
def directory() -> Path:
    try:
        return resolve("smollm2-135m").directory
    except ModelReferenceError as error:
        pytest.skip(f"the default target cannot be had here: {error}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(directory: Path) -> AsyncIterator[Engine]:
    async with await Engine.load("smollm2-135m") as engine:
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


@pytest.mark.parametrize("prompt", [CHAT, GROUNDED])
async def test_fp32_ids_are_those_of_transformers(
    engine: Engine, plain_ids: dict[str, list[int]], prompt: str, tmp_path: Path
) -> None:
    record = tmp_path / "run.grimlog"
    generation = await finished(
        engine.generate(prompt, ignore_eos=True, max_new_tokens=TOKENS, record=record)
    )
    result = generation.result
    assert list(result.token_ids) == plain_ids[prompt]
    assert result.finish_reason is FinishReason.LENGTH
    assert result.data == engine.loaded.target.vocabulary.join(result.token_ids)
    assert replay(Log.open(record)) is None
    if prompt is GROUNDED:
        assert result.statistics.target_passes < TOKENS / 2


async def test_generations_at_once_write_what_they_write_alone(
    engine: Engine, plain_ids: dict[str, list[int]]
) -> None:
    generations = [
        engine.generate(prompt, ignore_eos=True, max_new_tokens=TOKENS) for prompt in (CHAT, GROUNDED, CHAT)
    ]
    async with anyio.create_task_group() as tasks:
        for generation in generations:
            tasks.start_soon(finished, generation)
    found = [list(generation.result.token_ids) for generation in generations]
    assert found == [plain_ids[CHAT], plain_ids[GROUNDED], plain_ids[CHAT]]
    assert engine.statistics().open_slots == 0


async def test_a_seed_gives_the_same_text_with_and_without_drafting(engine: Engine) -> None:
    options = {"temperature": 0.9, "top_p": 0.95, "seed": 3, "max_new_tokens": TOKENS}
    drafted = await engine.complete(GROUNDED, **options)  # type: ignore[arg-type]
    async with Engine(engine.loaded, None) as without:
        assert await without.complete(GROUNDED, **options) == drafted  # type: ignore[arg-type]
    assert await engine.complete(GROUNDED, **{**options, "seed": 4}) != drafted  # type: ignore[arg-type]


async def test_bf16_is_the_same_with_and_without_drafting(directory: Path) -> None:
    async with await Engine.load("smollm2-135m", precision="bf16") as drafted:
        expected = [await drafted.complete(prompt, max_new_tokens=TOKENS) for prompt in (CHAT, GROUNDED)]
    async with Engine(drafted.loaded, None) as without:
        assert [await without.complete(prompt, max_new_tokens=TOKENS) for prompt in (CHAT, GROUNDED)] == expected


async def test_near_ties_of_transformers_own_kernels_are_settled(
    plain_ids: dict[str, list[int]],
) -> None:
    async with await Engine.load("smollm2-135m", row_exact=False) as stock:
        assert not stock.loaded.target.facts.row_invariant
        generation = await finished(stock.generate(GROUNDED, ignore_eos=True, max_new_tokens=TOKENS))
        assert list(generation.result.token_ids) == plain_ids[GROUNDED]


async def test_the_event_loop_stays_responsive_while_the_target_works(engine: Engine) -> None:
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
    assert worst < 0.05
