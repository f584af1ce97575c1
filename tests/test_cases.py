"""Cases from the field, end to end: an engine over a scripted or tiny random target, and drafts of any bytes.

The oracle is plain decoding, one row a pass, of the same target. Each test is named after its case.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_models import (  # noqa: F401
    BYTES,
    DRAFTING_PAYS,
    END,
    loaded,
    noise_target,
    one_thread,
    tiny_llama,
    tiny_target,
)
from tiny_packed import PRECISIONS, tiny_packed_target
from token_drafter import TokenDrafter

from grimboost import messages as m
from grimboost.adapters.drafter import Drafter
from grimboost.adapters.eager_target import EagerTarget
from grimboost.adapters.lookup_drafter import LookupDrafter
from grimboost.adapters.packed_model import pack_loaded
from grimboost.adapters.packed_target import PackedTarget
from grimboost.adapters.script_drafter import ScriptDrafter
from grimboost.adapters.scripted_target import ScriptedTarget
from grimboost.adapters.segmentation import LongestMatchSegmenter
from grimboost.adapters.sequential import decode_sequentially
from grimboost.adapters.target import Chosen, Rows, Slot, Target
from grimboost.adapters.vocabulary import Vocabulary
from grimboost.adapters.weights import DTYPES
from grimboost.engine import Engine
from grimboost.errors import MisuseError
from grimboost.generation import Result
from grimboost.loading import LoadedTarget
from grimboost.log import Log
from grimboost.replaying import replay
from grimboost.stages.sampling_rule import SamplingRule

PROMPT = (65, 66, 67)
POISON = ord("#")


class Watched:
    """A target, and what its slots held when they were given back."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.facts, self.vocabulary = inner.facts, inner.vocabulary
        self.closed: list[tuple[int, ...]] = []
        self.passes: list[int] = []

    @property
    def open_slots(self) -> int:
        return int(self._inner.open_slots)

    def open(self, rule: SamplingRule) -> Slot:
        return self._inner.open(rule)  # type: ignore[no-any-return]

    def step(self, batch: Sequence[Rows]) -> list[list[Chosen]]:
        self.passes.append(len(batch))
        return self._inner.step(batch)  # type: ignore[no-any-return]

    def length(self, slot: Slot) -> int:
        return int(self._inner.length(slot))

    def rollback(self, slot: Slot, length: int) -> None:
        self._inner.rollback(slot, length)

    def close(self, slot: Slot) -> None:
        entry = self._inner._slots[slot]
        self.closed.append(tuple(entry.tokens))
        if isinstance(self._inner, EagerTarget):
            assert {layer.get_seq_length() for layer in entry.cache.layers} == {len(entry.tokens)}
        self._inner.close(slot)


@cache
def made(name: str) -> Target:
    return TARGETS[name]()


TARGETS: dict[str, Callable[[], Target]] = {
    "noise": noise_target,
    "fp32": tiny_target,
    "bf16": lambda: tiny_target("bf16"),
    "fp32 on stock kernels": lambda: tiny_target(exact=False),
    **{f"packed {precision}": partial(tiny_packed_target, precision) for precision in PRECISIONS},
}
every_target = pytest.mark.parametrize("name", TARGETS)


every_model = pytest.mark.parametrize(
    ("kernels", "precision"),
    [("row-exact", "fp32"), ("row-exact", "bf16"), *(("packed", precision) for precision in PRECISIONS)],
)


def over(model: Any, kernels: str, precision: Any) -> Target:
    """A target over a transformers model in fp32."""
    if kernels == "packed":
        return PackedTarget(pack_loaded(model, precision), BYTES, threads=2)
    return EagerTarget(model.to(DTYPES[precision]), BYTES, precision=precision)


def cut(text: bytes) -> tuple[int, ...]:
    return tuple(id for id, _ in LongestMatchSegmenter(BYTES).cut(text))


