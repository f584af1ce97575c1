"""Each mismatch of a log with what led to it and what followed: the entries, and a heading in words.

A mismatch is a verdict by which the target contradicts what was drafted or shown. What led to it: the drafts whose
spans were refused, their gate decisions and releases, and the pass. What followed: the new epoch where it arrived,
slips and retractions on their way to the client, and the verdict with which doubt ended. Entries of a log that
begins later, or ends before, are missing.
"""

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from grimboost import messages as m
from grimboost.log import LogEntry
from grimboost.message_text import Words, counted
from grimboost.provenance import Traced
from grimboost.wiring import CASCADE, REVEALER


class Mismatch(Struct, frozen=True):
    """`offset`: the first output byte at which the target disagrees; `entries` in order, by sequence number."""

    offset: int
    heading: str
    entries: tuple[int, ...]


def mismatches(traced: Traced, words: Words) -> Iterator[Mismatch]:
    """All of them in the log's order."""
    for entry in traced.log:
        if entry.stage == CASCADE and isinstance(entry.message, m.Verdict) and entry.answers:
            commit = next((answer for answer in entry.answers if isinstance(answer, m.Commit)), None)
            slips = commit.slips if commit else ()
            if entry.message.outcome is m.Outcome.MISMATCH or slips:
                yield _Case(traced, entry, entry.message, slips, words).mismatch()


