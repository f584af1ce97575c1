"""The conformance suite on every adapter, and adapters that break one promise each: it has to catch them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from tiny_models import BYTES, END, SHAPES, noise_logits, noise_target, one_thread, tiny_llama, tiny_target  # noqa: F401
from torch import Tensor

from grimboost.adapters.choice import choose_rows
from grimboost.adapters.conformance import Effort, check_target
from grimboost.adapters.eager_target import EagerTarget
from grimboost.adapters.scripted_target import ScriptedTarget, following
from grimboost.adapters.sequential import decode_sequentially
from grimboost.adapters.target import Chosen, Rows, Slot, Target
from grimboost.errors import TargetError
from grimboost.loading import load_target
from grimboost.stages.sampling_rule import SamplingRule

BRIEF = Effort(rows=(1, 2, 3, 8, 9, 32), positions=(48,))


def test_scripted_target_that_follows_a_script() -> None:
    target = ScriptedTarget(BYTES, following(3, range(40), END), context_limit=600)
    check_target(lambda: target, Effort(sampling=False))


def test_scripted_target_with_logits() -> None:
    check_target(noise_target)


def test_scripted_target_with_a_short_context() -> None:
    check_target(lambda: noise_target(context=32))


def test_scripted_target_that_claims_no_row_invariance() -> None:
    check_target(lambda: noise_target(row_invariant=False, tie_bound=0.1), BRIEF)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_row_exact_target(shape: dict[str, Any], precision: Any) -> None:
    target = tiny_target(precision, **shape)
    odd = precision == "fp32" and shape is SHAPES["odd sizes"]
    assert target.facts.row_invariant is not odd  # silu takes the last 4 of 100 features on another path
    check_target(lambda: target, Effort(positions=(0, 500)) if shape is SHAPES["grouped heads"] else BRIEF)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_eager_target_on_stock_kernels(precision: Any) -> None:
    target = tiny_target(precision, exact=False)
    assert not target.facts.row_invariant
    check_target(lambda: target, BRIEF)


def test_eager_target_without_row_invariance_on_exact_kernels() -> None:
    target = tiny_target().without_row_invariance()
    check_target(lambda: target, BRIEF)


@pytest.mark.model
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_real_model(precision: Any) -> None:
    target = load_target("smollm2-135m", precision).target
    assert target.facts.row_invariant
    effort = Effort(rows=(1, 2, 9, 32), positions=(60,), decode=6)
    check_target(lambda: target, effort)


# ---------------------------------------------------------------- an oracle that is right


def test_the_oracle_ends_at_its_end_ids_the_budget_and_the_context() -> None:
    def decode(**options: Any) -> list[int]:
        target = ScriptedTarget(BYTES, following(2, (5, 6, 7, END, 8), 9), context_limit=10)
        chosen = decode_sequentially(target, (1, 2), SamplingRule(), **options)
        assert target.open_slots == 0
        return [one.id for one in chosen]

    assert decode(max_new_tokens=20) == [5, 6, 7, END, 8, 9, 9, 9]
    assert decode(max_new_tokens=20, end_ids=(END,)) == [5, 6, 7, END]
    assert decode(max_new_tokens=2) == [5, 6]
    assert decode(max_new_tokens=0) == []


@pytest.mark.parametrize("exact", [True, False])
def test_the_eager_target_chooses_as_transformers_itself_does(exact: bool) -> None:
    model = tiny_llama(rows=len(BYTES))
    ids = list(range(40, 110))
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    best = logits.topk(2).values
    target = EagerTarget(model, BYTES, row_exact_kernels=exact)
    slot = target.open(SamplingRule())
    chosen = [*target.step([Rows(slot, tuple(ids[:8]), 8)])[0], *target.step([Rows(slot, tuple(ids[8:]), 62)])[0]]
    assert [one.id for one in chosen] == logits.argmax(-1).tolist()
    torch.testing.assert_close(torch.tensor([one.margin for one in chosen]), best[:, 0] - best[:, 1])


def test_a_pass_that_fails_midway_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    for exact in (True, False):
        target = tiny_target(exact=exact)
        slot = target.open(SamplingRule())
        target.step([Rows(slot, (1, 2, 3), 0)])
        layer = target._model.model.layers[1]
        with monkeypatch.context() as broken:
            broken.setattr(layer.mlp, "forward", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                target.step([Rows(slot, (4, 5), 2)])
        assert target.length(slot) == 3
        got = target.step([Rows(slot, (4, 5), 2)])
        fresh = target.open(SamplingRule())
        target.step([Rows(fresh, (1, 2, 3), 0)])
        assert got == target.step([Rows(fresh, (4, 5), 2)])


# ---------------------------------------------------------------- adapters that break a promise


class Wrong(ScriptedTarget):
    """Right in all things, until a subclass says otherwise."""

    def __init__(self) -> None:
        super().__init__(BYTES, logits=noise_logits(), context_limit=600)

    def _chosen(self, slot: Slot, tokens: Sequence[int], rows: int, rule: SamplingRule) -> list[Chosen]:
        """Choices after the last `rows` of `tokens`, by the adapter's own idea of a choice."""
        prefixes = [tokens[: len(tokens) - rows + 1 + row] for row in range(rows)]
        return choose_rows(np.stack([self._logits(prefix) for prefix in prefixes]), rule, tokens)

    def _feed(self, rows: Rows) -> list[Chosen]:
        entry = self._slots[rows.slot]
        entry.tokens.extend(rows.tokens)
        return self._chosen(rows.slot, entry.tokens, rows.choose, entry.rule) if rows.choose else []


