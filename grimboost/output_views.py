"""The output of a log as its client had it, moment by moment, and where a text is in it.

Offsets are bytes of output. What came before the first event of a partial log counts as zero bytes.
"""

from collections.abc import Iterator

from msgspec import Struct

from grimboost import messages as m
from grimboost.log import Log, LogEntry


class Place(Struct, frozen=True):
    """Where a text is: its offset; the revealer's entry that took it back, None if it stands, and from which
    offset on it did."""

    offset: int
    withdrawn_at: int | None = None
    withdrawn_from: int = 0


def output_of(log: Log) -> bytes:
    """The output as the client has it at the log's end."""
    data = b""
    for view, _ in views(log):
        data = view
    return data


def find_text(log: Log, text: bytes) -> list[Place]:
    """Each place of `text` in the output; if there is none, in what was taken back."""
    places = [Place(at) for at in _occurrences(output_of(log), text)]
    if places:
        return places
    before = b""
    for data, entry in views(log):
        if len(data) < len(before):
            gone = (at for at in _occurrences(before, text) if at + len(text) > len(data))
            places += [Place(at, entry.sequence, len(data)) for at in gone]
        before = data
    return places


def views(log: Log) -> Iterator[tuple[bytes, LogEntry]]:
    """What the client has after each event, with the event's entry."""
    data = b""
    if log.header.first:
        data = bytes(_first_offset(log))  # what came before is not in the log
    for entry in log:
        for event in entry.answers:
            match event:
                case m.Chunk(offset=offset) | m.Provisional(offset=offset):
                    data = data[:offset] + event.data
                    yield data, entry
                case m.Retracted(offset=offset):
                    data = data[:offset]
                    yield data, entry


def _first_offset(log: Log) -> int:
    events = (answer for entry in log for answer in entry.answers)
    return next((one.offset for one in events if isinstance(one, m.Chunk | m.Provisional | m.Retracted)), 0)


def _occurrences(data: bytes, text: bytes) -> list[int]:
    found, at = [], data.find(text)
    while text and at >= 0:
        found.append(at)
        at = data.find(text, at + 1)
    return found
