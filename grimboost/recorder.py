"""One generation's record: the last messages in memory, always, and a whole log on disk, if asked for.

What its client gets is with the operating system before, and everything that led to it: a process that is killed
loses nothing that the client acknowledged. Other messages are gathered for a moment, because each writing may cost
the interpreter's lock; those that come later than that, such as each request to a slow target, are written before
they go anywhere. The beginning of a log in a folder, and a flight, are written in a thread. A disk that refuses
costs a warning, never the generation. It knows no stage.
"""

import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from grimboost import messages as m
from grimboost.diagnostics import get_logger
from grimboost.errors import MisuseError
from grimboost.log import LogHeader
from grimboost.log_writer import LogWriter, Recorded, write_log
from grimboost.recording import FLIGHT_MESSAGES, Limits, LogFolder, Recording, flights_folder
from grimboost.redaction import redacted, redacted_entries, redacted_header
from grimboost.wiring import CLIENT

log = get_logger(__name__)

DISK_SECONDS = 5.0
"""How long a slow disk is waited for."""

WRITE_SECONDS = 0.05
"""How long messages are gathered: one that comes later after the last writing is written at once."""

Soon = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
"""Starts a task that outlives its caller."""

Value = TypeVar("Value")


class Flight(Struct, frozen=True):
    """The last messages of a generation; `entries` are numbered from `header.first`."""

    header: LogHeader
    entries: list[Recorded]

    def write(self, path: Path, redact: bool, new: bool = False) -> None:
        """As a log, without texts if `redact`. Raises `MisuseError`, `FileExistsError` if it is to be `new`."""
        if redact:
            write_log(path, redacted_header(self.header), redacted_entries(self.entries), new)
        else:
            write_log(path, self.header, self.entries, new)


class Recorder:
    """Takes every input of every stage, with the answers."""

    def __init__(
        self,
        header: LogHeader,
        path: Path | None = None,
        folder: LogFolder | None = None,
        flight: int = FLIGHT_MESSAGES,
        redact: bool = False,
        run: int = 0,
        soon: Soon = lambda _: None,
    ) -> None:
        """`path`: the whole log goes to this file; without it, `folder`: to a new one there; both `redact`ed.

        `flight`: messages kept in memory. Raises `MisuseError` for a path that cannot be written.
        """
        self.header = header
        self._folder = folder
        self._redact = redact
        self._run = run
        self._soon = soon
        self._flight: deque[Recorded] = deque(maxlen=flight)
        self._recorded = 0
        self._written = 0.0
        self._begun = time.perf_counter()
        self._ended = self._left = self._closed = False
        self._writer = None if path is None else LogWriter(path, self._log_header)

    @property
    def path(self) -> Path | None:
        """Where its log lies, if it has one and nothing is missing."""
        return None if self._writer is None or self._writer.error else self._writer.path

    @property
    def _log_header(self) -> LogHeader:
        return redacted_header(self.header) if self._redact else self.header

    async def open(self) -> None:
        """Before the first message: begin the log in the folder."""
        if self._folder is not None and self._writer is None:
            make = partial(LogWriter, header=self._log_header, private=True, new=True)
            begin = partial(self._folder.begin, self._run, make)
            self._writer = await _from_disk(begin, self._folder, "a generation is not recorded")

    def begin(self, at: float) -> None:
        """Times count from here, in seconds of `time.perf_counter()`."""
        self._begun = at

    def record(self, stage: str, message: m.Message, answers: Sequence[m.Message]) -> None:
        """Note one input; called before any of the answers goes anywhere."""
        seconds = time.perf_counter() - self._begun
        self._flight.append((seconds, stage, message, answers))
        self._recorded += 1
        writer = self._writer
        if writer is not None and writer.recording:
            due = stage == CLIENT or seconds > self._written + WRITE_SECONDS
            if due:
                self._written = seconds
            if self._redact:
                message, answers = redacted(message), [redacted(answer) for answer in answers]
            writer.write(seconds, stage, message, answers, due)

    def end(self) -> None:
        """The stages have ended."""
        self._ended = True
        self._close()

    def leave(self) -> None:
        """The client takes no more events."""
        self._left = True
        self._close()

    def _close(self) -> None:
        if self._writer is None or self._closed:
            return
        self._writer.flush()
        if self._ended and self._left:
            self._closed = True
            self._writer.close()
            if self._folder is not None:
                self._soon(self._tidy)

    async def _tidy(self) -> None:
        """Its log is whole: what is too old or too much goes."""
        folder, writer = self._folder, self._writer
        if folder is not None and writer is not None:
            await _from_disk(lambda: folder.end(writer.path), folder, "old logs are not removed")

    # ------------------------------------------------------------ the flight recorder

    def flight(self) -> Flight:
        """The last messages."""
        return Flight(replace(self.header, first=self._recorded - len(self._flight)), list(self._flight))

    async def write_flight(self, place: Path | LogFolder, redact: bool | None = None) -> Path:
        """Write the last messages as a log, and return where it lies.

        `redact`: without texts; if not said, as this engine's logs are. Raises `MisuseError`.
        """
        redact = self._redact if redact is None else redact
        if isinstance(place, LogFolder):
            return await run_sync(_keep, place, self._run, self.flight(), redact)
        await run_sync(self.flight().write, place, redact)
        return place

    async def keep_flight(self) -> None:
        """The generation failed: say where its log lies, or write its last messages and say where those lie."""
        path, what = self.path, "a generation failed; it is recorded"
        if path is None and self._flight:
            # nobody asked to keep texts on disk where there is no folder for logs
            folder, redact = self._folder or flights_folder(), self._redact or self._folder is None
            keep = partial(_keep, folder, self._run, self.flight(), redact)
            path = await _from_disk(keep, folder, "a generation failed, and its last messages are not kept")
            what = "a generation failed; its last messages are kept"
        if path is not None:
            log.warning(what, look=f"grimboost log {path}")