class RollsBackOneTooMany(Wrong):
    def rollback(self, slot: Slot, length: int) -> None:
        super().rollback(slot, length)
        super().rollback(slot, max(0, length - 1))


class RefusesToRollBackByNothing(Wrong):
    def rollback(self, slot: Slot, length: int) -> None:
        if length == self.length(slot):
            raise TargetError("there is nothing to roll back")
        super().rollback(slot, length)


class RollsBackTooMuchInsteadOfRefusing(Wrong):
    def rollback(self, slot: Slot, length: int) -> None:
        super().rollback(slot, min(length, self.length(slot)))


class KeepsItsCache(EagerTarget):
    """Rolls back the count of tokens but not the cache."""

    def __init__(self) -> None:
        super().__init__(tiny_llama(), BYTES)

    def rollback(self, slot: Slot, length: int) -> None:
        self._slots.cut(slot, length)


class ClaimsRowInvariance(EagerTarget):
    def __init__(self) -> None:
        super().__init__(tiny_llama(**SHAPES["odd sizes"]), BYTES, row_exact_kernels=False)
        self._facts = replace(self._facts, row_invariant=True, tie_bound=0.0)


class DependsOnItsNeighbours(Wrong):
    def step(self, batch: Sequence[Rows]) -> list[list[Chosen]]:
        results = super().step(batch)
        nudge = 1e-6 * (len(batch) - 1)
        return [[Chosen(one.id, one.margin + nudge) for one in chosen] for chosen in results]


class LastWins(Wrong):
    """Ids 3 and 9 have the same logit, and it takes the other one."""

    def _chosen(self, slot: Slot, tokens: Sequence[int], rows: int, rule: SamplingRule) -> list[Chosen]:
        size = len(BYTES)
        prefixes = [tokens[: len(tokens) - rows + 1 + row] for row in range(rows)]
        logits = np.stack([self._logits(prefix) for prefix in prefixes])
        logits[:, 9] = logits[:, 3] = 20.0
        return [
            replace(one, id=size - 1 - one.id)
            for one in choose_rows(logits[:, ::-1].copy(), _flipped(rule), tokens)
        ]


def _flipped(rule: SamplingRule) -> SamplingRule:
    return replace(rule, suppressed=tuple(len(BYTES) - 1 - id for id in rule.suppressed), repetition_penalty=1.0)


class ChoosesPadding(EagerTarget):
    def __init__(self) -> None:
        super().__init__(tiny_llama(rows=len(BYTES) + 51), BYTES)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._model.lm_head(hidden)[0].float()


class ForgetsThePrompt(Wrong):
    """Its penalty knows what was fed with a choice, in whatever pass, but not what was prefilled."""

    def _chosen(self, slot: Slot, tokens: Sequence[int], rows: int, rule: SamplingRule) -> list[Chosen]:
        if not hasattr(self, "prefilled"):
            self.prefilled: dict[Slot, int] = {}
        start = self.prefilled.setdefault(slot, len(tokens) - rows)
        prefixes = [tokens[: len(tokens) - rows + 1 + row] for row in range(rows)]
        chosen = []
        for prefix in prefixes:
            seen = replace(rule, suppressed=(), suppressed_until=0)
            if len(prefix) < rule.suppressed_until:
                seen = replace(rule, suppressed_until=10**9)
            chosen += choose_rows(self._logits(prefix)[None].copy(), seen, prefix[start:])
        return chosen


