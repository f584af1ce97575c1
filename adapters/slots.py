"""Slots that adapters share: an id, the tokens fed, the rule, and whatever cache the adapter keeps beside.

All checks of a batch come before anything is fed, so a refused batch leaves no trace.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

from grimboost.adapters.target import Rows, Slot, TargetFacts
from grimboost.adapters.vocabulary import Vocabulary
from grimboost.errors import TargetError
from grimboost.stages.sampling_rule import SamplingRule

Cache = TypeVar("Cache")


class Entry(Generic[Cache]):
    """One slot."""

    __slots__ = ("cache", "rule", "tokens")

    def __init__(self, rule: SamplingRule, cache: Cache) -> None:
        self.rule = rule
        self.cache = cache
        self.tokens: list[int] = []


class SlotTable(Generic[Cache]):
    """Open slots by id. Ids are never used again."""

    def __init__(self, context_limit: int) -> None:
        self._limit = context_limit
        self._entries: dict[Slot, Entry[Cache]] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, slot: Slot) -> Entry[Cache]:
        try:
            return self._entries[slot]
        except KeyError:
            raise TargetError(f"slot {slot} is not open") from None

    def add(self, rule: SamplingRule, cache: Cache) -> Slot:
        """A new slot without tokens."""
        self._last += 1
        slot = Slot(self._last)
        self._entries[slot] = Entry(rule, cache)
        return slot

    def remove(self, slot: Slot) -> None:
        """Forget a slot and its cache."""
        self[slot]
        del self._entries[slot]

    def cut(self, slot: Slot, length: int) -> int:
        """Cut the tokens to `length`; returns how many went. The adapter cuts its cache likewise."""
        tokens = self[slot].tokens
        if not 0 <= length <= len(tokens):
            raise TargetError(f"slot {slot} holds {len(tokens)} tokens, it cannot be cut to {length}")
        removed = len(tokens) - length
        del tokens[length:]
        return removed

    def check(self, batch: Sequence[Rows]) -> None:
        """Refuse a batch that cannot be fed as a whole."""
        seen = set()
        for rows in batch:
            held = len(self[rows.slot].tokens)
            if rows.slot in seen:
                raise TargetError(f"slot {rows.slot} is twice in one batch")
            seen.add(rows.slot)
            if not rows.tokens or not 0 <= rows.choose <= len(rows.tokens):
                raise TargetError(f"slot {rows.slot}: {len(rows.tokens)} tokens, {rows.choose} choices")
            if held + len(rows.tokens) > self._limit:
                raise TargetError(
                    f"slot {rows.slot} holds {held} tokens; {len(rows.tokens)} more exceed the context limit "
                    f"of {self._limit}"
                )


class SlottedTarget(Generic[Cache]):
    """What targets over a slot table have in common; they add how a slot is opened and a batch is fed."""

    _facts: TargetFacts
    _vocabulary: Vocabulary
    _slots: SlotTable[Cache]

    @property
    def facts(self) -> TargetFacts:
        return self._facts

    @property
    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    @property
    def open_slots(self) -> int:
        """Slots that have not been closed."""
        return len(self._slots)

    def length(self, slot: Slot) -> int:
        return len(self._slots[slot].tokens)

    def rollback(self, slot: Slot, length: int) -> None:
        self._slots.cut(slot, length)

    def close(self, slot: Slot) -> None:
        self._slots.remove(slot)
