"""The packed target: the promises of a target in every precision, and slots that never see their company."""

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tiny_models import BYTES, SHAPES, one_thread, tiny_llama  # noqa: F401
from tiny_packed import (
    PRECISIONS,
    family_model,
    packed,
    packed_logits,
    random_ids,
    whole_team,  # noqa: F401
)

from grimboost.adapters.conformance import check_target
from grimboost.adapters.conformance_subject import FILTERED, GREEDY, Effort
from grimboost.adapters.packed_model import pack_loaded
from grimboost.adapters.packed_runner import Row
from grimboost.adapters.packed_target import PackedTarget
from grimboost.adapters.sequential import decode_sequentially
from grimboost.adapters.target import Chosen, Precision, Rows, Slot
from grimboost.errors import TargetError
from grimboost.stages.sampling_rule import SamplingRule

each_precision = pytest.mark.parametrize("precision", PRECISIONS)


def target_of(precision: Precision, name: str = "grouped heads", threads: int = 1) -> PackedTarget:
    return PackedTarget(packed(precision, name), BYTES, threads=threads)


@each_precision
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_conformance(name: str, threads: int, precision: Precision) -> None:
    target = target_of(precision, name, threads)
    check_target(lambda: target, Effort() if name == "grouped heads" else Effort(positions=(48,)))


@each_precision
@pytest.mark.parametrize("name", ["tied", "narrow", "qwen2", "qwen3 biased"])
def test_conformance_of_families(name: str, precision: Precision) -> None:
    target = target_of(precision, name, 2)
    check_target(lambda: target, Effort(positions=(48,)))


class Solo:
    """What each slot chooses alone, one row a pass."""

    def __init__(self, target: PackedTarget) -> None:
        self._target = target

    def __call__(self, text: Sequence[int], count: int, rule: SamplingRule = GREEDY) -> list[Chosen]:
        """Choices after each of the last `count` tokens of `text`."""
        slot = self._target.open(rule)
        chosen = [self._target.step([Rows(slot, (token,), 1)])[0][0] for token in text]
        self._target.close(slot)
        return chosen[len(chosen) - count :]


def opened(target: PackedTarget, text: Sequence[int], rule: SamplingRule = GREEDY) -> Slot:
    """A slot that holds a text, fed in one pass after another."""
    slot = target.open(rule)
    if text:
        target.step([Rows(slot, tuple(text), 0)])
    return slot


RULES = (GREEDY, FILTERED, SamplingRule(temperature=1.0, seed=3), SamplingRule(repetition_penalty=1.5))


@each_precision
@pytest.mark.parametrize("threads", [1, 2])
def test_g2b_a_long_prefill_beside_others_that_decode(precision: Precision, threads: int) -> None:
    """More rows than one pass takes; the cut between passes falls inside a slot's rows."""
    target = target_of(precision, threads=threads)
    solo = Solo(target)
    # (held, fed, choices, rule)
    plan = [(5, 1, 1, GREEDY), (0, 150, 0, GREEDY), (40, 8, 8, FILTERED), (9, 70, 3, GREEDY), (30, 1, 1, RULES[2])]
    texts = [random_ids(held + fed, seed) for seed, (held, fed, *_) in enumerate(plan)]
    want = [solo(text, choose, rule) for text, (_, _, choose, rule) in zip(texts, plan, strict=True)]
    for order in itertools.islice(itertools.permutations(range(5)), 0, None, 23):
        slots = [opened(target, text[:held], rule) for text, (held, *_, rule) in zip(texts, plan, strict=True)]
        batch = [Rows(slots[place], tuple(texts[place][plan[place][0] :]), plan[place][2]) for place in order]
        for place, got in zip(order, target.step(batch), strict=True):
            assert got == want[place]
        for slot in slots:
            target.close(slot)
    # the prefilled slot is as good as one fed token by token
    slot = opened(target, [])
    target.step([Rows(slot, tuple(texts[1]), 0)])
    assert target.step([Rows(slot, (7,), 1)])[0] == solo([*texts[1], 7], 1)
    target.close(slot)