class ForgetsThePenalty(Wrong):
    def _chosen(self, slot: Slot, tokens: Sequence[int], rows: int, rule: SamplingRule) -> list[Chosen]:
        return super()._chosen(slot, tokens, rows, replace(rule, repetition_penalty=1.0))


class PenalizesWhatIsDraftedLater(Wrong):
    def _chosen(self, slot: Slot, tokens: Sequence[int], rows: int, rule: SamplingRule) -> list[Chosen]:
        prefixes = [tokens[: len(tokens) - rows + 1 + row] for row in range(rows)]
        return [choose_rows(self._logits(prefix)[None].copy(), rule, tokens)[0] for prefix in prefixes]


class ForgetsTheMinimum(Wrong):
    def open(self, rule: SamplingRule) -> Slot:
        return super().open(replace(rule, suppressed=()))


class ForgetsTheSeed(Wrong):
    def open(self, rule: SamplingRule) -> Slot:
        return super().open(replace(rule, seed=0))


class DrawsByCallAndNotByPosition(Wrong):
    calls = 0

    def _chosen(self, slot: Slot, tokens: Sequence[int], rows: int, rule: SamplingRule) -> list[Chosen]:
        self.calls += 1
        return super()._chosen(slot, tokens, rows, replace(rule, seed=self.calls))


class FeedsBeforeItRefuses(Wrong):
    def step(self, batch: Sequence[Rows]) -> list[list[Chosen]]:
        return [super(FeedsBeforeItRefuses, self).step([rows])[0] for rows in batch]


class HasNoLimit(Wrong):
    def __init__(self) -> None:
        super().__init__()
        self._slots._limit = 10**9


class LeaksSlots(Wrong):
    def close(self, slot: Slot) -> None:
        super().close(slot)
        self._slots.add(SamplingRule(), [])


class ChoosesAfterEachRow(Wrong):
    def step(self, batch: Sequence[Rows]) -> list[list[Chosen]]:
        self._slots.check(batch)
        return super().step([replace(rows, choose=len(rows.tokens)) for rows in batch])


class HasNoMargin(Wrong):
    def step(self, batch: Sequence[Rows]) -> list[list[Chosen]]:
        return [[Chosen(one.id, math.nan) for one in chosen] for chosen in super().step(batch)]


class HasNoTieBound(Wrong):
    def __init__(self) -> None:
        super().__init__()
        self._facts = replace(self._facts, row_invariant=False)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (RollsBackOneTooMany, "after a rollback to two a slot holds 1 tokens instead of 2"),
        (RefusesToRollBackByNothing, "nothing to roll back"),
        (RollsBackTooMuchInsteadOfRefusing, "6 tokens were cut to 7"),
        (KeepsItsCache, "fed again after a rollback"),
        (ClaimsRowInvariance, "it claims row-invariance"),
        (DependsOnItsNeighbours, "it claims row-invariance"),
        (LastWins, "ids 9 and 3 are tied|ids 3 and 9 are tied"),
        (ChoosesPadding, "was chosen, the vocabulary has"),
        (ForgetsThePrompt, "does not see the prompt"),
        (ForgetsThePenalty, "a repetition penalty does not see"),
        (PenalizesWhatIsDraftedLater, "round 0"),
        (ForgetsTheMinimum, "are suppressed before position"),
        (ForgetsTheSeed, "every seed gives the same choices"),
        (DrawsByCallAndNotByPosition, "round 0"),
        (FeedsBeforeItRefuses, "in the same batch"),
        (HasNoLimit, "rows beyond the context limit were fed"),
        (LeaksSlots, "slots were open"),
        (ChoosesAfterEachRow, "choices came that nobody had asked for"),
        (HasNoMargin, "a margin is nan"),
        (HasNoTieBound, "its tie bound is 0"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_broken_promise_is_caught(wrong: type[Target], sentence: str) -> None:
    target = wrong()
    with pytest.raises((AssertionError, TargetError), match=sentence):
        check_target(lambda: target, BRIEF)


def test_the_base_of_the_wrong_adapters_is_right() -> None:
    check_target(Wrong, BRIEF)
