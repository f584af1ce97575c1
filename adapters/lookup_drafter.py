"""The lookup drafter: continue as a text continued the last time it read like this.

Prompt lookup (Saxena 2023) on bytes and over prompt plus output: the longest suffix that occurred before,
found by a suffix automaton, and the bytes that followed it. With a datastore also over earlier generations
(retrieval, REST: He et al. 2023, arXiv:2311.08252). Candidates are ranked by match length, then by recency; of
the few best, the one whose stated confidence is highest is proposed. Confidence is learned from what was accepted
at that match length, byte by byte, for each kind of match: one of length n that goes on right becomes one of
length n + 1. It knows no target, and tokens only as words of its own.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Sequence

from msgspec import Struct

from grimboost.adapters.datastore import Datastore
from grimboost.adapters.drafter import DraftSession, Proposal
from grimboost.adapters.text_index import LONGEST, Text
from grimboost.messages import DraftToken
from grimboost.stages.suffix_automaton import SuffixAutomaton

CANDIDATES = 4
MINIMUM_MATCH = 2
MINIMUM_STORED_MATCH = 4
_WORDS = re.compile(rb"[ \t]?[A-Za-z_\x80-\xff]+|\d|\s+|[^\sA-Za-z_\x80-\xff\d]+")


class LookupDrafter:
    """Sessions share what was learned about match lengths, and the datastore if there is one."""

    name = "lookup"

    def __init__(self, datastore: Datastore | None = None) -> None:
        self.datastore = datastore
        self.confidence = MatchConfidence()
        self.stored_confidence = MatchConfidence()
        self.opening_confidence = MatchConfidence()

    def begin(self) -> DraftSession:
        return LookupSession(self)

    def remember(self, prompt: bytes, output: bytes) -> None:
        if self.datastore and output:
            self.datastore.add(prompt, output)

    def settle(self) -> None:
        if self.datastore:
            self.datastore.settle()


class MatchConfidence:
    """Probability that the next byte is right, by match length: counts of right and wrong, with a prior.

    Lengths count one by one up to `EACH`, then by doubling.
    """

    EACH = 64
    PRIOR_WEIGHT = 20.0

    def __init__(self) -> None:
        doublings = range(self._place(LONGEST) - self.EACH + 1)
        lengths = [*range(self.EACH), *(self.EACH << power for power in doublings)]
        self._right = [self.PRIOR_WEIGHT * self._prior(length) for length in lengths]
        self._seen = [self.PRIOR_WEIGHT] * len(lengths)

    @staticmethod
    def _prior(length: int) -> float:
        """A guess until there are counts: half right after a bare letter, 99 of 100 after a sentence."""
        return 1.0 - 0.5 / math.pow(1.0 + length / 3.0, 1.5)

    @classmethod
    def _place(cls, length: int) -> int:
        if length < cls.EACH:
            return length
        return cls.EACH + (min(length, LONGEST) // cls.EACH).bit_length() - 1

    def byte(self, length: int) -> float:
        """P(next byte right | match of `length` bytes)."""
        place = self._place(length)
        return self._right[place] / self._seen[place]

    def observe(self, length: int, right: bool) -> None:
        """The byte behind a match of `length` bytes was the target's, or not."""
        place = self._place(length)
        self._seen[place] += 1.0
        self._right[place] += right
        if self._seen[place] > 2000.0:  # forget slowly, texts change
            self._seen[place] /= 2.0
            self._right[place] /= 2.0


