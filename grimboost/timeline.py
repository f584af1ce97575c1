"""A log as rows: each entry with its lineage, its epoch and the output bytes that it touches, and filters on them.

It is fed entries one by one, so that it also serves a log that is still being written. It does not know where rows
are shown.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

import msgspec
from msgspec import Struct

from grimboost import messages as m
from grimboost.errors import MisuseError
from grimboost.lineage import Lineage
from grimboost.log import LogEntry, LogHeader
from grimboost.message_text import KINDS, Words
from grimboost.stages.pieces import size_of
from grimboost.wiring import CLIENT, STAGES

NAME_WIDTH = len("verifier#99999")
_NARROWER = (40, 24, 12, 6)
"""Characters of each quoted text, the first number with which a line fits."""
LEAST_WIDTH = 40
ARROW = "->  "

Extent = tuple[float, float]
"""Output bytes from, to; `inf` where it has no end."""


class Row(Struct, frozen=True):
    """One entry. `cause`: name of the message that it received, or that a worker answered with it."""

    entry: LogEntry
    name: str
    cause: str | None
    epoch: int


class Timeline:
    """Turns entries into rows."""

    def __init__(self, header: LogHeader) -> None:
        self.lineage = Lineage(header.first)
        self._epochs: dict[int, int] = {}
        self._latest: dict[str, int] = {}

    def row(self, entry: LogEntry) -> Row:
        """The next entry's row."""
        self.lineage.follow(entry)
        origin = self.lineage.causes.get(entry.sequence)
        epoch = self._epoch(entry, origin.sequence if origin else None)
        self._epochs[entry.sequence] = epoch
        cause = self.lineage.name(origin) if origin else None
        return Row(entry, self.lineage.names[entry.sequence], cause, epoch)

    def _epoch(self, entry: LogEntry, cause: int | None) -> int:
        """The message's own, else that of the entry which caused it, else the latest that the stage has seen."""
        epoch = getattr(entry.message, "epoch", None)
        if epoch is None and cause is not None:
            epoch = self._epochs.get(cause)
        if epoch is None:
            epoch = self._latest.get(entry.stage, 0)
        self._latest[entry.stage] = max(epoch, self._latest.get(entry.stage, 0))
        return epoch


# ---------------------------------------------------------------- filters


class Filter(Struct, frozen=True):
    """Which rows: of these stages, this epoch, with one of these kinds received or answered, that touch output
    bytes in this range, in this time. What is empty or None selects all."""

    stages: tuple[str, ...] = ()
    epoch: int | None = None
    kinds: tuple[str, ...] = ()
    start: float = 0
    end: float = inf
    since: float = 0
    until: float = inf

    def holds(self, row: Row) -> bool:
        """Whether this row is meant."""
        entry = row.entry
        return (
            (not self.stages or entry.stage in self.stages)
            and self.since <= entry.seconds <= self.until
            and (self.epoch is None or self.epoch in _epochs(row))
            and (not self.kinds or not set(self.kinds).isdisjoint(map(_kind, _messages(entry))))
            and ((self.start, self.end) == (0, inf) or self._touches(entry))
        )

    def _touches(self, entry: LogEntry) -> bool:
        extents = (extent(message) for message in _messages(entry))
        return any(one is not None and one[0] < self.end and self.start < one[1] for one in extents)


def check_names(stages: Sequence[str], kinds: Sequence[str]) -> None:
    """Raise `MisuseError` for a stage or a kind that no log has."""
    known = (*STAGES, CLIENT)
    for stage in stages:
        if stage not in known:
            raise MisuseError(f"there is no stage {stage!r}; there are {', '.join(known)}")
    for kind in kinds:
        if kind not in KINDS:
            raise MisuseError(f"there is no kind of message {kind!r}; there are {', '.join(sorted(KINDS))}")


def _messages(entry: LogEntry) -> tuple[m.Message, ...]:
    return (entry.message, *entry.answers)


def _kind(message: m.Message) -> str:
    return type(message).__name__


def _epochs(row: Row) -> Iterator[int]:
    yield row.epoch
    for answer in row.entry.answers:
        epoch = getattr(answer, "epoch", None)
        if epoch is not None:
            yield epoch


def extent(message: m.Message) -> Extent | None:
    """The output bytes that a message is about; None if it names none."""
    match message:
        case m.Draft() | m.Release() | m.DraftReturned():
            return message.offset, message.offset + size_of(message.spans)
        case m.Spans():
            return message.offset, message.offset + size_of(gated.span for gated in message.spans)
        case m.Commit() | m.Reveal() | m.Chunk() | m.Provisional():
            return message.offset, message.offset + len(message.data)
        case m.DraftRequested():
            start = message.frontier + len(message.ahead)
            return message.frontier if message.realign else start, start + message.limit
        case m.Verdict():
            drafted = max(message.drafted_bytes, size_of(message.candidate))
            return message.frontier, message.frontier + max(size_of(message.tokens), drafted)
        case m.Committed():
            return message.frontier - size_of(message.tokens), message.frontier + message.standing
        case m.Retracted():
            return message.offset, inf
        case m.CommittedTo():
            return max(0, message.offset - 1), message.offset
        case m.Slipped(slip=slip):
            return slip.offset, slip.offset + len(slip.data)
        case m.Taken():
            return min(message.acknowledged, message.delivered), max(message.acknowledged, message.delivered)
    return None


# ---------------------------------------------------------------- shown


def line(row: Row, words: Words) -> str:
    """A row as one line: seconds, name, what was received, and what was answered."""
    entry = row.entry
    received = words.describe(entry.message)
    answers = "; ".join(map(words.describe, entry.answers))
    arrow = f"  {ARROW}{answers}" if answers else ""
    return f"{entry.seconds:>9.4f}  {row.name:<{NAME_WIDTH}}  {received}{arrow}"


def fitting_lines(row: Row, redacted: bool, width: int | None) -> Iterator[str]:
    """The row in lines of at most `width` columns: one if it fits, else one for each answer too; None: one."""
    if width is None or _fits(line(row, Words(_NARROWER[0], redacted)), width):
        yield line(row, Words(redacted=redacted) if width is None else Words(_NARROWER[0], redacted))
        return
    head = f"{row.entry.seconds:>9.4f}  {row.name:<{NAME_WIDTH}}  "
    yield _fitted(head, row.entry.message, redacted, width)
    for answer in row.entry.answers:
        yield _fitted(" " * (len(head) - len(ARROW)) + ARROW, answer, redacted, width)


def _fits(text: str, width: int) -> bool:
    from rich.cells import cell_len

    return cell_len(text) <= width


def _fitted(head: str, message: m.Message, redacted: bool, width: int) -> str:
    """A line with texts as long as fit, cut where none do."""
    from rich.cells import set_cell_size

    shown = ""
    for most in _NARROWER:
        shown = head + Words(most, redacted).describe(message)
        if _fits(shown, width):
            return shown
    return set_cell_size(shown, max(width, LEAST_WIDTH) - 1).rstrip() + "…"


def as_object(row: Row) -> dict[str, Any]:
    """A row for machines: the entry with its lineage. In JSON bytes become base64, and infinite margins null."""
    entry = row.entry
    return {
        "sequence": entry.sequence,
        "seconds": entry.seconds,
        "stage": entry.stage,
        "name": row.name,
        "cause": row.cause,
        "epoch": row.epoch,
        "message": msgspec.to_builtins(entry.message),
        "answers": msgspec.to_builtins(entry.answers),
    }
