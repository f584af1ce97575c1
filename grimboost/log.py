"""The message log: every input of every stage in order, with what the stage answered.

File layout: the line `grimlog 1`, then frames of length (u32), CRC-32 (u32) and a msgpack payload, little
endian. The first frame is the header, the others are entries. A torn tail (a process was killed while it
wrote) is reported and everything before it is used. Damage is an error: a changed byte is found by its frame's
checksum, also in a length, unless that frame's payload is torn as well. It knows no stage, and does not write
(`grimboost.log_writer`).
"""

import gc
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from grimboost.errors import LogError
from grimboost.messages import AnyMessage, Done, Released
from grimboost.stages.configuration import StageConfigs
from grimboost.stages.sampling_rule import SamplingRule

FORMAT = 1
NAME = b"grimlog "
MAGIC = NAME + b"%d\n" % FORMAT
"""The first line."""
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
    first: int = 0
    """Sequence number of the first entry; above 0 where only the last messages were kept."""
    redacted: bool = False
    """Texts and token ids are replaced: structure, lengths, statistics and times are true; it cannot replay."""
    gate_rule: str = ""
    """Name of the rule that a plug-in added to the gate; a replay needs the same one."""
    epsilon: float | None = None
    """Slip rate of the certificate that the gate is told of; None where there is none, and in older logs."""


class LogEntry(Struct, frozen=True, array_like=True):
    """`stage` received `message` `seconds` after the start and answered `answers`."""

    sequence: int
    seconds: float
    stage: str
    message: AnyMessage
    answers: tuple[AnyMessage, ...]


_header_decoder = msgspec.msgpack.Decoder(LogHeader)
_entry_decoder = msgspec.msgpack.Decoder(LogEntry)


class GenerationEnd:
    """Whether entries hold a generation to its end: its last event, and that the target's slot was given back."""

    def __init__(self) -> None:
        self._done = self._released = False

    def note(self, entry: LogEntry) -> None:
        """The next entry."""
        self._done = self._done or any(isinstance(answer, Done) for answer in entry.answers)
        self._released = self._released or isinstance(entry.message, Released)

    @property
    def reached(self) -> bool:
        """Of the entries so far."""
        return self._done and self._released


class Log:
    """A log that was read. `entries` are those before any torn tail; `torn_at` is the byte where that begins."""

    def __init__(self, header: LogHeader, entries: list[LogEntry], torn_at: int | None) -> None:
        self.header = header
        self.entries = entries
        self.torn_at = torn_at

    def __iter__(self) -> Iterator[LogEntry]:
        return iter(self.entries)

    def entry(self, sequence: int) -> LogEntry:
        """The entry of that number."""
        return self.entries[sequence - self.header.first]

    @property
    def ended(self) -> bool:
        """Whether it holds a generation to its end."""
        end = GenerationEnd()
        for entry in self.entries:
            end.note(entry)
        return end.reached

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Log":
        """Read a whole log file. Raises `LogError`."""
        try:
            data = Path(path).read_bytes()
        except (OSError, ValueError) as error:
            raise LogError(f"cannot read {os.fspath(path)}: {reason(error)}") from error
        return cls.parse(data)

    @classmethod
    def parse(cls, data: bytes) -> "Log":
        """A log from its bytes. Raises `LogError` naming the byte at which something is wrong."""
        start = check_magic(data)
        frames, torn_at = frames_from(data, start)
        if not frames:
            raise LogError(f"the log ends in its header, at byte {torn_at or len(data)}")
        header = decode_header(frames[0])
        with _without_collection():
            entries = [decode_entry(frame) for frame in frames[1:]]
        for place, (entry, frame) in enumerate(zip(entries, frames[1:], strict=True), header.first):
            if entry.sequence != place:
                raise LogError(f"entry {entry.sequence} stands at place {place}, byte {frame[0]}")
        return cls(header, entries, torn_at)


Frame = tuple[int, bytes]
"""Offset and payload."""


@contextmanager
def _without_collection() -> Iterator[None]:
    """Messages hold no cycles; looking for some among thousands of new ones takes longer than reading them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def check_magic(data: bytes | bytearray) -> int:
    """Where the first frame begins. Raises `LogError` for what is no log of this format."""
    line, newline, _ = data[:32].partition(b"\n")
    if not newline or not line.startswith(NAME):
        raise LogError("not a grimboost message log: it does not begin with 'grimlog'")
    if line != MAGIC.strip():
        raise LogError(
            f"log format {line[len(NAME) :].decode(errors='replace')}; this version reads format {FORMAT}"
        )
    return len(line) + 1


def frames_from(data: bytes | bytearray, at: int) -> tuple[list[Frame], int | None]:
    """All whole frames from `at` on with their offsets, and where a torn one begins. Raises `LogError`."""
    frames: list[Frame] = []
    while at < len(data):
        if data.startswith(NAME, at):
            raise LogError(f"another log begins at byte {at}: a file holds one")
        body = at + _FRAME.size
        if body > len(data) or not any(data[at:body]):
            _check_unwritten(data, at)
            return frames, at
        length, checksum = _FRAME.unpack_from(data, at)
        if body + length > len(data):
            if length > LONGEST_FRAME or _misread(data, body, length, checksum):
                raise LogError(f"the frame at byte {at} claims {length} bytes: its length is damaged")
            return frames, at
        payload = data[body : body + length]
        if zlib.crc32(payload) != checksum:
            raise LogError(f"the frame at byte {at} is damaged: its checksum does not match")
        frames.append((at, bytes(payload)))
        at = body + length
    return frames, None


def _check_unwritten(data: bytes | bytearray, at: int) -> None:
    """Zeros up to the end are room that a disk gave and nobody wrote to; with something behind, they are not."""
    if at + _FRAME.size <= len(data) and data.count(0, at) < len(data) - at:
        raise LogError(f"zeros stand in a frame's place at byte {at}, and data behind them")


def _misread(data: bytes | bytearray, body: int, length: int, checksum: int) -> bool:
    """Whether the payload is there, and one byte of its length is wrong: then it is damage and no torn tail."""
    lengths = {length & ~(0xFF << shift) | byte << shift for shift in (0, 8, 16, 24) for byte in range(256)}
    found, at = 0, body
    for end in sorted(body + length for length in lengths):
        if end > len(data):
            break
        found, at = zlib.crc32(memoryview(data)[at:end], found), end
        if found == checksum:
            return True
    return False


def frame(payload: bytes) -> bytes:
    """A payload with its length and checksum."""
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def reason(error: OSError | ValueError) -> str:
    """What went wrong with a file, without its path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def decode_header(frame: Frame) -> LogHeader:
    """The header in a log's first frame. Raises `LogError`."""
    try:
        return _header_decoder.decode(frame[1])
    except msgspec.DecodeError as error:
        raise _foreign(frame, error) from error


def decode_entry(frame: Frame) -> LogEntry:
    """The entry in one of the others. Raises `LogError`."""
    try:
        return _entry_decoder.decode(frame[1])
    except msgspec.DecodeError as error:
        raise _foreign(frame, error) from error


def _foreign(frame: Frame, error: msgspec.DecodeError) -> LogError:
    return LogError(f"the frame at byte {frame[0]} is not of this version: {error}")
