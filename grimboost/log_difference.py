"""Where two logs part: the configurations, the first divergent message, and what followed.

Messages are compared lane by lane: the n-th message from one sender to one receiver with the n-th in the other
log. So concurrent stages may take turns in another order. Measured times do not count, nor who else was in a pass,
nor when a patience was over. A divergent message counts as the first where the entry that sent it received the
same in both logs. It does not say it in words.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grimboost import messages as m
from grimboost.lineage import TO_CLIENT, Lane, Lineage, same, sender_of
from grimboost.log import Log, LogEntry, LogHeader
from grimboost.message_difference import FieldDifference, differing
from grimboost.message_text import Words
from grimboost.output_views import output_of
from grimboost.wiring import CLIENT, STAGES

_MEASURED: dict[type[m.Message], dict[str, Any]] = {
    m.DraftReturned: {"seconds": 0.0},
    m.PassReturned: {"seconds": 0.0, "batch_rows": 0, "batch_slots": 0},
}
"""Fields that measure, and say nothing of what was decided."""


class Message(Struct, frozen=True):
    """One input in one log: its entry, lineage, cause and place in its lane."""

    entry: LogEntry
    name: str
    cause: int | None
    lane: Lane
    place: int


class Divergence(Struct, frozen=True):
    """The first divergent message; None where a log lacks it. `ended`: that log ends before its generation did.

    `fields`: what differs. `cause`: name of the message behind it, which both logs have. `order`: its sender's
    inputs, which had the same content, came in another order before.
    """

    one: Message | None
    other: Message | None
    fields: tuple[FieldDifference, ...] = ()
    ended: bool = False
    cause: str | None = None
    order: bool = False


class Outline(Struct, frozen=True):
    """What a log came to. Figures that only the last event has are None before the generation's end."""

    output_bytes: int
    messages: int
    seconds: float
    finish: str | None
    tokens: int | None
    passes: int | None
    mismatches: int | None
    slips: int | None
    coverage: float | None


class LogDifference(Struct, frozen=True):
    """Two logs compared. `order`: where nothing diverges, whether some stage received the same in another order;
    `timing`: whether measured values differ. `output_differs_at`: first output byte that differs."""

    configuration: tuple[FieldDifference, ...]
    divergence: Divergence | None
    order: bool
    timing: bool
    output_differs_at: int | None
    one: Outline
    other: Outline

    @property
    def identical(self) -> bool:
        """Whether both did the same: order and times may differ."""
        return not self.configuration and self.divergence is None and self.output_differs_at is None


def compare(one: Log, other: Log) -> LogDifference:
    """What differs between two logs."""
    left, right = _Side(one), _Side(other)
    divergence = _divergence(left, right)
    outputs = output_of(one), output_of(other)
    return LogDifference(
        configuration=tuple(_configuration(one.header, other.header)),
        divergence=divergence,
        order=divergence is None and any(_another_order(left, right, stage) for stage in STAGES),
        timing=_timing(left, right),
        output_differs_at=_first_difference(*outputs),
        one=outline(one, outputs[0]),
        other=outline(other, outputs[1]),
    )


def outline(log: Log, output: bytes) -> Outline:
    """What one log came to."""
    events = (answer for entry in log for answer in entry.answers)
    done = next((event for event in events if isinstance(event, m.Done)), None)
    seconds = log.entries[-1].seconds if log.entries else 0.0
    size = len(log.entries)
    if done is None:
        return Outline(len(output), size, seconds, None, None, None, None, None, None)
    c = done.counts
    return Outline(
        len(output),
        size,
        seconds,
        done.reason.value,
        c.new_tokens,
        c.target_passes,
        c.mismatches,
        c.slip_tokens,
        c.coverage,
    )


def _configuration(one: LogHeader, other: LogHeader) -> Iterator[FieldDifference]:
    """Differences of the headers, but for when they were written."""
    yield from differing(replace(one, started=0.0), replace(other, started=0.0), Words(redacted=one.redacted))


def _first_difference(one: bytes, other: bytes) -> int | None:
    if one == other:
        return None
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


# ---------------------------------------------------------------- lanes


