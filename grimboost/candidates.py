"""What waited to be verified when each verdict was reached: spans with their places, as the verifier kept them.

Spans are void with each new epoch, unless shown ones stand; those that do not join on are lost. A log without its
beginning gives what it holds.
"""

from collections.abc import Iterable

from msgspec import Struct

from grimboost import messages as m
from grimboost.log import LogEntry
from grimboost.stages.pieces import size_of
from grimboost.wiring import VERIFIER


class Standing(Struct, frozen=True):
    """A span that waited: the verifier's entry that brought it, and the output offset at which it begins."""

    entry: LogEntry
    gated: m.GatedSpan
    start: int

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.start + len(self.gated.span.data)


class Candidates:
    """One walk over a log."""

    def __init__(self, entries: Iterable[LogEntry], partial: bool) -> None:
        self.by_verdict: dict[int, tuple[Standing, ...]] = {}
        """The verifier's entry that gave a verdict -> what waited then."""
        self._partial = partial
        self._waiting: tuple[Standing, ...] = ()
        self._void: tuple[Standing, ...] = ()
        self._epoch = self._frontier = self._end = 0
        self._decided = False  # by a verdict that voids what waits; the new epoch has not arrived yet
        for entry in entries:
            if entry.stage == VERIFIER:
                self._take(entry)

    def at(self, verdict: LogEntry | None, offset: int) -> Standing | None:
        """The span at an offset when the verifier answered so; with None, at the log's end."""
        spans = self._waiting if verdict is None else self.by_verdict.get(verdict.sequence, ())
        return next((one for one in spans if one.start <= offset < one.end), None)

    def _take(self, entry: LogEntry) -> None:
        match entry.message:
            case m.Spans() as spans if spans.epoch == self._epoch and not self._decided:
                self._join(entry, spans)
            case m.Invalidated(epoch=epoch):
                self._epoch, self._end, self._decided = epoch, self._frontier, False
                self._void, self._waiting = self._waiting, ()
            case m.Committed() as committed:
                self._advance(committed)
        for answer in entry.answers:
            if isinstance(answer, m.Verdict):
                self.by_verdict[entry.sequence] = self._waiting
                self._decided = answer.outcome is not m.Outcome.AGREED
                self._frontier = answer.frontier + size_of(answer.tokens)
                self._end = max(self._end, self._frontier)

    def _join(self, entry: LogEntry, message: m.Spans) -> None:
        if message.offset != self._end and not self._partial:
            return
        at, joined = message.offset, list[Standing]()
        for gated in message.spans:
            joined.append(Standing(entry, gated, at))
            at += len(gated.span.data)
        self._waiting, self._end = (*self._waiting, *joined), at

    def _advance(self, message: m.Committed) -> None:
        self._frontier = message.frontier
        if message.released:  # the epoch is new, and these stand all the same
            self._end = message.frontier + size_of(message.released)
            self._waiting = tuple(
                one for one in self._void if one.end > message.frontier and one.start < self._end
            )
        else:
            self._end = max(self._end, message.frontier)
            self._waiting = tuple(one for one in self._waiting if one.end > message.frontier)
