"""A target without a model: the next token is a function of the prefix. For tests and overhead benchmarks.

It keeps the contract to the letter (limits, lengths, rollback), so that a mistake in a stage shows here.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from grimboost.adapters.choice import choose_rows
from grimboost.adapters.slots import SlotTable, SlottedTarget
from grimboost.adapters.target import Chosen, Rows, Slot, TargetFacts
from grimboost.adapters.vocabulary import Vocabulary
from grimboost.stages.sampling_rule import SamplingRule

NextToken = Callable[[Sequence[int]], int]
NextLogits = Callable[[Sequence[int]], NDArray[np.float32]]


class ScriptedTarget(SlottedTarget[list[int]]):
    """Greedy slots follow `next_token` if it is given; otherwise `logits` [vocabulary] decide by the rule."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        next_token: NextToken | None = None,
        logits: NextLogits | None = None,
        context_limit: int = 4096,
        row_invariant: bool = True,
        tie_bound: float = 0.0,
    ) -> None:
        if next_token is None and logits is None:
            raise ValueError("give next_token or logits")
        self._next_token, self._logits = next_token, logits
        self._vocabulary = vocabulary
        self._facts = TargetFacts("scripted", "exact", context_limit, row_invariant, tie_bound)
        self._slots: SlotTable[list[int]] = SlotTable(context_limit)

    def open(self, rule: SamplingRule) -> Slot:
        return self._slots.add(rule, [])

    def step(self, batch: Sequence[Rows]) -> list[list[Chosen]]:
        self._slots.check(batch)
        return [self._feed(rows) for rows in batch]

    def _feed(self, rows: Rows) -> list[Chosen]:
        entry = self._slots[rows.slot]
        entry.tokens.extend(rows.tokens)
        count = len(entry.tokens)
        prefixes = [entry.tokens[: count - rows.choose + 1 + row] for row in range(rows.choose)]
        if self._next_token is not None and entry.rule.greedy:
            return [Chosen(self._next_token(prefix), math.inf) for prefix in prefixes]
        if not prefixes:
            return []
        if self._logits is None:
            raise ValueError("sampling needs logits")
        logits = np.stack([self._logits(prefix) for prefix in prefixes])
        return choose_rows(logits, entry.rule, entry.tokens, self._facts.tie_bound)


def following(prompt_tokens: int, script: Sequence[int], end: int) -> NextToken:
    """A next-token function: `script` behind a prompt of that many tokens, whatever was fed, then `end`."""

    def next_token(prefix: Sequence[int]) -> int:
        place = len(prefix) - prompt_tokens
        return script[place] if 0 <= place < len(script) else end

    return next_token