class _Side:
    """One log, its messages by lane and by stage."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.lineage = Lineage(log.header.first)
        self.lanes: dict[Lane, list[Message]] = {}
        self.stages: dict[str, list[Message]] = {}
        self.by_sequence: dict[int, Message] = {}
        for entry in log:
            self.lineage.follow(entry)
            lane = _lane(entry)
            if lane is not None:
                self._add(entry, lane)

    def _add(self, entry: LogEntry, lane: Lane) -> None:
        origin = self.lineage.causes.get(entry.sequence)
        own = self.lanes.setdefault(lane, [])
        name, cause = self.lineage.names[entry.sequence], origin.sequence if origin else None
        message = Message(entry, name, cause, lane, len(own))
        own.append(message)
        self.stages.setdefault(entry.stage, []).append(message)
        self.by_sequence[entry.sequence] = message

    def at(self, lane: Lane, place: int) -> Message | None:
        """The message at that place of a lane."""
        own = self.lanes.get(lane, [])
        return own[place] if place < len(own) else None

    @property
    def ended(self) -> bool:
        """Whether the log holds its generation to the last event."""
        return any(isinstance(answer, m.Done) for entry in self.log for answer in entry.answers)


def _lane(entry: LogEntry) -> Lane | None:
    """None for what only times decide."""
    if entry.stage == CLIENT:
        return TO_CLIENT  # the events that it took
    edge = sender_of(type(entry.message), entry.stage)
    return Lane(edge.sender, edge.receiver, edge.blocks) if edge else None


def _plain(message: m.Message) -> m.Message:
    """The message without what was measured."""
    measured = _MEASURED.get(type(message))
    return replace(message, **measured) if measured else message


def _alike(one: m.Message, other: m.Message) -> bool:
    return type(one) is type(other) and same(_plain(one), _plain(other))


# ---------------------------------------------------------------- the first divergent message


def _divergence(left: _Side, right: _Side) -> Divergence | None:
    """The earliest message of the first log that differs and whose cause does not; then of the second."""
    first, second = _first(left, right), _flipped(_first(right, left))
    if first is not None and first.ended and second is not None and not second.ended:
        return second
    return first or second


def _first(side: _Side, opposite: _Side) -> Divergence | None:
    divergent: set[int] = set()
    fallback: Divergence | None = None
    for message in side.by_sequence.values():
        match = opposite.at(message.lane, message.place)
        if match is not None and _alike(message.entry.message, match.entry.message):
            continue
        divergent.add(message.entry.sequence)
        found = _described(side, opposite, message, match)
        if message.cause in divergent or found.ended:
            fallback = fallback or found  # the other log may simply end here; a real difference is more telling
        else:
            return found
    return fallback


def _described(side: _Side, opposite: _Side, message: Message, match: Message | None) -> Divergence:
    words = Words(redacted=side.log.header.redacted)
    fields: tuple[FieldDifference, ...] = ()
    if match is not None:
        mine, its = message.entry.message, match.entry.message
        fields = tuple(differing(_plain(mine), _plain(its), words))
    cause = side.by_sequence.get(message.cause) if message.cause is not None else None
    return Divergence(
        message,
        match,
        fields,
        ended=match is None and not opposite.ended,
        cause=cause.name if cause else None,
        order=cause is not None and _order_before(side, opposite, cause),
    )


def _flipped(found: Divergence | None) -> Divergence | None:
    if found is None:
        return None
    pairs = tuple(FieldDifference(one.name, one.other, one.one) for one in found.fields)
    return replace(found, one=found.other, other=found.one, fields=pairs)


def _order_before(side: _Side, opposite: _Side, cause: Message) -> bool:
    """Whether the stage that sent it had received the same messages in another order up to there."""
    mine, its = side.stages[cause.entry.stage], opposite.stages.get(cause.entry.stage, [])
    upto = next(place for place, one in enumerate(mine) if one.entry is cause.entry) + 1
    return [(one.lane, one.place) for one in mine[:upto]] != [(one.lane, one.place) for one in its[:upto]]


def _another_order(left: _Side, right: _Side, stage: str) -> bool:
    mine, its = left.stages.get(stage, []), right.stages.get(stage, [])
    return [(one.lane, one.place) for one in mine] != [(one.lane, one.place) for one in its]


def _timing(left: _Side, right: _Side) -> bool:
    """Whether something that was measured differs."""
    if len(left.log.entries) != len(right.log.entries):
        return True
    pairs = zip(left.log, right.log, strict=True)
    return any(one.seconds != other.seconds for one, other in pairs) or _measured(left) != _measured(right)


def _measured(side: _Side) -> list[bytes]:
    measured = (entry.message for entry in side.log if type(entry.message) in _MEASURED)
    return [msgspec.msgpack.encode(message) for message in measured]