def reader(*texts: bytes) -> ScriptedTarget:
    """A target that goes on as the first of `texts` that begins with all bytes fed; else it says `#`."""

    def next_token(prefix: Sequence[int]) -> int:
        data = BYTES.join(prefix)
        rest = next((text[len(data) :] for text in texts if text.startswith(data)), None)
        return POISON if rest is None else cut(rest[: BYTES.longest])[0] if rest else END

    return ScriptedTarget(BYTES, next_token)


def plain(target: Target, prompt: Sequence[int] = PROMPT, budget: int = 24, *ends: int, **rule: Any) -> list[int]:
    """Ids of the oracle."""
    chosen = decode_sequentially(target, prompt, SamplingRule(**rule), budget, ends)
    return [one.id for one in chosen]


def drafting(
    path: Sequence[int], tokens: int = 8, prompt: Sequence[int] = PROMPT, behind: bytes = b"", size: int = 999
) -> ScriptDrafter:
    """Drafts so many true tokens of `path` and then `behind`; at most `size` bytes."""
    data, start = BYTES.join(path), len(BYTES.join(prompt))
    ends = [0, *accumulate(len(BYTES.data(id)) for id in path)]

    def script(context: bytes, _: int) -> bytes:
        at = len(context) - start
        last = min(bisect_left(ends, at) + tokens, len(path))
        return (data[at : ends[last]] + behind)[:size]

    return ScriptDrafter(script)


async def drive(
    target: Any,
    drafter: Drafter | str | None,
    *prompts: Sequence[int],
    ends: Sequence[int] = (),
    record: Path | None = None,
    **options: Any,
) -> list[Result]:
    """Generations of all prompts at the same time."""
    results: list[Any] = [None] * len(prompts)

    async def one(engine: Engine, place: int) -> None:
        async with engine.generate(prompts[place], record=record, **options) as generation:
            shown = b""
            async for event in generation:
                if isinstance(event, m.Chunk):
                    assert event.offset == len(shown)
                    shown += event.data
        assert generation.result.data == shown
        results[place] = generation.result

    async with Engine(loaded(target, *ends), drafter) as engine, anyio.create_task_group() as tasks:
        for place in range(len(prompts)):
            tasks.start_soon(one, engine, place)
    assert target.open_slots == 0
    return results


async def drive_one(
    target: Any, drafter: Drafter | str | None, prompt: Sequence[int] = PROMPT, **options: Any
) -> Result:
    """One generation; its slot has to hold the path (whose last token need not have been fed) in the end."""
    watched = Watched(target)
    [result] = await drive(watched, drafter, prompt, **options)
    [held] = watched.closed
    path = (*prompt, *result.token_ids)
    assert held in (path, path[:-1])
    return result


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize(
    "text", ["中文".encode(), b"\x41\xf0\x42 the fox", b" a 's\n  x"], ids=["single bytes", "lead byte", "spaces"]
)
@pytest.mark.parametrize("size", [1, 2, 160])
async def test_a2_what_is_streamed_is_the_bytes_of_the_table(text: bytes, size: int) -> None:
    target = reader(b"ABC" + text)
    result = await drive_one(target, drafting(cut(text), size=size), ends=[END])
    assert result.data == text
    assert result.token_ids == (*cut(text), END)


@pytest.mark.parametrize("size", range(1, 8))
@pytest.mark.parametrize("whole", [True, False])
async def test_half_of_a_four_byte_character_at_the_end_of_each_block(size: int, whole: bool) -> None:
    text = "🍂🙂 é中🍂".encode() * 2
    drafter = drafting(cut(text), 99, size=size)
    drafter.whole = whole
    result = await drive_one(reader(b"ABC" + text), drafter, ends=[END])
    assert (result.data, result.token_ids) == (text, (*cut(text), END))
    assert result.statistics.accepted_bytes > 0 or (size == 1 and not whole)


@every_target
async def test_a4_a_drafter_with_tokens_of_its_own_changes_nothing(name: str) -> None:
    path = plain(made(name))
    own = Vocabulary([*(bytes([byte]) for byte in range(256)), b" thank", b"AB", None])
    drafter = TokenDrafter(own, b"ABC" + BYTES.join(path)[:9] + b" thank", at_most=12)
    assert (await drive_one(made(name), drafter, max_new_tokens=24)).token_ids == tuple(path)


