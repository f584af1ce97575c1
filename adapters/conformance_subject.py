"""What the conformance suite's checks share: the target under test, how hard to try, and expectations.

It does not know what is promised; that is `grimboost.adapters.conformance`.
"""

import random
from collections.abc import Callable, Sequence

from msgspec import Struct

from grimboost.adapters.sequential import prefill
from grimboost.adapters.target import Chosen, Rows, Slot, Target
from grimboost.errors import TargetError
from grimboost.stages.sampling_rule import SamplingRule

GREEDY = SamplingRule()
FILTERED = SamplingRule(temperature=0.8, top_k=40, top_p=0.95, min_p=0.01, repetition_penalty=1.3, seed=7)


class Effort(Struct, frozen=True):
    """Bounds of the suite, for large models. Lengths in tokens."""

    rows: tuple[int, ...] = tuple(range(1, 33))
    """Row counts of the passes that are compared with single rows."""
    positions: tuple[int, ...] = (0, 48, 500)
    """Slot lengths at which they are; with 32 rows these cross multiples of 64 and 512."""
    decode: int = 32
    largest_context: int = 2048
    """A longer context is not filled to its limit."""
    sampling: bool = True
    """False for a target that is a script and can only be greedy."""


class Subject:
    """A target under test, and what the checks do with it again and again."""

    def __init__(self, target: Target, effort: Effort) -> None:
        self.target, self.effort = target, effort
        self.facts = target.facts
        spelled = [id for id, data in enumerate(target.vocabulary.table) if data]
        generator = random.Random(0)
        self.ids = tuple(generator.choice(spelled) for _ in range(self.facts.context_limit + 1))

    @property
    def rules(self) -> tuple[SamplingRule, ...]:
        return (GREEDY, FILTERED) if self.effort.sampling else (GREEDY,)

    def room(self, tokens: int) -> bool:
        """Whether the context has that many places."""
        return tokens <= self.facts.context_limit

    def slot(self, length: int, rule: SamplingRule = GREEDY) -> Slot:
        """A slot that holds the first `length` ids."""
        slot = self.target.open(rule)
        prefill(self.target, slot, self.ids[:length])
        return slot

    def feed(self, slot: Slot, tokens: Sequence[int]) -> list[Chosen]:
        """One pass over one slot, with a choice after each row."""
        [chosen] = self.target.step([Rows(slot, tuple(tokens), len(tokens))])
        return self.looked_at(chosen, len(tokens))

    def looked_at(self, chosen: list[Chosen], count: int) -> list[Chosen]:
        """The choices, if they are as many as asked for and all of the vocabulary (case A5)."""
        size = len(self.target.vocabulary)
        expect(len(chosen) == count, f"{count} choices were asked for, {len(chosen)} came")
        for one in chosen:
            expect(0 <= one.id < size, f"id {one.id} was chosen, the vocabulary has {size}")
            expect(one.margin >= 0, f"a margin is {one.margin}; the chosen id is not the best")
        return chosen

    def one_by_one(self, slot: Slot, tokens: Sequence[int]) -> list[Chosen]:
        """The same as `feed`, with single rows."""
        return [self.feed(slot, (token,))[0] for token in tokens]

    def same(self, got: Sequence[Chosen], plain: Sequence[Chosen], where: str) -> None:
        """Choices that should be those of single rows: bit for bit, or but for near-ties."""
        for row, (one, other) in enumerate(zip(got, plain, strict=True)):
            if self.facts.row_invariant:
                expect(one == other, f"{where}, row {row}: {one}, plain {other}; it claims row-invariance")
            else:
                bound = self.facts.tie_bound
                fine = one.id == other.id or one.margin < bound
                expect(fine, f"{where}, row {row}: {one}, plain {other}; its tie bound is {bound}")

    def close(self, *slots: Slot) -> None:
        for slot in slots:
            self.target.close(slot)


def expect(condition: bool, sentence: str) -> None:
    """Raise `AssertionError` with the sentence unless the condition holds."""
    if not condition:
        raise AssertionError(sentence)


def refused(sentence: str, call: Callable[..., object], *arguments: object) -> None:
    """The call has to raise `TargetError`."""
    try:
        call(*arguments)
    except TargetError:
        return
    raise AssertionError(f"{sentence}; that has to raise TargetError")


def expect_length(s: Subject, slot: Slot, length: int, when: str) -> None:
    """The slot has to hold so many tokens."""
    held = s.target.length(slot)
    expect(held == length, f"{when} a slot holds {held} tokens instead of {length}")