class Recorders:
    """Makes the recorders of one engine."""

    def __init__(self, recording: Recording, soon: Soon) -> None:
        """`soon` starts what is to be done behind a generation. Raises `MisuseError`, see `Recording.folder`."""
        self._recording = recording
        self._folder = recording.folder()
        self._soon = soon

    def make(self, header: LogHeader, path: Path | str | None, run: int) -> Recorder:
        """For the generation number `run`. With `path`, its log goes there. Raises `MisuseError`."""
        file, how = None if path is None else Path(path), self._recording
        return Recorder(header, file, self._folder, how.flight_messages, how.redact, run, self._soon)


async def write_flights(recorders: Sequence[Recorder], folder: Path, redact: bool | None) -> list[Path]:
    """Write the last messages of several generations into a folder. Raises `MisuseError`."""
    place = LogFolder(folder, Limits())
    await run_sync(place.prepare)
    return [await recorder.write_flight(place, redact) for recorder in recorders]


async def keep_flights(recorders: Sequence[Recorder]) -> None:
    """Of generations that did not end."""
    for recorder in recorders:
        await recorder.keep_flight()


def _keep(folder: LogFolder, run: int, flight: Flight, redact: bool) -> Path:
    def make(path: Path) -> Path:
        flight.write(path, redact, new=True)
        return path

    path = folder.begin(run, make, ".flight")
    folder.end(path)
    return path


async def _from_disk(call: Callable[[], Value], folder: LogFolder, trouble: str) -> Value | None:
    """Call it in a thread. A disk that refuses, or hangs for too long, gives None and a warning.

    It is done even where the task is cancelled: the end of an engine waits for it.
    """
    error = "the disk does not answer"
    with anyio.move_on_after(DISK_SECONDS, shield=True):
        try:
            return await run_sync(call, abandon_on_cancel=True)
        except MisuseError as failure:
            error = str(failure)
    log.warning(trouble, folder=str(folder.path), error=error)
    return None
