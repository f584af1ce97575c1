"""The packed target: the project's own forward over packed weights, row-invariant in every precision.

Slots keep keys and values in tiles (`grimboost.kernels.attention`), rows of several slots run in one pass, and a
pass of k rows gives each row the bits that it has alone, because no kernel computes a row from more than its
own values, in a fixed order. It knows nothing of bytes and needs neither torch nor transformers.
"""

from collections.abc import Sequence

import numba
import numpy as np
from numpy.typing import NDArray

from grimboost.adapters.choice import choose_rows, is_plain_greedy
from grimboost.adapters.packed_model import PackedModel
from grimboost.adapters.packed_runner import MOST_ROWS, Cache, Row, Runner, usable_processors
from grimboost.adapters.slots import SlotTable, SlottedTarget
from grimboost.adapters.target import Chosen, Rows, Slot, TargetFacts
from grimboost.adapters.vocabulary import Vocabulary
from grimboost.errors import TargetError
from grimboost.stages.sampling_rule import SamplingRule


class PackedTarget(SlottedTarget[Cache]):
    """A packed model with slots."""

    def __init__(
        self,
        model: PackedModel,
        vocabulary: Vocabulary,
        name: str = "model",
        digest: str = "",
        threads: int = 0,
    ) -> None:
        """`threads`: how many compute; 0 for one per usable processor."""
        self._model = model
        self._vocabulary = vocabulary
        self._runner = Runner(model, len(vocabulary), threads or usable_processors())
        limit = model.shape.positions
        kernels = f"packed numba{numba.__version__} {self._runner.threads} threads"
        self._facts = TargetFacts(name, model.precision, limit, True, 0.0, digest=digest, kernels=kernels)
        self._slots: SlotTable[Cache] = SlotTable(limit)

    def open(self, rule: SamplingRule) -> Slot:
        return self._slots.add(rule, Cache(self._model))

    def step(self, batch: Sequence[Rows]) -> list[list[Chosen]]:
        self._slots.check(batch)
        self._check_ids(batch)
        rows: list[Row] = []
        plain: list[bool] = []
        for entry in batch:
            slot = self._slots[entry.slot]
            held, silent = len(slot.tokens), len(entry.tokens) - entry.choose
            slot.cache.reserve(held + len(entry.tokens))
            rows += [
                Row(token, held + place, slot.cache, place >= silent) for place, token in enumerate(entry.tokens)
            ]
            plain.append(entry.choose == 0 or is_plain_greedy(slot.rule, held + silent + 1))
        greedy, logits = self._run(
            rows, [is_plain for entry, is_plain in zip(batch, plain, strict=True) for _ in entry.tokens]
        )
        for entry in batch:  # not before: a pass that fails leaves no trace
            self._slots[entry.slot].tokens.extend(entry.tokens)
        results: list[list[Chosen]] = []
        for entry, is_plain in zip(batch, plain, strict=True):
            if is_plain:
                results.append([greedy.pop(0) for _ in range(entry.choose)])
            else:
                own = np.stack([logits.pop(0) for _ in range(entry.choose)])
                slot = self._slots[entry.slot]
                results.append(choose_rows(own, slot.rule, slot.tokens))
        return results

    def _check_ids(self, batch: Sequence[Rows]) -> None:
        """Refuse ids without a row in the embedding: the kernels would read other memory."""
        rows = self._model.shape.vocabulary
        for entry in batch:
            lowest, highest = min(entry.tokens), max(entry.tokens)
            if lowest < 0 or highest >= rows:
                wrong = lowest if lowest < 0 else highest
                raise TargetError(f"slot {entry.slot}: id {wrong} is none of the model's {rows}")

    def _run(self, rows: list[Row], plain: list[bool]) -> tuple[list[Chosen], list[NDArray[np.float32]]]:
        """All rows, in as many passes as they need: greedy choices, and logits where more than that is asked."""
        greedy: list[Chosen] = []
        logits: list[NDArray[np.float32]] = []
        for start in range(0, len(rows), MOST_ROWS):
            part = rows[start : start + MOST_ROWS]
            result = self._runner.run(part)
            wanted = [place for place, row in enumerate(part) if row.choose]
            for number, place in enumerate(wanted):
                if plain[start + place]:
                    greedy.append(Chosen(int(result.ids[number]), float(result.margins[number])))
                else:
                    logits.append(result.logits[number].copy())
        return greedy, logits