class _Candidate(Struct):
    """A place to copy from: what stands before offset `start` of `text` matches by `length` bytes.

    `before`: bytes that stand between the end of the session's text and what is copied. They were shown, whatever
    the target says of them; the match is one of the text with them, and `length` is counted from their begin.
    """

    confidence: MatchConfidence
    length: int
    text: bytes | bytearray
    start: int
    stored: Text | None = None  # else it is the session's own text, which grows
    before: bytes = b""
    end: int | None = None  # offset of the next break in the text: there the target chose no byte

    @property
    def promise(self) -> tuple[float, int]:
        return self.confidence.byte(self.length), self.length

    def copy(self, limit: int) -> bytes:
        """Bytes of the text from `start` on, up to a break; a match in the own text that overlaps its continuation
        repeats it."""
        limit = max(0, limit - len(self.before))
        data = bytes(self.text[self.start : self.start + limit])
        if self.end is not None:
            data = data[: max(0, self.end - self.start)]
        elif not self.stored and data and len(data) < limit:
            data = (data * -(-limit // len(data)))[:limit]
        return self.before + data

    def advance(self, size: int) -> None:
        """So many bytes of `copy` have become the session's text."""
        copied = max(0, size - len(self.before))
        self.before = self.before[size:]
        self.length += size
        self.start += copied

    def whole(self, limit: int) -> bool:
        """Whether `copy` ends where a stored output or a turn ended."""
        end = len(self.text) if self.stored else self.end
        return end is not None and self.start + limit - len(self.before) >= end


class LookupSession:
    """One text and the proposal that stands behind it."""

    def __init__(self, drafter: LookupDrafter) -> None:
        self._drafter = drafter
        self._automaton = SuffixAutomaton()
        self._standing = b""  # the latest proposal from the end of the text on
        self._source: _Candidate | None = None  # what `_standing` was copied from
        self._prompt: int | None = None  # length of what came first
        self._slip: int | None = None  # of what comes next, the first byte that the target did not choose
        self._breaks: list[int] = []  # offsets in the text, ascending

    def breaks(self, offsets: Sequence[int]) -> None:
        self._breaks += [len(self._automaton.text) + offset for offset in offsets]

    def slipped(self, at: int) -> None:
        self._slip = at

    def extend(self, committed: bytes) -> None:
        self._learn(committed, self._slip)
        self._slip = None
        self._automaton.extend(committed)
        if self._prompt is None:
            self._prompt = len(committed)

    def propose(self, ahead: bytes, limit: int) -> Proposal:
        if ahead:
            return self._continue(ahead, limit)
        self._standing = b""
        self._source = max(
            (*self._own_candidates(), *self._stored_candidates()), key=lambda one: one.promise, default=None
        )
        return self._proposal(0, limit)

    def _own_candidates(self) -> list[_Candidate]:
        text, confidence = self._automaton.text, self._drafter.confidence
        found = [
            _Candidate(confidence, match.length, text, match.end, end=self._break_from(match.end))
            for match in self._automaton.matches(CANDIDATES)
            if match.length >= MINIMUM_MATCH
        ]
        return [one for one in found if one.end != one.start]

    def _break_from(self, offset: int) -> int | None:
        """The next break there or behind it: what follows it is not how the text went on. None if there is none.

        The one at the end of the text is still to come: behind it stands what is being drafted.
        """
        place = bisect_left(self._breaks, offset)
        found = self._breaks[place] if place < len(self._breaks) else None
        return None if found == len(self._automaton.text) else found

    def _stored_candidates(self) -> list[_Candidate]:
        """From the datastore. Where all of the text matches, the same prompt was answered before.

        Right behind the prompt the match is mostly the chat template's, which tells nothing of how the answer
        begins; so these are judged apart.
        """
        drafter, text = self._drafter, self._automaton.text
        if not drafter.datastore:
            return []
        apart = drafter.opening_confidence if len(text) == self._prompt else drafter.stored_confidence
        found = []
        for match in drafter.datastore.matches(bytes(text[-LONGEST:]), CANDIDATES):
            place = match.text.data, match.end, match.text
            if match.length == min(len(text), LONGEST):
                found.append(_Candidate(drafter.stored_confidence, LONGEST, *place))
            elif match.length >= MINIMUM_STORED_MATCH:
                found.append(_Candidate(apart, match.length, *place))
        return found

    def _continue(self, ahead: bytes, limit: int) -> Proposal:
        """Go on copying behind a candidate that still stands, or behind shown bytes that stand by themselves."""
        stands = self._source is not None and len(self._source.before) <= len(ahead)
        if not stands or not self._standing.startswith(ahead):
            self._source = self._match_with(ahead)
        return self._proposal(len(ahead), limit)

    def _match_with(self, ahead: bytes) -> _Candidate | None:
        """The latest place in the text that reads like its end with `ahead` behind it, by the longest match."""
        text = bytes(self._automaton.text) + ahead
        found, low, high = -1, MINIMUM_MATCH - 1, min(LONGEST, len(text) - 1)
        while low < high:  # what matches by n bytes matches by fewer
            size = (low + high + 1) // 2
            end = text.rfind(text[-size:], 0, len(text) - 1)
            if end < 0:
                high = size - 1
            else:
                found, low = end + size, size
        if found < 0 or found >= len(self._automaton.text):
            return None
        own, stop = self._automaton.text, self._break_from(found)
        return _Candidate(self._drafter.confidence, low - len(ahead), own, found, before=ahead, end=stop)

    def _proposal(self, skip: int, limit: int) -> Proposal:
        """At most `limit` bytes of the source behind the `skip` bytes that are drafted already."""
        source = self._source
        if source is None:
            return Proposal()
        self._standing = source.copy(skip + limit)
        data, tokens = self._standing[skip:], []
        for word in _WORDS.finditer(data):
            confidence = 1.0
            for place in range(word.start(), word.end()):
                confidence *= source.confidence.byte(source.length + skip + place)
            tokens.append(DraftToken(word.end() - word.start(), confidence))
        return Proposal(data, tuple(tokens), source.whole(skip + limit))

    def _learn(self, committed: bytes, slip: int | None) -> None:
        """Compare the standing proposal with what became final; from a slip on that is the drafter's own word."""
        source, standing = self._source, self._standing
        if source is None:
            return
        right = 0
        for drafted, final in zip(standing, committed, strict=False):
            agreed = drafted == final and right != slip
            if right >= len(source.before):
                source.confidence.observe(source.length + right, agreed)
            if not agreed:
                break
            right += 1
        if right and source.stored and self._drafter.datastore:
            self._drafter.datastore.use(source.stored)
        if right < min(len(standing), len(committed)):
            self._standing, self._source = b"", None
            return
        self._standing = standing[right:]
        source.advance(right)