@each_precision
@pytest.mark.usefixtures("whole_team")
def test_eight_slots_that_decode_together_decode_as_alone(precision: Precision) -> None:
    target = target_of(precision, threads=2)
    rules = [RULES[place % 4] for place in range(8)]
    prompts = [random_ids(1 + 7 * place, place) for place in range(8)]
    alone = [decode_sequentially(target, prompt, rule, 20) for prompt, rule in zip(prompts, rules, strict=True)]
    slots = [opened(target, prompt[:-1], rule) for prompt, rule in zip(prompts, rules, strict=True)]
    last = [prompt[-1] for prompt in prompts]
    for step in range(20):
        for place, [chosen] in enumerate(target.step([Rows(slots[i], (last[i],), 1) for i in range(8)])):
            assert chosen == alone[place][step]
            last[place] = chosen.id
    for slot in slots:
        target.close(slot)


@each_precision
def test_b1_what_was_rolled_back_leaves_no_trace(precision: Precision) -> None:
    """Any cut, also inside a tile of 16 positions and inside a step of 4, and another continuation behind it."""
    target = target_of(precision, "odd sizes", 2)
    solo = Solo(target)
    text = random_ids(40)
    slot = opened(target, text)
    for cut in (39, 38, 33, 32, 31, 17, 16, 15, 5, 1, 0):
        target.rollback(slot, cut)
        behind = random_ids(6, cut)
        [got] = target.step([Rows(slot, tuple(behind), 6)])
        assert got == solo([*text[:cut], *behind], 6)
        target.rollback(slot, cut)
        target.step([Rows(slot, tuple(text[cut:]), 0)])
        assert target.length(slot) == 40
        target.rollback(slot, 40)
    target.close(slot)


@each_precision
@pytest.mark.parametrize("edge", [16, 64, 256, 512])
def test_a_cache_that_grows_keeps_what_it_holds(precision: Precision, edge: int) -> None:
    """Room doubles at 256 and 512 positions; blocks across such an edge are like single rows."""
    target = target_of(precision)
    text = random_ids(edge + 12)
    want = Solo(target)(text, 20)
    for block in (20, 7, 3):
        slot = opened(target, text[: edge - 8])
        got: list[Chosen] = []
        for at in range(edge - 8, edge + 12, block):
            some = tuple(text[at : at + block])
            got += target.step([Rows(slot, some, len(some))])[0]
        assert got == want
        target.close(slot)


@each_precision
@pytest.mark.parametrize("context", [1, 5, 37, 257])
def test_b9_a_context_is_full_at_its_last_place(precision: Precision, context: int) -> None:
    model = pack_loaded(family_model(max_position_embeddings=context), precision)
    target = PackedTarget(model, BYTES, threads=2)
    text = tuple(random_ids(context))
    slot = target.open(GREEDY)
    [chosen] = target.step([Rows(slot, text, context)])
    assert chosen == Solo(target)(text, context)
    for count in (1, 2, 70):
        with pytest.raises(TargetError, match="exceed the context limit"):
            target.step([Rows(slot, text[:1] * count, 1)])
    target.rollback(slot, context - 1)
    assert target.step([Rows(slot, text[-1:], 1)])[0] == chosen[-1:]


# ---------------------------------------------------------------- choice


@each_precision
def test_g1_of_equal_logits_the_lowest_id_wins_in_every_pass(precision: Precision) -> None:
    model = tiny_llama()
    weight = model.lm_head.weight.data
    weight[7] = weight[9] = weight[200] = 40.0 * weight[7]
    target = PackedTarget(pack_loaded(model, precision), BYTES, threads=2)
    text = random_ids(60)
    slot = target.open(GREEDY)
    [together] = target.step([Rows(slot, tuple(text), 60)])
    assert together == Solo(target)(text, 60)
    tied = [one for one in together if one.margin == 0.0]
    assert tied
    assert {one.id for one in tied} == {7}
    assert not {one.id for one in together} & {9, 200}


@each_precision
def test_g1_sampling_and_greedy_follow_one_rule(precision: Precision) -> None:
    """The kernels choose where nothing but the largest logit counts, numpy otherwise: both say the same."""
    target = target_of(precision)
    text = random_ids(50)
    plain = Solo(target)(text, 50)
    penalty = SamplingRule(suppressed=(256,), suppressed_until=10**6)  # not plain, and of no effect
    assert all(one.id != 256 for one in plain)
    for got, want in zip(Solo(target)(text, 50, penalty), plain, strict=True):
        assert got.id == want.id
        assert got.margin >= want.margin  # the runner-up may have been the suppressed one


