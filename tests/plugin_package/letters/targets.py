"""A target: behind each letter it writes the next one of the alphabet, and ends behind z."""

import math

from grimboost.adapters.slots import SlotTable, SlottedTarget
from grimboost.adapters.target import Chosen, TargetFacts
from grimboost.adapters.vocabulary import Vocabulary
from grimboost.loading import LoadedTarget
from grimboost.stages.configuration import CostCurve

END = 26


class Alphabet(SlottedTarget[list[int]]):
    """Ids 0 to 25 are the letters; 26 has no bytes and ends. Without logits it can only be greedy."""

    def __init__(self):
        self._vocabulary = Vocabulary([*(bytes([byte]) for byte in b"abcdefghijklmnopqrstuvwxyz"), None])
        self._facts = TargetFacts("alphabet", "exact", 4096, True, 0.0, digest="alphabet 1")
        self._slots = SlotTable(4096)

    def open(self, rule):
        return self._slots.add(rule, [])

    def step(self, batch):
        self._slots.check(batch)  # refuses a wrong batch before anything is fed
        return [self._feed(rows) for rows in batch]

    def _feed(self, rows):
        self._slots[rows.slot].tokens.extend(rows.tokens)
        fed = rows.tokens[len(rows.tokens) - rows.choose :]
        return [Chosen(min(id + 1, END), math.inf) for id in fed]


def alphabet():
    """What the entry point names. Without a tokenizer, prompts are token ids."""
    return LoadedTarget(Alphabet(), CostCurve(), end_ids={END: ["end of the alphabet"]})
