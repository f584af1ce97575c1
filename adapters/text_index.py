"""Which of many texts goes on from the longest match with the end of another one.

Retrieval-based speculation (REST, He et al. 2023, arXiv:2311.08252) asks for the longest suffix of a context that
occurs in a store. A suffix array answers exactly; here each place is sorted by the eight bytes before it alone,
read as one number whose highest byte is the last of them. Places that share a suffix of up to eight bytes then
stand side by side, numpy sorts and merges, and the few places that share all eight are compared further. A suffix
automaton would cost some hundred bytes of Python objects for each byte of text; a hash from n-grams to their
latest place is as compact, but finds the latest match where the longest is wanted: the end of every chat prompt
is the same template, and only the question before it tells which answer follows.

Segments are immutable. A new text is a segment of its own, and small neighbours are merged, as runs in a
log-structured store are, so that no step takes more than a few milliseconds. Thirteen bytes of memory for each
byte of text. It knows neither drafting, nor who put a text in, nor when one has to go.
"""

import sys
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

LONGEST = 1024
"""Matches are compared up to so many bytes; longer ones are as good as each other, and the latest counts."""

SEGMENT_BYTES = 128 * 1024
"""Neighbours are merged up to this size: 1.5 ms."""

KEY = 8
PAD = bytes(KEY)
"""Stands before each text, so that also its first bytes have a key, and no match runs into the text before it."""

FEW = 16
"""So many places are compared one by one, more of them eight bytes at a time."""

MANY = 1024
"""Of more places than that in one segment that share their eight bytes, only the latest are looked at."""

Words = NDArray[np.uint64]
Places = NDArray[np.int32]


class Text(Struct, frozen=True, eq=False):
    """A text by identity. Its first `head` bytes are context (a prompt's end), the rest was generated."""

    data: bytes
    head: int = 0

    @property
    def size(self) -> int:
        """Bytes that it counts for, with some for its bookkeeping."""
        return len(self.data) + 64


class Match(Struct, frozen=True):
    """The last `length` bytes of the context also stand right before offset `end` of `text`, where it goes on."""

    text: Text
    end: int
    length: int