@each_precision
def test_a5_padding_rows_are_never_chosen(precision: Precision) -> None:
    model = tiny_llama(rows=len(BYTES) + 51)
    model.lm_head.weight.data[len(BYTES) :] *= 50.0
    target = PackedTarget(pack_loaded(model, precision), BYTES)
    text = random_ids(50)
    for rule in RULES:
        assert max(one.id for one in Solo(target)(text, 50, rule)) < len(BYTES)


@each_precision
def test_the_choices_are_those_of_the_logits(precision: Precision) -> None:
    model = packed(precision)
    ids = random_ids(40)
    logits = packed_logits(model, ids)
    chosen = Solo(target_of(precision))(ids, 40)
    ordered = np.sort(logits, -1)
    assert [one.id for one in chosen] == logits.argmax(-1).tolist()
    assert [one.margin for one in chosen] == (ordered[:, -1] - ordered[:, -2]).tolist()


def test_facts() -> None:
    target = PackedTarget(packed("int4"), BYTES, "tiny", "abc", threads=2)
    facts = target.facts
    assert (facts.name, facts.precision, facts.context_limit, facts.digest) == ("tiny", "int4", 640, "abc")
    assert (facts.row_invariant, facts.tie_bound, facts.rollback) == (True, 0.0, "trim")
    assert "2 threads" in facts.kernels
    assert PackedTarget(packed("int4"), BYTES).facts.kernels != ""


# ---------------------------------------------------------------- misuse and failure


@pytest.mark.parametrize("id", [-1, len(BYTES), 10**6, 2**40])
def test_an_id_without_a_row_in_the_embedding_is_refused(id: int) -> None:
    """It would be read from memory that belongs to something else."""
    target = target_of("int8")
    slot, other = opened(target, (1, 2)), opened(target, (3,))
    with pytest.raises(TargetError, match=f"id {id} "):
        target.step([Rows(other, (5,), 1), Rows(slot, (4, id, 5), 1)])
    assert (target.length(slot), target.length(other)) == (2, 1)
    assert target.step([Rows(slot, (4,), 1)])[0] == Solo(target)((1, 2, 4), 1)


def test_a_pass_that_fails_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of("int8")
    slot, other = opened(target, range(5)), opened(target, range(3))
    batch = [Rows(slot, tuple(range(90)), 2), Rows(other, (9,), 1)]
    want = target.step(batch)
    target.rollback(slot, 5)
    target.rollback(other, 3)
    calls = 0
    true = target._runner.run

    def broken(rows: list[Row]) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise MemoryError
        return true(rows)

    with monkeypatch.context() as failing:
        failing.setattr(target._runner, "run", broken)
        with pytest.raises(MemoryError):
            target.step(batch)
    assert (target.length(slot), target.length(other)) == (5, 3)
    assert target.step(batch) == want


@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
def test_a_value_beyond_float16_stays_in_its_row(precision: Precision) -> None:
    """Rows of one step of four positions are multiplied together, the later ones by zero: not infinity by zero."""
    model = family_model(num_hidden_layers=1)
    embedding, values = model.model.embed_tokens.weight.data, model.model.layers[0].self_attn.v_proj.weight.data
    embedding[:, 0], embedding[99] = 0.0, 0.0
    embedding[99, 0], values[:, 0] = 1.0, 20_000.0  # the only token that meets this column
    target = PackedTarget(pack_loaded(model, precision), BYTES)
    text = (1, 2, 99, 3, 4, 5)
    want = Solo(target)(text, 6)
    slot = target.open(GREEDY)
    assert target.step([Rows(slot, text, 6)])[0][:2] == want[:2]
    target.rollback(slot, 1)
    assert target.step([Rows(slot, (2,), 1)])[0] == want[1:2]


def test_targets_do_not_meet() -> None:
    """Three teams in three threads at the same time, each with its own memory."""
    want = {precision: Solo(target_of(precision))(random_ids(40), 40) for precision in PRECISIONS[1:]}
    got: dict[str, list[Chosen]] = {}

    def work(precision: Precision) -> None:
        got[precision] = Solo(target_of(precision, threads=2))(random_ids(40), 40)

    workers = [threading.Thread(target=work, args=(precision,)) for precision in PRECISIONS[1:]]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert got == want
