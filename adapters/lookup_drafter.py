"""The lookup drafter: continue as the text continued the last time it read like this.

Prompt lookup (Saxena 2023) on bytes and over prompt plus output: the longest suffix that occurred before,
found by a suffix automaton, and the bytes that followed it. Candidates are ranked by match length, then by
recency; of the few best, the one whose stated confidence is highest is proposed. Confidence is learned from
what was accepted at that match length, byte by byte: a match of length n that goes on right becomes one of
length n + 1. It knows no target, and tokens only as words of its own.
"""

import math
import re

from grimboost.adapters.drafter import DraftSession, Proposal
from grimboost.messages import DraftToken
from grimboost.stages.suffix_automaton import Match, SuffixAutomaton

CANDIDATES = 4
MINIMUM_MATCH = 2
_WORDS = re.compile(rb"[ \t]?[A-Za-z_\x80-\xff]+|\d|\s+|[^\sA-Za-z_\x80-\xff\d]+")


class LookupDrafter:
    """Sessions share what was learned about match lengths; the texts are each generation's own."""

    name = "lookup"

    def __init__(self) -> None:
        self.confidence = MatchConfidence()

    def begin(self) -> DraftSession:
        return LookupSession(self.confidence)


class MatchConfidence:
    """Probability that the next byte is right, by match length: counts of right and wrong, with a prior."""

    LONGEST = 64
    PRIOR_WEIGHT = 20.0

    def __init__(self) -> None:
        lengths = range(self.LONGEST + 1)
        self._right = [self.PRIOR_WEIGHT * self._prior(length) for length in lengths]
        self._seen = [self.PRIOR_WEIGHT] * len(lengths)

    @staticmethod
    def _prior(length: int) -> float:
        """A guess until there are counts: half right after a bare letter, 99 of 100 after a sentence."""
        return 1.0 - 0.5 / math.pow(1.0 + length / 3.0, 1.5)

    def byte(self, length: int) -> float:
        """P(next byte right | match of `length` bytes)."""
        place = min(length, self.LONGEST)
        return self._right[place] / self._seen[place]

    def observe(self, length: int, right: bool) -> None:
        """The byte behind a match of `length` bytes was the target's, or not."""
        place = min(length, self.LONGEST)
        self._seen[place] += 1.0
        self._right[place] += right
        if self._seen[place] > 2000.0:  # forget slowly, texts change
            self._seen[place] /= 2.0
            self._right[place] /= 2.0


class LookupSession:
    """One text and the proposal that stands behind it."""

    def __init__(self, confidence: MatchConfidence) -> None:
        self._automaton = SuffixAutomaton()
        self._confidence = confidence
        self._standing = b""  # the latest proposal from the end of the text on
        self._matched = 0  # match length at the beginning of `_standing`
        self._source = 0  # offset in the text that `_standing` was copied from

    def extend(self, committed: bytes) -> None:
        self._learn(committed)
        self._automaton.extend(committed)

    def propose(self, ahead: bytes, limit: int) -> Proposal:
        if ahead:
            return self._continue(ahead, limit)
        best = max(self._candidates(), key=self._promise, default=None)
        if best is None:
            self._standing = b""
            return Proposal()
        self._matched, self._source = best.length, best.end
        self._standing = self._copy(best.end, limit)
        return self._proposal(self._standing, self._matched)

    def _candidates(self) -> list[Match]:
        return [match for match in self._automaton.matches(CANDIDATES) if match.length >= MINIMUM_MATCH]

    def _promise(self, match: Match) -> tuple[float, int]:
        return self._confidence.byte(match.length), match.length

    def _continue(self, ahead: bytes, limit: int) -> Proposal:
        """Go on copying behind a candidate that still stands."""
        if not self._standing.startswith(ahead):
            return Proposal()
        whole = self._copy(self._source, len(ahead) + limit)
        self._standing = whole
        return self._proposal(whole[len(ahead) :], self._matched + len(ahead))

    def _copy(self, start: int, limit: int) -> bytes:
        """Bytes of the text from `start` on; a match that overlaps its own continuation repeats it."""
        period = bytes(self._automaton.text[start : start + limit])
        if not period:
            return b""
        return (period * -(-limit // len(period)))[:limit] if start + limit > len(self._automaton.text) else period

    def _proposal(self, data: bytes, matched: int) -> Proposal:
        tokens = []
        for word in _WORDS.finditer(data):
            confidence = 1.0
            for place in range(word.start(), word.end()):
                confidence *= self._confidence.byte(matched + place)
            tokens.append(DraftToken(word.end() - word.start(), confidence))
        return Proposal(data, tuple(tokens))

    def _learn(self, committed: bytes) -> None:
        """Compare the standing proposal with what became final."""
        standing = self._standing
        for place, (drafted, right) in enumerate(zip(standing, committed, strict=False)):
            self._confidence.observe(self._matched + place, drafted == right)
            if drafted != right:
                self._standing = b""
                return
        size = min(len(standing), len(committed))
        self._standing, self._matched = standing[size:], self._matched + size
        self._source += size