class TextIndex:
    """Texts come by `add` and go by `remove`; `matches` looks up the end of a context."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []  # texts in the order in which they came

    @property
    def segments(self) -> int:
        """How many parts a lookup goes through."""
        return len(self._segments)

    def add(self, texts: Sequence[Text]) -> None:
        """Put texts in, together at most about `SEGMENT_BYTES`; they count as later than all others."""
        self._segments.append(_Segment.of(texts))
        while len(self._segments) > 1 and self._segments[-2].size < 2 * self._segments[-1].size:
            if not self._merge(len(self._segments) - 2):
                return

    def remove(self, text: Text) -> None:
        """Take a text out. Raises `KeyError` if it is not there."""
        place = next((place for place, one in enumerate(self._segments) if text in one.texts), None)
        if place is None:
            raise KeyError("this text is not in the index")
        segment = self._segments[place]
        if len(segment.texts) == 1:
            del self._segments[place]
            return
        self._segments[place] = segment.without(text)
        if place + 1 < len(self._segments):
            self._merge(place)

    def matches(self, context: bytes, count: int) -> list[Match]:
        """Up to `count` matches with the end of `context`, the longest first and of these the latest.

        Those shorter than eight bytes are all of one length, and only sought where there is none of eight. Give
        at least the last `LONGEST` bytes of a context that is longer.
        """
        padded = PAD + context[-LONGEST:]
        key = int.from_bytes(padded[-KEY:], "little")
        shared = [segment.shared(key) for segment in self._segments]
        best = max(shared, default=0)
        if best == 0 or not context:
            return []
        places = [
            (segment, segment.sharing(key, best))
            for segment, size in zip(self._segments, shared, strict=True)
            if size == best
        ]
        if best == KEY:
            places = _narrowed(places, padded)
        found: list[Match] = []
        for segment, these in reversed(places):
            if len(found) < max(count, FEW):  # more of them than that match as long as each other
                found += segment.found(_latest(these, max(count, FEW)), padded)
        found.sort(key=lambda match: match.length, reverse=True)  # stable: of equal ones the latest stays first
        return found[:count]

    def _merge(self, place: int) -> bool:
        """Make one of the segment at `place` and the next, unless that would be too large."""
        one, two = self._segments[place : place + 2]
        if one.size + two.size > SEGMENT_BYTES:
            return False
        self._segments[place : place + 2] = [one.merged(two)]
        return True


class _Segment:
    """Some texts behind each other, and their places sorted by the eight bytes before each.

    A place is the offset of these eight bytes in the joined texts: that of a text's end offset, counted from
    the beginning of its padding.
    """

    def __init__(self, texts: tuple[Text, ...], joined: bytes, keys: Words, order: Places) -> None:
        self.texts = texts
        self.size = len(joined)
        self._joined = joined
        self._keys = keys  # ascending
        self._order = order  # the place of each key
        self._starts = [0, *accumulate(KEY + len(text.data) for text in texts)]
        self._words = _words(joined)
        self._bytes = np.frombuffer(joined, np.uint8)

    @classmethod
    def of(cls, texts: Sequence[Text]) -> "_Segment":
        """Sort anew."""
        joined = b"".join(PAD + text.data for text in texts)
        starts = accumulate((KEY + len(text.data) for text in texts), initial=0)
        # not the beginning of a text, where nothing has matched; not its end, where nothing follows
        places = [
            np.arange(start + 1, start + len(text.data), dtype=np.int32)
            for start, text in zip(starts, texts, strict=False)
        ]
        return cls._sorted(tuple(texts), joined, np.concatenate([*places, np.empty(0, np.int32)]))

    @classmethod
    def _sorted(cls, texts: tuple[Text, ...], joined: bytes, places: Places) -> "_Segment":
        keys = _words(joined)[places]
        by_key = np.argsort(keys, kind="stable")  # takes sorted runs as they are: a merge in linear time
        return cls(texts, joined, keys[by_key], places[by_key])

    def merged(self, later: "_Segment") -> "_Segment":
        """The texts of both."""
        places = np.concatenate([self._order, later._order + np.int32(self.size)])
        return self._sorted((*self.texts, *later.texts), self._joined + later._joined, places)

    def without(self, text: Text) -> "_Segment":
        """All texts but this one."""
        which = self.texts.index(text)
        start, end = self._starts[which : which + 2]
        kept = (self._order < start) | (self._order >= end)
        order = self._order[kept]
        order -= (order >= end) * np.int32(end - start)
        texts = (*self.texts[:which], *self.texts[which + 1 :])
        return _Segment(texts, self._joined[:start] + self._joined[end:], self._keys[kept], order)

    def shared(self, key: int) -> int:
        """How many of the last eight bytes, from the last one on, match somewhere."""
        at = int(self._keys.searchsorted(np.uint64(key)))
        different = min((found ^ key for found in self._keys[max(0, at - 1) : at + 1].tolist()), default=None)
        return 0 if different is None else KEY - (different.bit_length() + 7) // 8

    def sharing(self, key: int, shared: int) -> Places:
        """The places at which the last `shared` of eight bytes match."""
        rest = 8 * (KEY - shared)
        low = key >> rest << rest
        first, last = np.uint64(low), np.uint64(low + (1 << rest) - 1)
        begin, end = self._keys.searchsorted(first), self._keys.searchsorted(last, side="right")
        places = self._order[int(begin) : int(end)]
        return np.array(_latest(places, MANY), np.int32) if len(places) > MANY else places

    def matching(self, places: Places, length: int, piece: bytes) -> Places:
        """Those of `places` at which `piece`, a byte or eight, stands before the last `length` bytes."""
        view = self._words if len(piece) == KEY else self._bytes
        offsets = places + np.int32(KEY - length - len(piece))
        equal = view[np.maximum(offsets, 0)] == view.dtype.type(int.from_bytes(piece, "little"))
        kept: Places = places[(offsets >= 0) & equal]
        return kept

    def found(self, places: list[int], context: bytes) -> list[Match]:
        """What stands at these places."""
        matches = []
        for place in places:
            which = bisect_right(self._starts, place) - 1
            end = place - self._starts[which]
            matches.append(
                Match(self.texts[which], end, min(self._common(place, context), end, len(context) - KEY))
            )
        return matches

    def _common(self, place: int, context: bytes) -> int:
        """How many bytes match before the place, as the trailing zero bytes of a difference."""
        end = place + KEY
        size = min(end, len(context))
        one = int.from_bytes(self._joined[end - size : end], "big")
        different = one ^ int.from_bytes(context[-size:], "big")
        return ((different & -different).bit_length() - 1) // 8 if different else size


_Places = list[tuple[_Segment, Places]]


def _narrowed(places: _Places, context: bytes) -> _Places:
    """While many places are left: those that match eight more bytes, if any do; then those that match one more."""
    length = KEY
    for width in (KEY, 1):
        while sum(len(these) for _, these in places) > FEW and length + width <= len(context):
            piece = context[-length - width : -length]
            kept = [(segment, segment.matching(these, length, piece)) for segment, these in places]
            kept = [(segment, these) for segment, these in kept if len(these)]
            if not kept:
                break
            places, length = kept, length + width
    return places


def _latest(places: Places, count: int) -> list[int]:
    """The last `count` places, the last first."""
    if len(places) > count:
        places = np.partition(places, -count)[-count:]
    found: list[int] = np.sort(places)[::-1].tolist()
    return found


def _words(joined: bytes) -> Words:
    """The eight bytes from each offset on as one number, a view without a copy."""
    view = np.ndarray((max(0, len(joined) - KEY + 1),), "<u8", joined, strides=(1,))
    return view if sys.byteorder == "little" else view.astype(np.uint64)
