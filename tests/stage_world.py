"""A small world for whole generations of pure stages: a vocabulary, targets that are functions, drafters' scripts.

The target is a function of its slot's content, so that a cache that is one token off shows in the output. The
drafter proposes anything: the truth, the truth broken at one byte, half characters, noise, nothing.
"""

import random
import zlib

from hypothesis import strategies as st

from grimboost.adapters.scripted_target import ScriptedTarget
from grimboost.adapters.slots import SlotTable
from grimboost.adapters.target import Chosen, TargetFacts
from grimboost.adapters.vocabulary import Vocabulary
from grimboost.stages.configuration import CascadeConfig, CostCurve, DrafterConfig, StageConfigs, VerifierConfig

END, CONTROL = 0, 1
VOCABULARY = Vocabulary(
    [None, None, b"a", b"b", b"ab", b"ba", b" ", b" ha", b"!", b"\xc3", b"\xa9", "é".encode(), b" ha ha", b"abab"]
)
TEXT_IDS = range(2, len(VOCABULARY))
PROMPT = (4, 6, 2, 11)


def hashed(salt, ending=20):
    """A target whose next token depends on the whole prefix. About one in `ending` is end-of-sequence."""

    def next_token(prefix):
        number = zlib.crc32(bytes([salt, *prefix]))
        if number % ending == 1:
            return END
        if number % 17 == 2:
            return CONTROL
        return TEXT_IDS[(number >> 8) % len(TEXT_IDS)] if len(prefix) % 5 else 7  # ` ha` now and then

    return next_token


class SpiedTarget(ScriptedTarget):
    """Remembers what the slots held when they were closed."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.closed = []

    def held(self):
        [entry] = self._slots._entries.values()
        return list(entry.tokens)

    def close(self, slot):
        self.closed.append(list(self._slots[slot].tokens))
        super().close(slot)


class ShakyTarget:
    """Near-ties turn in a pass over several rows, and wherever such a pass left its traces in the cache.

    Plain decoding is: the prompt, however fed, then one row at a time.
    """

    BOUND = 0.5

    def __init__(self, next_token, limit=64):
        self.vocabulary = VOCABULARY
        self.facts = TargetFacts("shaky", "scripted", limit, False, self.BOUND)
        self.next_token = next_token
        self.slots = SlotTable(limit)
        self.flipped = 0

    @property
    def open_slots(self):
        return len(self.slots)

    def open(self, rule):
        return self.slots.add(rule, [])

    def length(self, slot):
        return len(self.slots[slot].tokens)

    def rollback(self, slot, length):
        self.slots.cut(slot, length)
        del self.slots[slot].cache[length:]

    def close(self, slot):
        self.slots.remove(slot)

    def step(self, batch):
        self.slots.check(batch)
        return [self._feed(rows) for rows in batch]

    def _feed(self, rows):
        entry = self.slots[rows.slot]
        entry.tokens.extend(rows.tokens)
        entry.cache.extend([rows.choose > 1] * len(rows.tokens))
        count = len(entry.tokens)
        return [self._choose(entry, count - rows.choose + 1 + row) for row in range(rows.choose)]

    def _choose(self, entry, end):
        prefix = entry.tokens[:end]
        right = self.next_token(prefix)
        if zlib.crc32(bytes([77, *prefix])) % 3:
            return Chosen(right, 5.0)
        traces = any(entry.cache[:end])
        self.flipped += traces
        return Chosen(right % (len(VOCABULARY) - 3) + 2 if traces else right, 0.1)


def truth(next_token, length=120):
    path = list(PROMPT)
    while len(path) < len(PROMPT) + length:
        path.append(next_token(path))
    return VOCABULARY.join(path[len(PROMPT) :])


def ahead_of(text, context):
    return text[len(context) - len(VOCABULARY.join(PROMPT)) :]


def scripts(text, kind, place):
    """A drafter's script of that kind; `place` says where it goes wrong."""

    def broken(context, limit):
        good = bytearray(ahead_of(text, context)[:limit])
        if len(good) > place:
            good[place] ^= 1
        return bytes(good)

    def fails(context, limit):
        if len(context) > place + 8:
            raise ValueError("this drafter is broken")
        return ahead_of(text, context)[:limit]

    def noise(context, limit):
        return random.Random(zlib.crc32(context) + place).randbytes(min(limit, place + 1))

    def vocabulary_noise(context, limit):
        chooser = random.Random(zlib.crc32(context) + place)
        return VOCABULARY.join(chooser.choices(TEXT_IDS, k=place + 1))[:limit]

    return {
        "true": lambda context, limit: ahead_of(text, context)[:limit],
        "cut anywhere": lambda context, limit: ahead_of(text, context)[: min(limit, place + 1)],
        "broken": broken,
        "half a character": lambda context, limit: ahead_of(text, context)[: min(limit, place)] + b"\xc3",
        "foreign": lambda context, limit: "中文🙂".encode()[place % 4 :][:limit],
        "noise": noise,
        "own noise": vocabulary_noise,
        "empty": lambda context, limit: b"",
        "always wrong": lambda context, limit: (b"b" if ahead_of(text, context)[:1] == b"a" else b"a") * limit,
        "fails": fails,
    }[kind]


KINDS = (
    "true",
    "cut anywhere",
    "broken",
    "half a character",
    "foreign",
    "noise",
    "own noise",
    "empty",
    "always wrong",
    "fails",
)
CURVES = (
    CostCurve(),
    CostCurve((1, 2, 4, 8, 16), (1.0, 1.2, 1.5, 2.5, 5.0)),
    CostCurve((1, 2, 4), (1.0, 2.0, 4.0)),
    CostCurve((1,), (1.0,)),
)
cascades = st.builds(
    CascadeConfig,
    context_limit=st.sampled_from([4, 6, 12, 64]),
    max_new_tokens=st.integers(0, 30),
    max_new_bytes=st.none() | st.none() | st.integers(0, 40),
    stop=st.lists(st.sampled_from([b" ha ha", b"ab!", b"\xa9", b"bab", b"aba"]), max_size=2).map(tuple),
    end_ids=st.sampled_from([(END,), (END,), (), (END, CONTROL)]),
)


def configs(cascade, curve=CURVES[0], rows=16, credit=40, **verifier):
    more = max(0, min(cascade.max_new_tokens, cascade.context_limit - len(PROMPT)))
    return StageConfigs(
        cascade,
        DrafterConfig(max_ahead_bytes=credit, minimum_request_bytes=min(8, credit)),
        verifier=VerifierConfig(curve=curve, max_rows=rows, prefill_rows=2, max_new_tokens=more, **verifier),
    )