@every_model
async def test_a5_a_padding_row_is_never_chosen_with_or_without_drafts(kernels: str, precision: Any) -> None:
    model = tiny_llama(rows=len(BYTES) + 51)
    model.lm_head.weight.data[len(BYTES) :] *= 50.0
    target = over(model, kernels, precision)
    path = plain(target)
    assert max(path) < len(BYTES)
    for drafter in (None, drafting(path), drafting(path, 2, behind=b"<think>")):
        assert (await drive_one(target, drafter, max_new_tokens=24)).token_ids == tuple(path)


async def test_a5_a_control_token_of_the_drafter_ends_its_draft() -> None:
    text = b" the quick fox thank the fox"
    own = Vocabulary([*(bytes([byte]) for byte in range(256)), None, None])
    think = len(own) - 2

    drafter = TokenDrafter(own, b"ABC" + text)
    true = drafter.next_token
    drafter.next_token = lambda prefix: think if len(prefix) == 10 else true(prefix)
    session = drafter.begin()
    session.extend(b"ABC")
    assert session.propose(b"", 99).data == text[:6]  # behind BOS, three of the prompt and six of its own
    result = await drive_one(reader(b"ABC" + text), drafter, ends=[END])
    assert result.data == text
    assert result.statistics.accepted_bytes > 0


# ---------------------------------------------------------------- cache and rollback


@every_target
@pytest.mark.parametrize("accepted", [0, 1, 4])
async def test_b1_a_prompt_of_one_token_and_four_drafted(name: str, accepted: int) -> None:
    path = plain(made(name), (65,), 12)
    drafter = drafting(path, accepted, (65,), behind=b"####"[accepted:])
    assert (await drive_one(made(name), drafter, (65,), max_new_tokens=12)).token_ids == tuple(path)


@every_target
async def test_b1_two_in_one_batch_accept_nothing_and_all(name: str) -> None:
    prompts = ((65, 66), (67, 68, 69))
    paths = [plain(made(name), prompt) for prompt in prompts]
    data = BYTES.join(paths[1])

    def script(context: bytes, _: int) -> bytes:
        return data[len(context) - 3 :][:4] if context.startswith(b"CDE") else b"####"

    watched = Watched(made(name))
    results = await drive(watched, ScriptDrafter(script), *prompts, max_new_tokens=24)
    assert [list(result.token_ids) for result in results] == paths
    assert 2 in watched.passes


async def test_b2_rounds_with_and_without_drafts_between_each_other(tmp_path: Path) -> None:
    prompt, text = b"abcabcabX abc", b"abcabX abcabcabX abcX fox abcabcabX abc"
    record = tmp_path / "b2.grimlog"
    target = reader(prompt + text)
    result = await drive_one(target, LookupDrafter(), cut(prompt), ends=[END], record=record)
    assert (result.data, list(result.token_ids)) == (text, plain(target, cut(prompt), 99, END))
    rows = assert_cache_follows_path(record, list(cut(prompt)))
    assert 1 in rows
    assert max(rows) > 3
    assert 0 < result.statistics.accepted_tokens < result.statistics.drafted_tokens


def assert_cache_follows_path(record: Path, path: list[int]) -> list[int]:
    """At every pass the slot is cut to the path without its last token, which is fed first. Rows of each pass."""
    rows = []
    for entry in Log.open(record):
        if entry.stage == "verifier" and isinstance(entry.message, m.Committed):
            path += [token.id for token in entry.message.tokens]
        if entry.stage == "verifier" and isinstance(entry.message, m.PassReturned) and entry.message.choices:
            assert entry.message.length == len(path) - 1 + rows[-1]
        for answer in entry.answers:
            if isinstance(answer, m.PassRequested) and answer.choose:
                assert (answer.keep, answer.tokens[0]) == (len(path) - 1, path[-1])
                rows.append(len(answer.tokens))
    return rows


