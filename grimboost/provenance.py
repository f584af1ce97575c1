"""Where one output byte came from: a walk over a log that notes each entry which had to do with it.

What the cascade released is void where a commit says so; spans are those that waited when the verdict was reached
(`grimboost.candidates`). It does not say it in words (`grimboost.explanation`), and judges nothing.
"""

from collections.abc import Iterator

from msgspec import Struct

from grimboost import messages as m
from grimboost.candidates import Candidates
from grimboost.lineage import Lineage, Origin
from grimboost.log import Log, LogEntry
from grimboost.wiring import CASCADE, DRAFTER, GATE, REVEALER


class Drawn(Struct, frozen=True):
    """The drafter's entry whose token covers the byte; `start`: the token's output offset."""

    entry: LogEntry
    token: m.DraftToken
    start: int


class Event(Struct, frozen=True):
    """An event of the revealer, its entry, and which of its answers it is."""

    entry: LogEntry
    place: int
    event: m.Message


class Withdrawn(Struct, frozen=True):
    """The byte was shown, and taken back."""

    shown: Event
    back: Event


class Traced:
    """A log with its lineage."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.lineage = Lineage(log.header.first)
        for entry in log:
            self.lineage.follow(entry)
        self.candidates = Candidates(log, self.lineage.partial)

    def origin(self, entry: LogEntry) -> Origin | None:
        """The message that the entry received, or the request behind it."""
        return self.lineage.causes.get(entry.sequence)

    def sender(self, entry: LogEntry | None) -> LogEntry | None:
        """The entry that sent it; None if the log does not have it."""
        origin = self.origin(entry) if entry else None
        return self.log.entry(origin.sequence) if origin else None

    def receivers(self, entry: LogEntry, place: int) -> list[LogEntry]:
        """Entries that received one of an entry's answers."""
        found = self.lineage.effects.get(Origin(entry.sequence, place), ())
        return [self.log.entry(sequence) for sequence in found]

    def passes(self, verdict: LogEntry) -> Iterator[tuple[LogEntry, int, LogEntry]]:
        """The passes behind a verdict, latest first: the entry that asked, which answer, the entry that got it."""
        returned: LogEntry | None = verdict
        while returned is not None and isinstance(returned.message, m.PassReturned):
            origin, asked = self.origin(returned), self.sender(returned)
            if origin is None or asked is None:
                return
            yield asked, origin.place, returned
            if _has(asked, m.Prefilled):
                return  # the pass before it read the prompt
            returned = asked  # a re-check follows from the pass before it


class Provenance:
    """What a walk has found out about one byte: over the whole log, or over what came before two entries.

    `until` is the revealer's that took the byte back, `decided` the cascade's behind it.
    """

    def __init__(self, traced: Traced, offset: int, until: int | None = None, decided: int | None = None) -> None:
        self.offset = offset
        self._decided = decided
        self.release: LogEntry | None = None
        """The cascade's, whose `Reveal` covers the byte."""
        self.commit: LogEntry | None = None
        """The cascade's, whose `Commit` covers it."""
        self.shown: Event | None = None
        self.final: Event | None = None
        self.slipped: Event | None = None
        self.withdrawn: list[Withdrawn] = []
        self.thresholds: dict[int, float] = {}
        """Gate's entry -> the threshold that it decided by."""
        self._traced = traced
        self._drawn: list[Drawn] = []
        self._threshold = traced.log.header.stages.gate.threshold
        self._walk(until)

    def drawn(self, draft: LogEntry) -> Drawn | None:
        """The drafter's token behind a draft: it may have come with an earlier one, whose bytes were cut anew."""
        earlier = [one for one in self._drawn if one.entry.sequence <= draft.sequence]
        return earlier[-1] if earlier else None

    # ------------------------------------------------------------ the walk

    def _walk(self, until: int | None) -> None:
        handlers = {
            DRAFTER: self._drafter,
            GATE: self._gate,
            CASCADE: self._cascade,
            REVEALER: self._revealer,
        }
        for entry in self._traced.log:
            if until is not None and entry.sequence >= until:
                break
            handler = handlers.get(entry.stage)
            if handler is not None:
                handler(entry)

    def _covers(self, start: int, size: int) -> bool:
        return start <= self.offset < start + size

    def _drafter(self, entry: LogEntry) -> None:
        message = entry.message
        if not isinstance(message, m.DraftReturned) or not _has(entry, m.Draft):
            return
        at = message.offset
        origin = self._traced.origin(entry)
        if origin is not None:
            sender = self._traced.sender(entry)
            request = sender.answers[origin.place] if sender else None
            if isinstance(request, m.DraftRequested) and request.realign:
                at += len(request.ahead)  # these bytes came before, only their spans come again
        for token in message.tokens:
            if self._covers(at, token.length):
                self._drawn.append(Drawn(entry, token, at))
            at += token.length

    def _gate(self, entry: LogEntry) -> None:
        config = self._traced.log.header.stages.gate
        if isinstance(entry.message, m.Certified) and config.release == "certified":
            self._threshold = max(config.floor, entry.message.threshold or 0.0)
        self.thresholds[entry.sequence] = self._threshold

    def _cascade(self, entry: LogEntry) -> None:
        if self._decided is not None and entry.sequence >= self._decided:
            return
        for answer in entry.answers:
            match answer:
                case m.Reveal(offset=offset, data=data) if self._covers(offset, len(data)):
                    self.release = entry
                case m.Commit(offset=offset, data=data, standing=standing):
                    if self._covers(offset, len(data)):
                        self.commit = entry
                        self._keep_release(data[self.offset - offset])
                    elif self.offset >= offset + len(data) + standing:
                        self.release = None

    def _keep_release(self, byte: int) -> None:
        """What was released counts only where it is what was committed."""
        if self.release is None:
            return
        reveal = next(answer for answer in self.release.answers if isinstance(answer, m.Reveal))
        if reveal.data[self.offset - reveal.offset] != byte:
            self.release = None

    def _forget_release(self, back: LogEntry) -> None:
        """What was released before the commit behind a retraction does not stand."""
        commit = self._traced.sender(back)
        if self.release and commit and self.release.sequence < commit.sequence:
            self.release = None

    def _revealer(self, entry: LogEntry) -> None:
        for place, answer in enumerate(entry.answers):
            event = Event(entry, place, answer)
            match answer:
                case m.Chunk(offset=offset, data=data) | m.Provisional(offset=offset, data=data):
                    if self._covers(offset, len(data)):
                        self.shown = event
                        if isinstance(answer, m.Chunk) and not answer.released:
                            self.final = event
                case m.Retracted(offset=offset) if offset <= self.offset and self.shown:
                    self.withdrawn.append(Withdrawn(self.shown, event))
                    self.shown = None
                    self._forget_release(entry)
                case m.CommittedTo(offset=offset) if offset > self.offset and not self.final:
                    self.final = event
                case m.Slipped(slip=slip) if self._covers(slip.offset, len(slip.data)):
                    self.slipped = event


def _has(entry: LogEntry, kind: type[m.Message]) -> bool:
    return any(isinstance(answer, kind) for answer in entry.answers)
