"""Reading a log while it is written: whole entries as they come, from a file that may not even exist yet.

What is not whole at the file's end may still come, so here it is no torn tail. Damage is an error as everywhere.
The log ends with its generation: the last event was made, the target's slot is free, and nothing more comes for a
moment.
"""

import os
import time
from collections.abc import Callable, Iterator

from grimboost.errors import LogError
from grimboost.log import (
    MAGIC,
    GenerationEnd,
    LogEntry,
    LogHeader,
    check_magic,
    decode_entry,
    decode_header,
    frames_from,
    reason,
)

POLL_SECONDS = 0.1
QUIET_POLLS = 3
"""How often nothing may come behind the end of a generation."""


class LogParser:
    """Feed it a log's bytes in any parts; it gives what has become whole. Raises `LogError` where something is
    wrong, naming the byte."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0
        self._next: int | None = None

    def feed(self, data: bytes) -> list[LogHeader | LogEntry]:
        """More bytes."""
        self._data += data
        if self._at == 0 and not self._begin():
            return []
        frames, torn_at = frames_from(self._data, self._at)
        self._at = len(self._data) if torn_at is None else torn_at
        return [self._decoded(frame) for frame in frames]

    def _begin(self) -> bool:
        """Whether the first line is there."""
        if len(self._data) < len(MAGIC) and MAGIC.startswith(self._data):
            return False
        self._at = check_magic(self._data)
        return True

    def _decoded(self, frame: tuple[int, bytes]) -> LogHeader | LogEntry:
        if self._next is None:
            header = decode_header(frame)
            self._next = header.first
            return header
        entry = decode_entry(frame)
        if entry.sequence != self._next:
            raise LogError(f"entry {entry.sequence} stands at place {self._next}, byte {frame[0]}")
        self._next += 1
        return entry


def follow(
    path: str | os.PathLike[str], wait: Callable[[float], object] = time.sleep
) -> Iterator[LogHeader | LogEntry]:
    """The header, then entries as they are written. Ends with the generation; raises `LogError`."""
    parser, end, quiet, position = LogParser(), GenerationEnd(), 0, 0
    while quiet < QUIET_POLLS:
        data = _more(path, position)
        position += len(data)
        found = parser.feed(data)
        for item in found:
            if isinstance(item, LogEntry):
                end.note(item)
            yield item
        quiet = quiet + 1 if end.reached and not found else 0
        if not found and quiet < QUIET_POLLS:
            wait(POLL_SECONDS)


def _more(path: str | os.PathLike[str], position: int) -> bytes:
    """What was written behind `position`; nothing while there is no file."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (any path-like)
            if file.seek(0, os.SEEK_END) < position:
                raise LogError(f"{os.fspath(path)} became shorter while it was followed: it was begun anew")
            file.seek(position)
            return file.read()
    except FileNotFoundError:
        if position:
            raise LogError(f"{os.fspath(path)} was removed while it was followed") from None
        return b""
    except (OSError, ValueError) as error:
        raise LogError(f"cannot read {os.fspath(path)}: {reason(error)}") from error