@every_target
@pytest.mark.parametrize("mix", [(0, 3, 0, 0, 8, 1), (1, 0, 4), (8, 0)], ids=str)
async def test_b2_any_mix_of_accepted_counts(name: str, mix: tuple[int, ...], tmp_path: Path) -> None:
    path = plain(made(name))
    data, turn = BYTES.join(path), iter(range(10**6))

    def script(context: bytes, _: int) -> bytes:
        return data[len(context) - 3 :][: mix[next(turn) % len(mix)]] + b"#"

    record = tmp_path / "b2.grimlog"
    result = await drive_one(made(name), ScriptDrafter(script), record=record, max_new_tokens=24)
    assert result.token_ids == tuple(path)
    if name != "fp32 on stock kernels":  # there re-checks feed rows one by one
        assert_cache_follows_path(record, list(PROMPT))


CONTEXTS: dict[str, Callable[[int], Target]] = {
    "noise": noise_target,
    "fp32": lambda context: tiny_target(context=context),
    "packed int8": lambda context: tiny_packed_target("int8", context=context),
}


@pytest.mark.parametrize("name", CONTEXTS)
async def test_b9_within_the_draft_of_the_context_limit(name: str) -> None:
    target = CONTEXTS[name](32)
    prompt = tuple(range(65, 93))
    path = plain(target, prompt, 99)
    assert len(path) == 4
    for budget in (4, 5, 99):
        result = await drive_one(target, drafting(path, 8, prompt, behind=b"#" * 8), prompt, max_new_tokens=budget)
        assert (list(result.token_ids), result.finish_reason) == (path, "length")
        assert result.statistics.drafted_tokens <= 3


@pytest.mark.parametrize("name", CONTEXTS)
async def test_b9_a_full_context_ends_and_a_prompt_over_the_limit_is_refused(name: str) -> None:
    target = CONTEXTS[name](32)
    watched = Watched(target)
    [result] = await drive(watched, LookupDrafter(), (65,) * 32)
    assert (result.token_ids, result.data, result.finish_reason) == ((), b"", "length")
    async with Engine(loaded(target)) as engine:
        with pytest.raises(MisuseError, match="the prompt has 33 tokens, the target's context limit is 32"):
            engine.generate((65,) * 33)
    assert target.open_slots == 0


async def test_b9_a_drafter_past_its_own_limit_abstains() -> None:
    text = b"the quick fox thanks the quick fox and goes on " * 2
    asked: list[int] = []

    def script(context: bytes, _: int) -> bytes:
        asked.append(len(context))
        return text[len(context) - 3 :][:4] if len(context) <= 16 else b""

    result = await drive_one(reader(b"ABC" + text), ScriptDrafter(script), ends=[END])
    assert result.data == text
    assert 0 < result.statistics.drafted_bytes <= 20
    assert max(asked) > 32


# ---------------------------------------------------------------- end of sequence and stop strings


@every_target
@pytest.mark.parametrize("place", [0, 1, 5])
async def test_c1_end_of_sequence_inside_an_accepted_block(name: str, place: int) -> None:
    """The end is a token with bytes, so that a draft can hold it and what would come behind it."""
    target = made(name)
    free = plain(target)
    end = free[place]
    path = plain(target, PROMPT, 24, end)
    assert path == free[: free.index(end) + 1]
    for drafter in (None, drafting(free), drafting(free, 2), drafting(free, 0, behind=b"#")):
        result = await drive_one(target, drafter, ends=[end], max_new_tokens=24)
        assert (list(result.token_ids), result.finish_reason) == (path, "stop")
        assert result.data == BYTES.join(path[:-1])
        more = await drive_one(target, drafter, (*PROMPT, *path), max_new_tokens=6)
        assert list(more.token_ids) == plain(target, (*PROMPT, *path), 6)


async def test_c1_end_of_sequence_as_the_targets_own_token_and_absent() -> None:
    text = b" the quick fox"
    target = reader(b"ABC" + text)
    for drafter in (None, drafting(cut(text)), drafting(cut(text), behind=b" thank")):
        ended = await drive_one(target, drafter, ends=[END], max_new_tokens=8)
        assert (ended.token_ids, ended.finish_reason) == ((*cut(text), END), "stop")
        endless = await drive_one(target, drafter, max_new_tokens=8)  # GPT-2 without one
        assert (list(endless.token_ids), endless.finish_reason) == (plain(target, PROMPT, 8), "length")


