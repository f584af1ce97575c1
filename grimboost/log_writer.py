"""Writing a message log: entries are appended, and handed to the system when something leaves the process.

A disk that is full or read-only ends the recording with a warning, never the generation. The file's layout is that
of `grimboost.log`. It knows no stage.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from grimboost.diagnostics import get_logger
from grimboost.errors import MisuseError
from grimboost.log import MAGIC, LogEntry, LogHeader, frame, reason
from grimboost.messages import Message

log = get_logger(__name__)

MOST_UNWRITTEN = 1 << 16
"""Bytes."""

_encoder = msgspec.msgpack.Encoder()


class LogWriter:
    """Appends entries. `write` with `flush` hands all of them to the operating system before it returns."""

    def __init__(self, path: Path, header: LogHeader) -> None:
        try:
            self._file: BinaryIO | None = path.open("wb", buffering=0)
        except (OSError, ValueError) as error:  # ValueError: a path that no file system can hold
            raise MisuseError(f"cannot record to {path}: {reason(error)}") from error
        self._path = path
        self._unwritten = bytearray()
        self.entries = header.first
        self._write(MAGIC + frame(_encoder.encode(header)))

    @property
    def recording(self) -> bool:
        """Whether the log is still being written."""
        return self._file is not None

    def write(
        self, seconds: float, stage: str, message: Message, answers: Sequence[Message], flush: bool = True
    ) -> None:
        """Append one entry."""
        if self._file is not None:
            entry = LogEntry(self.entries, seconds, stage, message, tuple(answers))  # type: ignore[arg-type]
            self.entries += 1
            self._unwritten += frame(_encoder.encode(entry))
            if flush or len(self._unwritten) > MOST_UNWRITTEN:
                self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system."""
        if self._unwritten:
            data, self._unwritten = bytes(self._unwritten), bytearray()
            self._write(data)

    def close(self) -> None:
        """End the log. Safe to call twice."""
        self.flush()
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
        log.warning("recording ends, the generation goes on", path=str(self._path), error=reason(error))
