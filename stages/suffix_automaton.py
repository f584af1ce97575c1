"""An online suffix automaton over bytes: which earlier place matches the longest suffix of the text so far.

Blumer et al. 1985 ("The smallest automaton recognizing the subwords of a text"); appending a byte is amortized
O(1), and the suffix link of the last state is the longest suffix that has occurred before. Each state also
remembers the most recent place at which its strings ended, refreshed along at most `REFRESH` suffix links per
byte, which keeps the bound. It knows nothing of drafting.
"""

from msgspec import Struct

REFRESH = 16


class Match(Struct, frozen=True):
    """The last `length` bytes also stand right before offset `end` of the text."""

    length: int
    end: int


class SuffixAutomaton:
    """Grows by `extend`; `matches` looks up the end of the text."""

    def __init__(self) -> None:
        self.text = bytearray()
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._recent = [0]  # offset behind the latest known occurrence
        self._last = 0

    def extend(self, data: bytes) -> None:
        """Append bytes."""
        for byte in data:
            self._refresh()
            self._append(byte)

    def matches(self, count: int) -> list[Match]:
        """Up to `count` matches of shrinking length, longest first, each at its most recent place."""
        found: list[Match] = []
        state, ends = self._link[self._last], set[int]()
        while state > 0 and len(found) < count:
            end = self._recent[state]
            if end not in ends:
                ends.add(end)
                found.append(Match(self._length[state], end))
            state = self._link[state]
        return found

    def _refresh(self) -> None:
        """The text as it stands becomes an earlier occurrence of all its suffixes."""
        end, state = len(self.text), self._last
        for _ in range(REFRESH):
            if state <= 0:
                return
            self._recent[state] = end
            state = self._link[state]

    def _append(self, byte: int) -> None:
        nexts, links, lengths = self._next, self._link, self._length
        self.text.append(byte)
        new = self._state(lengths[self._last] + 1, {}, len(self.text))
        state = self._last
        while state >= 0 and byte not in nexts[state]:
            nexts[state][byte] = new
            state = links[state]
        if state < 0:
            links[new] = 0
        else:
            links[new] = self._split(state, byte)
        self._last = new

    def _split(self, state: int, byte: int) -> int:
        """The state that the new suffix links to: the target itself, or a shorter clone of it."""
        nexts, links, lengths = self._next, self._link, self._length
        target = nexts[state][byte]
        if lengths[target] == lengths[state] + 1:
            return target
        clone = self._state(lengths[state] + 1, dict(nexts[target]), self._recent[target])
        links[clone] = links[target]
        links[target] = clone
        while state >= 0 and nexts[state].get(byte) == target:
            nexts[state][byte] = clone
            state = links[state]
        return clone

    def _state(self, length: int, nexts: dict[int, int], recent: int) -> int:
        self._next.append(nexts)
        self._link.append(0)
        self._length.append(length)
        self._recent.append(recent)
        return len(self._next) - 1
