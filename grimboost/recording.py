"""What is kept of generations on disk, and the folder it is kept in: one file each, the oldest removed in time.

::

    <folder>/20260131T235959.123456Z-4711-12.grimlog          begun then (UTC) by process 4711, its 12th generation
    <folder>/20260131T235959.123456Z-4711-13.flight.grimlog   the last messages of one that failed

Sorted by name they are sorted by time. What bears no such name, or is no log, is never touched, nor is a log that
somebody writes: this process knows its own, and those of others are locked where the system has locks. Calls may
block on the disk. It knows no generation.
"""

import os
import re
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from platformdirs import user_state_dir

from grimboost.errors import MisuseError
from grimboost.log import NAME, reason
from grimboost.log_writer import lock

DAY = 86400.0

FLIGHT_MESSAGES = 2000
"""Messages of each generation that are kept in memory."""

LOOK_AGAIN = 60.0
"""Seconds after which a folder is read again: other processes may write to it too."""

_NAME = re.compile(r"(\d{8}T\d{6}\.\d{6})Z-\d+-\d+(\.flight)?\.grimlog")
_TIME = "%Y%m%dT%H%M%S.%f"

Made = TypeVar("Made")


class Recording(Struct, frozen=True, forbid_unknown_fields=True):
    """What an engine records. By default nothing goes to disk, except the last messages of what failed.

    `directory`: every generation's whole log goes there. `redact`: logs hold no text (`grimboost.redaction`). The
    oldest logs in `directory` are removed as soon as all together are larger than `keep_bytes`, or they are older
    than `keep_days`. `flight_messages` are kept in memory of each generation; 0 keeps none.
    """

    directory: Path | str | None = None
    redact: bool = False
    keep_bytes: int = 1 << 30
    keep_days: float = 30.0
    flight_messages: int = FLIGHT_MESSAGES

    def check(self) -> None:
        """Raise `MisuseError` for a value out of range."""
        for name, value in (("keep_bytes", self.keep_bytes), ("keep_days", self.keep_days)):
            if not value > 0:  # NaN fails this as well
                raise MisuseError(f"{name} is {value}; it has to be above 0")
        if self.flight_messages < 0:
            raise MisuseError(f"flight_messages is {self.flight_messages}; it has to be at least 0")

    def folder(self) -> "LogFolder | None":
        """The folder of whole logs, made and tried. Raises `MisuseError` if that cannot be."""
        self.check()
        if self.directory is None:
            return None
        folder = LogFolder(Path(self.directory), Limits(self.keep_bytes, self.keep_days * DAY))
        folder.prepare()
        return folder


class Limits(Struct, frozen=True):
    """Bytes of all logs, age in seconds, and number of logs."""

    size: float = float("inf")
    age: float = float("inf")
    count: float = float("inf")


FLIGHTS = Limits(age=30 * DAY, count=20)
"""Of flights that nobody asked to keep."""


def flights_folder() -> "LogFolder":
    """`GRIMBOOST_FLIGHTS`, or the user's folder for state."""
    given = os.environ.get("GRIMBOOST_FLIGHTS")
    root = Path(given or Path(user_state_dir("grimboost")) / "flights").expanduser().absolute()
    return LogFolder(root, FLIGHTS)


class _Kept(Struct, frozen=True):
    path: Path
    size: int
    begun: float


class LogFolder:
    """One folder of logs. Safe to use from several threads, and by several processes."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path = path
        self._limits = limits
        self._lock = threading.Lock()
        self._writing: set[Path] = set()
        self._size = 0
        self._looked: float | None = None

    def prepare(self) -> None:
        """Make the folder and try to write there. Raises `MisuseError`."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except (OSError, ValueError) as error:
            raise MisuseError(f"cannot record to {self.path}: {reason(error)}") from error

    def begin(self, run: int, make: Callable[[Path], Made], kind: str = "") -> Made:
        """Make room, and a new file by calling `make` with its path; it is being written until `end`.

        `make` raises `FileExistsError` where there is a file. Raises what else it raises, and `MisuseError`.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise MisuseError(f"cannot record to {self.path}: {reason(error)}") from error
        self.rotate()
        while True:
            path = self.path / f"{datetime.now(UTC):{_TIME}}Z-{os.getpid()}-{run}{kind}.grimlog"
            with self._lock:
                self._writing.add(path)
            try:
                return make(path)
            except FileExistsError:  # another process of this number, behind the same folder, at the same time
                self._discard(path)
            except BaseException:
                self._discard(path)
                raise

    def end(self, path: Path) -> None:
        """This log is whole. Removes what is too much now."""
        with self._lock, suppress(OSError):
            self._writing.discard(path)
            self._size += path.stat().st_size
        self.rotate()

    def rotate(self) -> None:
        """Remove the oldest logs until all fit; the newest stays. What cannot be removed or read is left alone."""
        with self._lock:
            due = self._looked is None or time.monotonic() > self._looked + LOOK_AGAIN
            if due or self._limits.count != float("inf") or self._size > self._limits.size:
                with suppress(OSError):
                    self._remove(self._logs())
                    self._looked = time.monotonic()

    def _discard(self, path: Path) -> None:
        with self._lock:
            self._writing.discard(path)

    def _remove(self, logs: list[_Kept]) -> None:
        self._size, count = sum(log.size for log in logs), len(logs)
        oldest = time.time() - self._limits.age
        for log in logs[:-1]:
            limits = self._limits
            if log.begun >= oldest and self._size <= limits.size and count <= limits.count:
                return
            if log.path not in self._writing and _removed(log.path):
                self._size -= log.size
                count -= 1

    def _logs(self) -> list[_Kept]:
        """All logs of ours by age, the oldest first."""
        found = []
        for entry in os.scandir(self.path):
            match = _NAME.fullmatch(entry.name)
            if match and entry.is_file(follow_symlinks=False):
                with suppress(OSError, ValueError):  # gone meanwhile, or no time after all
                    begun = datetime.strptime(match[1], _TIME).replace(tzinfo=UTC).timestamp()
                    found.append(_Kept(Path(entry.path), entry.stat().st_size, begun))
        return sorted(found, key=lambda log: log.path.name)


def _removed(path: Path) -> bool:
    """Remove a log that nobody writes; false if it stays."""
    try:
        with path.open("rb") as file:
            # empty: its process was killed before it wrote anything
            if not NAME.startswith(file.read(len(NAME))) or not lock(file.fileno(), exclusive=False):
                return False
        path.unlink()
    except OSError:
        return not path.exists()
    return True
