"""`grimboost diff`: where two logs part, in words. It knows nothing of click."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from grimboost.log import Log
from grimboost.log_difference import Divergence, LogDifference, Message, Outline, compare
from grimboost.log_output import emit_json, emit_lines, note, note_torn, open_log
from grimboost.message_difference import FieldDifference, side
from grimboost.message_text import Words, counted
from grimboost.redaction import redacted, redacted_header
from grimboost.wiring import STAGES

MOST_FIELDS = 20


def run_diff(one: Path, other: Path, as_json: bool) -> int:
    """Returns the exit status: 0 if both logs did the same, else 1."""
    first, second = open_log(one), open_log(other)
    found = compare(*_comparable(first, second))
    if as_json:
        emit_json(_as_object(found))
    else:
        words = Words(redacted=first.header.redacted or second.header.redacted)
        emit_lines(_lines(found, words))
    note_torn(one, first)
    note_torn(other, second)
    return 0 if found.identical else 1


def _comparable(one: Log, other: Log) -> tuple[Log, Log]:
    """Where only one log is redacted, the other is taken without its texts, too."""
    if one.header.redacted == other.header.redacted:
        return one, other
    note("only one of the logs is redacted: they are compared without texts and token ids")
    return (one, _without_texts(other)) if one.header.redacted else (_without_texts(one), other)


def _without_texts(log: Log) -> Log:
    entries = [
        replace(entry, message=redacted(entry.message), answers=tuple(map(redacted, entry.answers)))
        for entry in log
    ]
    return Log(redacted_header(log.header), entries, log.torn_at)


def _lines(found: LogDifference, words: Words) -> Iterator[str]:
    if found.identical:
        yield _same(found)
        return
    if found.configuration:
        yield "configuration"
        yield from _fields(found.configuration)
    if found.divergence is None:
        yield f"messages: {_same(found)}"
    else:
        yield from _divergent(found.divergence, words)
    yield from _summary(found)


def _same(found: LogDifference) -> str:
    but = "the same"
    if found.order:
        but = "the same, concurrent stages took turns in another order"
    elif found.timing:
        but = "the same, with other times"
    return but


def _fields(fields: Sequence[FieldDifference]) -> Iterator[str]:
    for one in fields[:MOST_FIELDS]:
        yield f"  {one.name}: {side(one.one)} | {side(one.other)}"
    if len(fields) > MOST_FIELDS:
        yield f"  {len(fields) - MOST_FIELDS} more"


def _divergent(found: Divergence, words: Words) -> Iterator[str]:
    known = found.one or found.other
    assert known is not None
    lane = known.lane
    yield f"first divergent message: number {known.place} from the {lane.sender} to the {lane.receiver}"
    for log, message in (("A", found.one), ("B", found.other)):
        yield f"  {log}  {_message(message, found.ended, words)}"
    yield from _fields(found.fields)
    if found.cause is not None:
        order = f"; before it, what the {lane.sender} received had come in another order" if found.order else ""
        sent = f"sent by {found.cause}" if lane.sender in STAGES else f"an answer to {found.cause}"
        yield f"  {sent}, which received the same in both{order}"


def _message(message: Message | None, ended: bool, words: Words) -> str:
    if message is None:
        return "ends before it" if ended else "has no such message"
    return f"{message.entry.seconds:.4f} s  {message.name}  {words.describe(message.entry.message)}"


_ROWS = (
    ("output", "output_bytes", "bytes"),
    ("tokens", "tokens", ""),
    ("target passes", "passes", ""),
    ("mismatches", "mismatches", ""),
    ("slips", "slips", ""),
    ("coverage", "coverage", ""),
    ("messages", "messages", ""),
    ("time", "seconds", "s"),
    ("ended", "finish", ""),
)


def _summary(found: LogDifference) -> Iterator[str]:
    at = found.output_differs_at
    yield "what followed"
    same = f"the same {counted(found.one.output_bytes, 'byte')}"
    yield f"  outputs: {same if at is None else f'differ from byte {at} on'}"
    rows = [
        (name, _figure(found.one, field, unit), _figure(found.other, field, unit)) for name, field, unit in _ROWS
    ]
    width = max(len(left) for _, left, _ in rows)
    yield f"  {'':<14} {'A':<{width}}  B"
    for name, left, right in rows:
        yield f"  {name:<14} {left:<{width}}  {right}".rstrip()


def _figure(outline: Outline, field: str, unit: str) -> str:
    value: Any = getattr(outline, field)
    if value is None:
        return "-"
    if field == "coverage":
        return f"{100 * value:.0f}%"
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    return f"{text} {unit}".rstrip()


def _as_object(found: LogDifference) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(found)
    return {"identical": found.identical, **value}