class _Case:
    """One verdict of the cascade, and what had to do with it."""

    def __init__(
        self, traced: Traced, entry: LogEntry, verdict: m.Verdict, slips: tuple[m.Slip, ...], words: Words
    ) -> None:
        self._traced = traced
        self._entry = entry
        self._verdict = verdict
        self._slips = slips
        self._words = words
        self._refused = verdict.frontier + verdict.accepted_bytes
        self._offset = self._refused if not slips else min(slips[0].offset, self._refused)
        self._committed = next((answer for answer in entry.answers if isinstance(answer, m.Committed)), None)

    def mismatch(self) -> Mismatch:
        """The case as one value."""
        entries = {self._entry.sequence, *self._before(), *self._after()}
        return Mismatch(self._offset, self._heading(), tuple(sorted(entries)))

    # ------------------------------------------------------------ entries

    def _offsets(self) -> Iterator[int]:
        yield from (slip.offset for slip in self._slips)
        if not self._slips or self._verdict.outcome is m.Outcome.MISMATCH:
            own = self._verdict.tokens[-1].data
            yield self._refused
            yield from range(self._refused + 1, self._refused + len(own))

    def _before(self) -> Iterator[int]:
        verifier = self._traced.sender(self._entry)
        for offset in self._offsets():
            standing = self._traced.candidates.at(verifier, offset)
            entries = [standing.entry if standing else None, *self._shown_at(offset)]
            while any(entries):
                known = [entry for entry in entries if entry is not None]
                yield from (entry.sequence for entry in known)
                entries = [self._traced.sender(entry) if _leads(entry) else None for entry in known]
        if verifier is not None:
            yield verifier.sequence
            for asked, _, returned in self._traced.passes(verifier):
                yield from (asked.sequence, returned.sequence)

    def _shown_at(self, offset: int) -> Iterator[LogEntry]:
        """The entry that showed the byte before the verdict; its causes are the release."""
        for entry in self._backwards():
            for event in entry.answers:
                match event:
                    case m.Chunk(offset=start, data=data) | m.Provisional(offset=start, data=data):
                        if start <= offset < start + len(data):
                            yield entry
                            return
                    case m.Retracted(offset=start) if start <= offset:
                        return

    def _backwards(self) -> Iterator[LogEntry]:
        """The revealer's entries before the verdict, latest first."""
        log = self._traced.log
        place = self._entry.sequence - log.header.first
        return (entry for entry in reversed(log.entries[:place]) if entry.stage == REVEALER)

    def _after(self) -> Iterator[int]:
        for place, answer in enumerate(self._entry.answers):
            for received in self._traced.receivers(self._entry, place):
                yield received.sequence
                if isinstance(answer, m.Commit):
                    yield from self._told(received)
        ended = self._doubt_ends()
        if ended is not None:
            yield ended.sequence

    def _told(self, revealer: LogEntry) -> Iterator[int]:
        """When the client took slips and retractions."""
        for place, event in enumerate(revealer.answers):
            if isinstance(event, m.Slipped | m.Retracted):
                yield from (taken.sequence for taken in self._traced.receivers(revealer, place))

    def _doubt_ends(self) -> LogEntry | None:
        """The first verdict behind which the cascade trusts the gate again."""
        if not self._doubts:
            return None
        log = self._traced.log
        for entry in islice(log.entries, self._entry.sequence - log.header.first + 1, None):
            if entry.stage == CASCADE:
                for answer in entry.answers:
                    if (
                        isinstance(answer, m.Committed)
                        and answer.frontier >= answer.doubt_until
                        and not answer.alone
                    ):
                        return entry
        return None

    @property
    def _doubts(self) -> bool:
        told = self._committed
        return told is not None and (told.doubt_until > told.frontier or told.alone > 0)

    # ------------------------------------------------------------ heading

    def _heading(self) -> str:
        return f"{self._what()}: {', '.join(self._followed()) or 'nothing had been shown of it'}"

    def _what(self) -> str:
        quote = self._words.quote
        if self._slips:
            slip = self._slips[0]
            chosen = quote(slip.chosen) if slip.chosen else "a token without bytes"
            return f"slip at {slip.offset}, shown was {quote(slip.data)}, the target chose {chosen}"
        own = self._verdict.tokens[-1].data
        drafted = self._drafted(len(own))
        chose = quote(own) if own else "a token without bytes"
        was = f"drafted was {quote(drafted)}" if drafted else "the draft went on"
        return f"mismatch at {self._offset}, {was}, the target chose {chose}"

    def _drafted(self, size: int) -> bytes:
        """What was drafted from the mismatch on, as many bytes as the target's token has, or one span."""
        verifier = self._traced.sender(self._entry)
        data = b""
        while len(data) < max(size, 1):
            standing = self._traced.candidates.at(verifier, self._refused + len(data))
            if standing is None:
                break
            span = standing.gated.span.data
            data += span[self._refused + len(data) - standing.start :]
        return data

    def _followed(self) -> Iterator[str]:
        if len(self._slips) > 1:
            yield f"{len(self._slips) - 1} more in the same verdict"
        for place, answer in enumerate(self._entry.answers):
            if isinstance(answer, m.Commit):
                for revealer in self._traced.receivers(self._entry, place):
                    yield from self._taken_back(revealer)
        told = self._committed
        if told is None:
            yield "the generation ended"
            return
        if told.doubt_until > told.frontier:
            yield f"doubt until {told.doubt_until}"
        if told.alone:
            yield f"takeover of {counted(told.alone, 'token')}"
        if self._doubts:
            ended = self._doubt_ends()
            yield f"trusted again at {ended.seconds:.4f} s" if ended else "not trusted again"

    def _taken_back(self, revealer: LogEntry) -> Iterator[str]:
        for event in revealer.answers:
            if isinstance(event, m.Retracted):
                yield f"{counted(self._shown() - event.offset, 'byte')} taken back"

    def _shown(self) -> int:
        """Output bytes that were shown before the verdict."""
        for entry in self._backwards():
            for event in reversed(entry.answers):
                if isinstance(event, m.Chunk | m.Provisional):
                    return event.offset + len(event.data)
                if isinstance(event, m.Retracted):
                    return event.offset
        return 0


def _leads(entry: LogEntry) -> bool:
    """Whether the entry's cause belongs to the story, too: up to the draft, not to what it continued."""
    return isinstance(entry.message, m.Spans | m.Draft | m.Release | m.Reveal)
