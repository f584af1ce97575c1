"""Writing a message log: entries are gathered, and handed to the system together when the caller says so.

A disk that is full or read-only ends the recording with a warning, never the generation. The file's layout is that
of `grimboost.log`. It knows no stage.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from grimboost.diagnostics import get_logger
from grimboost.errors import MisuseError
from grimboost.log import MAGIC, LogHeader, frame, reason
from grimboost.messages import Message

try:
    import fcntl
except ImportError:  # not on Windows, where nobody can remove a file that is open
    fcntl = None  # type: ignore[assignment]

log = get_logger(__name__)

MOST_UNWRITTEN = 256
"""Entries."""

_encoder = msgspec.msgpack.Encoder()


class LogWriter:
    """Appends entries. `write` with `flush` hands all of them to the operating system before it returns."""

    def __init__(
        self, path: Path, header: LogHeader, private: bool = False, new: bool = False, quiet: bool = False
    ) -> None:
        """`private`: a file that is made is for its owner only. `new`: it may not exist. `quiet`: no warnings.

        Raises `MisuseError`, and `FileExistsError` where `new` was asked for.
        """
        self.error: OSError | ValueError | None = None
        """What ended the recording early."""
        self._quiet = quiet
        try:
            self._file: BinaryIO | None = _open_private(path, new) if private else path.open("wb", buffering=0)
        except (OSError, ValueError) as error:  # ValueError: a path that no file system can hold
            if new and isinstance(error, FileExistsError):
                raise
            raise MisuseError(f"cannot record to {path}: {reason(error)}") from error
        self.path = path
        self._unwritten: list[tuple[int, float, str, Message, Sequence[Message]]] = []
        self.entries = header.first
        self._write(MAGIC + frame(_encoder.encode(header)))

    @property
    def recording(self) -> bool:
        """Whether the log is still being written."""
        return self._file is not None

    def write(
        self, seconds: float, stage: str, message: Message, answers: Sequence[Message], flush: bool = True
    ) -> None:
        """Append one entry. Nothing in it may change any more."""
        if self._file is not None:
            # encoded all at once: one by one, each finds the processor's caches full of the target's weights
            self._unwritten.append((self.entries, seconds, stage, message, answers))
            self.entries += 1
            if flush or len(self._unwritten) >= MOST_UNWRITTEN:
                self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system."""
        if self._unwritten:
            entries, self._unwritten = self._unwritten, []  # encoded as `log.LogEntry` is, without making one
            self._write(b"".join([frame(_encoder.encode(entry)) for entry in entries]))

    def close(self) -> None:
        """End the log. Safe to call twice."""
        self.flush()
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:  # a network file system reports a full disk only here
                self._fail(error)

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
        except (OSError, ValueError) as error:  # ValueError: somebody closed the file
            self._fail(error)
            self.close()

    def _fail(self, error: OSError | ValueError) -> None:
        if self.error is None and not self._quiet:
            log.warning("recording ends, the generation goes on", path=str(self.path), error=reason(error))
        self.error = self.error or error


Recorded = tuple[float, str, Message, Sequence[Message]]
"""An entry without its number: seconds, stage, what it received, what it answered."""


def write_log(path: Path, header: LogHeader, entries: Iterable[Recorded], new: bool = False) -> None:
    """Write a whole log at once, for its owner only. Raises `MisuseError` where that fails.

    `new`: raise `FileExistsError` instead of replacing a file.
    """
    writer = LogWriter(path, header, private=True, new=new, quiet=True)
    for seconds, stage, message, answers in entries:
        writer.write(seconds, stage, message, answers, flush=False)
    writer.close()
    if writer.error is not None:
        with suppress(OSError):
            if path.is_file():  # a half of a log helps nobody, and a device stays
                path.unlink()
        raise MisuseError(f"cannot write {path}: {reason(writer.error)}")


def lock(file: int, exclusive: bool) -> bool:
    """Lock a file for as long as it is open; false if another one writes it. True where locks cannot be had."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _open_private(path: Path, new: bool) -> BinaryIO:
    """A file for its owner only, locked so that nobody takes it away while it is written."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if new else os.O_TRUNC)
    file = os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0)
    lock(file.fileno(), exclusive=True)
    return file