@every_target
async def test_c1_an_end_that_only_the_drafter_proposes_is_no_end(name: str) -> None:
    free = plain(made(name))
    end = next(id for id in range(256) if id not in free)
    result = await drive_one(
        made(name), drafting(free, 2, behind=BYTES.data(end) * 2), ends=[end], max_new_tokens=24
    )
    assert (list(result.token_ids), result.finish_reason) == (free, "length")


@pytest.mark.parametrize(
    ("stop", "data", "ids"),
    [(b" ha ha", b" it says", cut(b" it says")), (b"a ha", b" it says h", cut(b" it says"))],
    ids=["at a token", "inside a token"],
)
async def test_c3_one_cut_for_text_ids_cache_and_log(
    stop: bytes, data: bytes, ids: tuple[int, ...], tmp_path: Path
) -> None:
    target = reader(b"ABC it says ha ha ha ha! and", b"ABC it says nothing more")
    drafter = drafting(cut(b" it says ha ha ha ha! and"), 99)
    for used in (None, drafter):
        record = tmp_path / "c3.grimlog"
        watched = Watched(target)
        [result] = await drive(watched, used, PROMPT, ends=[END], stop=(stop,), record=record)
        assert (result.data, result.token_ids, result.finish_reason) == (data, ids, "stop")
        assert result.statistics.new_tokens == len(ids)
        assert result.statistics.new_bytes == len(data)
        assert watched.closed == [(*PROMPT, *ids)]
        log = Log.open(record)
        assert replay(log) is None
        answers = [answer for entry in log for answer in entry.answers]
        [done] = [answer for answer in answers if isinstance(answer, m.Done)]
        assert (done.ids, done.length) == (ids, len(data))
        [released] = [entry.message for entry in log if isinstance(entry.message, m.Released)]
        assert released.length == len(PROMPT) + len(ids)
        second = (*PROMPT, *result.token_ids, *cut(b" nothing"))
        turn = await drive_one(target, used, second, ends=[END])
        assert turn.data == b" more"


@pytest.mark.parametrize("ignored", [False, True])
async def test_c6_every_source_of_an_end_counts_and_is_in_the_log(ignored: bool, tmp_path: Path) -> None:
    ends = {
        END: ["config.json", "chat template end of turn"],
        10: ["generation_config.json"],
        POISON: ["gguf:eot"],
    }
    for text, end in ((b"fox", END), (b"fox\nthe", 10), (b"fox#the", POISON)):
        target = LoadedTarget(reader(b"ABC" + text), DRAFTING_PAYS, end_ids=ends)
        record = tmp_path / "c6.grimlog"
        async with (
            Engine(target, drafting(cut(text))) as engine,
            engine.generate(PROMPT, max_new_tokens=9, ignore_eos=ignored, record=record) as generation,
        ):
            async for _ in generation:
                pass
        result = generation.result
        assert Log.open(record).header.end_of_sequence == ({} if ignored else ends)
        if ignored:
            assert (len(result.token_ids), result.finish_reason) == (9, "length")
        else:
            assert (result.token_ids, result.finish_reason) == ((*cut(b"fox"), end), "stop")


# ---------------------------------------------------------------- numerics and sampling


@every_target
async def test_g1_greedy_is_the_same_with_every_draft(name: str) -> None:
    path = plain(made(name), budget=40)
    broken = [id ^ 1 if place % 5 == 4 else id for place, id in enumerate(path)]
    drafters: list[Drafter | None] = [
        None,
        LookupDrafter(),
        drafting(path),
        drafting(path, 3, behind=b"#"),
        drafting(broken, 99),
        ScriptDrafter(lambda *_: b"\xff\x00 the\xf0\x9f"),
    ]
    for drafter in drafters:
        result = await drive_one(made(name), drafter, max_new_tokens=40)
        assert list(result.token_ids) == path
        assert result.data == BYTES.join(path)


