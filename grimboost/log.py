"""The message log: every input of every stage in order, with what the stage answered.

File layout: the line `grimlog 1`, then frames of length (u32), CRC-32 (u32) and a msgpack payload, little
endian. The first frame is the header, the others are entries. A torn tail (a process was killed while it
wrote) is reported and everything before it is used; a flipped bit is found by its checksum and is an error.
A disk that is full or read-only ends the recording with a warning, never the generation. It knows no stage.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from grimboost.diagnostics import get_logger
from grimboost.errors import LogError, MisuseError
from grimboost.messages import AnyMessage
from grimboost.stages.configuration import StageConfigs
from grimboost.stages.sampling_rule import SamplingRule

log = get_logger(__name__)

FORMAT = 1
_MAGIC = b"grimlog %d\n"
_FRAME = struct.Struct("<II")
LONGEST_FRAME = 1 << 30


class LogHeader(Struct, frozen=True):
    """What the entries were made with."""

    versions: dict[str, str]
    model: str
    model_digest: str
    tokenizer_digest: str
    precision: str
    drafter: str
    stages: StageConfigs
    rule: SamplingRule
    end_of_sequence: dict[int, list[str]] = {}
    """Each end-of-sequence id with the sources that named it; empty under ignore_eos."""
    started: float = 0.0
    """Seconds since the epoch."""


class LogEntry(Struct, frozen=True, array_like=True):
    """`stage` received `message` `seconds` after the start and answered `answers`."""

    sequence: int
    seconds: float
    stage: str
    message: AnyMessage
    answers: tuple[AnyMessage, ...]


_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(LogHeader)
_entry_decoder = msgspec.msgpack.Decoder(LogEntry)


class LogWriter:
    """Appends entries; each is handed to the operating system before the next message is handled."""

    def __init__(self, path: Path, header: LogHeader) -> None:
        try:
            self._file: BinaryIO | None = path.open("wb", buffering=0)
        except (OSError, ValueError) as error:  # ValueError: a path that no file system can hold
            raise MisuseError(f"cannot record to {path}: {_reason(error)}") from error
        self._path = path
        self.entries = 0
        self._write(_MAGIC % FORMAT + _frame(_encoder.encode(header)))

    @property
    def recording(self) -> bool:
        """Whether the log is still being written."""
        return self._file is not None

    def write(self, seconds: float, stage: str, message: AnyMessage, answers: list[AnyMessage]) -> None:
        """Append one entry."""
        if self._file is not None:
            entry = LogEntry(self.entries, seconds, stage, message, tuple(answers))
            self.entries += 1
            self._write(_frame(_encoder.encode(entry)))

    def close(self) -> None:
        """End the log. Safe to call twice."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:  # a network file system reports a full disk only here
                self._warn(error)

    def _write(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            view = memoryview(data)
            while view:
                written = self._file.write(view)
                if not written:
                    raise OSError("nothing was written")
                view = view[written:]
        except OSError as error:
            self._warn(error)
            self.close()

    def _warn(self, error: OSError) -> None:
        log.warning("recording ends, the generation goes on", path=str(self._path), error=_reason(error))


class Log:
    """A log that was read. `entries` are those before any torn tail; `torn_at` is the byte where that begins."""

    def __init__(self, header: LogHeader, entries: list[LogEntry], torn_at: int | None) -> None:
        self.header = header
        self.entries = entries
        self.torn_at = torn_at

    def __iter__(self) -> Iterator[LogEntry]:
        return iter(self.entries)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Log":
        """Read a whole log file. Raises `LogError`."""
        try:
            data = Path(path).read_bytes()
        except (OSError, ValueError) as error:
            raise LogError(f"cannot read {os.fspath(path)}: {_reason(error)}") from error
        return cls.parse(data)

    @classmethod
    def parse(cls, data: bytes) -> "Log":
        """A log from its bytes. Raises `LogError` naming the byte at which something is wrong."""
        start = _check_magic(data)
        frames, torn_at = _frames(data, start)
        if not frames:
            raise LogError(f"the log ends in its header, at byte {torn_at or len(data)}")
        header = _decode(_header_decoder, frames[0])
        entries = [_decode(_entry_decoder, frame) for frame in frames[1:]]
        for place, entry in enumerate(entries):
            if entry.sequence != place:
                raise LogError(f"entry {entry.sequence} stands at place {place}, byte {frames[place + 1][0]}")
        return cls(header, entries, torn_at)


Frame = tuple[int, bytes]


def _check_magic(data: bytes) -> int:
    line, newline, _ = data[:32].partition(b"\n")
    if not newline or not line.startswith(b"grimlog "):
        raise LogError("not a grimboost message log: it does not begin with 'grimlog'")
    if line != (_MAGIC % FORMAT).strip():
        raise LogError(f"log format {line[8:].decode(errors='replace')}; this version reads format {FORMAT}")
    return len(line) + 1


def _frames(data: bytes, at: int) -> tuple[list[Frame], int | None]:
    """All whole frames with their offsets, and where a torn one begins."""
    frames: list[Frame] = []
    while at < len(data):
        body = at + _FRAME.size
        if body > len(data) or not any(data[at:body]):  # zeros: the disk gave room that was never written
            return frames, at
        length, checksum = _FRAME.unpack_from(data, at)
        if body + length > len(data):
            if length > LONGEST_FRAME or _flipped(data, body, length, checksum):
                raise LogError(f"the frame at byte {at} claims {length} bytes: its length is damaged")
            return frames, at
        payload = data[body : body + length]
        if zlib.crc32(payload) != checksum:
            raise LogError(f"the frame at byte {at} is damaged: its checksum does not match")
        frames.append((at, payload))
        at = body + length
    return frames, None


def _flipped(data: bytes, body: int, length: int, checksum: int) -> bool:
    """Whether the payload is there and one bit of its length is wrong: then it is damage and no torn tail."""
    ends = (body + (length ^ 1 << bit) for bit in range(32))
    return any(end <= len(data) and zlib.crc32(memoryview(data)[body:end]) == checksum for end in ends)


def _frame(payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _decode(decoder: msgspec.msgpack.Decoder[LogHeader] | msgspec.msgpack.Decoder[LogEntry], frame: Frame):  # type: ignore[no-untyped-def]
    try:
        return decoder.decode(frame[1])
    except msgspec.DecodeError as error:
        raise LogError(f"the frame at byte {frame[0]} is not of this version: {error}") from error