@every_model
async def test_g1_a_duplicated_output_row_is_chosen_by_its_lower_id(kernels: str, precision: Any) -> None:
    """Row 7 is duplicated as row 9, and wins often; the drafter proposes 9 wherever it does."""
    model = tiny_llama()
    weight = model.lm_head.weight.data
    weight[7] = weight[9] = torch.sign(weight[7]) * 0.6
    target = over(model, kernels, precision)
    path = plain(target)
    assert 7 in path
    assert 9 not in path
    tempting = [9 if id == 7 else id for id in path]
    for drafter in (None, drafting(path), drafting(tempting)):
        assert (await drive_one(target, drafter, max_new_tokens=24)).token_ids == tuple(path)


SAMPLED = {"temperature": 0.8, "seed": 7}


@every_target
async def test_g5_a_seed_gives_one_text_however_it_is_drafted_and_in_any_company(name: str) -> None:
    target = made(name)
    path = plain(target, **SAMPLED)
    assert path != plain(target)
    assert path != plain(target, temperature=0.8, seed=8)
    options = SAMPLED | {"max_new_tokens": 24}
    for tokens, behind in ((0, b""), (3, b""), (8, b""), (3, b"#"), (0, b"##")):  # the last two are rejected
        result = await drive_one(target, drafting(path, tokens, behind=behind), **options)
        assert list(result.token_ids) == path
    company = (PROMPT, (70, 71), PROMPT, (72,) * 9)
    for drafter in (None, drafting(path, 3, behind=b"#")):
        results = await drive(target, drafter, *company, **options)
        for prompt, result in zip(company, results, strict=True):
            assert list(result.token_ids) == plain(target, prompt, **SAMPLED)


@every_target
async def test_g5_filters_are_the_same_in_every_split(name: str) -> None:
    rule = SAMPLED | {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2}
    path = plain(made(name), **rule)
    for tokens in (0, 2, 8):
        drafter = drafting(path, tokens, behind=b"#")
        assert list((await drive_one(made(name), drafter, max_new_tokens=24, **rule)).token_ids) == path


@every_target
async def test_g6_a_penalty_sees_what_plain_decoding_would_see(name: str) -> None:
    target = made(name)
    path = plain(target, repetition_penalty=1.3)
    repeated = ScriptDrafter(lambda context, _: context[-1:] * 8)  # a token repeated inside one draft
    for drafter in (None, drafting(path), drafting(path, 2, behind=b"##"), drafting(plain(target)), repeated):
        result = await drive_one(target, drafter, repetition_penalty=1.3, max_new_tokens=24)
        assert list(result.token_ids) == path


async def test_g6_a_token_repeated_inside_one_draft_is_penalized_there() -> None:
    """The target loves `a` until it has said it; a draft of three is right once."""

    def logits(prefix: Sequence[int]) -> NDArray[np.float32]:
        scores = np.zeros(len(BYTES), np.float32)
        scores[97], scores[98], scores[99] = 5.0, 4.5, 4.2
        return scores

    target = ScriptedTarget(BYTES, logits=logits)
    assert plain(target, budget=4) == [97] * 4
    path = plain(target, budget=5, repetition_penalty=1.3)
    assert path[:3] == [97, 98, 99]
    result = await drive_one(target, ScriptDrafter(lambda *_: b"aaa"), repetition_penalty=1.3, max_new_tokens=5)
    assert list(result.token_ids) == path


@every_target
async def test_g6_an_end_cannot_come_before_the_minimum(name: str) -> None:
    target = made(name)
    free = plain(target)
    end = free[1]
    rule = {"suppressed": (end,), "suppressed_until": len(PROMPT) + 4}
    path = plain(target, PROMPT, 24, end, **rule)
    assert len(path) >= 4
    for drafter in (None, drafting(free), drafting(path), drafting(path, 1, behind=BYTES.data(end))):
        result = await drive_one(target, drafter, ends=[end], min_new_tokens=4, max_new_tokens=24)
        assert list(result.token_ids) == path
