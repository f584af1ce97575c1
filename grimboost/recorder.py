"""One generation's record: the last messages in memory, always, and a whole log on disk, if asked for.

What its client acknowledged and what its workers were asked is with the operating system before it goes there, so
a process that is killed loses none of it. It knows no stage.
"""

import time
from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from grimboost import messages as m
from grimboost.log import LogEntry, LogHeader
from grimboost.log_writer import LogWriter
from grimboost.wiring import CLIENT, DRAFTER_WORKER, ENGINE, STAGES, TARGET_WORKER, routes

FLIGHT_MESSAGES = 2000
"""Messages of each generation that the flight recorder keeps."""

LEAVING = frozenset(
    message
    for stage in STAGES
    for message, edges in routes(stage).items()
    if any(edge.receiver in {CLIENT, DRAFTER_WORKER, TARGET_WORKER, ENGINE} for edge in edges)
)
"""Messages that leave the generation."""


class Recorder:
    """Takes every input of every stage, with the answers."""

    def __init__(self, header: LogHeader, writer: LogWriter | None = None, flight: int = FLIGHT_MESSAGES) -> None:
        """`flight`: messages kept in memory."""
        self.header = header
        self._writer = writer
        self._flight: deque[tuple[float, str, m.Message, Sequence[m.Message]]] = deque(maxlen=flight)
        self._recorded = 0
        self._begun = time.perf_counter()
        self._ended = self._left = False

    def begin(self, at: float) -> None:
        """Times count from here, in seconds of `time.perf_counter()`."""
        self._begun = at

    def record(self, stage: str, message: m.Message, answers: Sequence[m.Message]) -> None:
        """Note one input; called before any of the answers goes anywhere."""
        seconds = time.perf_counter() - self._begun
        self._flight.append((seconds, stage, message, answers))
        self._recorded += 1
        if self._writer is not None and self._writer.recording:
            leaves = stage == CLIENT or any(type(answer) in LEAVING for answer in answers)
            self._writer.write(seconds, stage, message, answers, flush=leaves)

    def flight(self) -> tuple[LogHeader, list[LogEntry]]:
        """The last messages as a log's header and entries."""
        first = self._recorded - len(self._flight)
        entries = [
            LogEntry(first + place, seconds, stage, message, tuple(answers))  # type: ignore[arg-type]
            for place, (seconds, stage, message, answers) in enumerate(self._flight)
        ]
        return replace(self.header, first=first), entries

    def end(self) -> None:
        """The stages have ended."""
        self._ended = True
        self._close()

    def leave(self) -> None:
        """The client takes no more events."""
        self._left = True
        self._close()

    def _close(self) -> None:
        if self._writer is None:
            return
        if self._ended and self._left:
            self._writer.close()
        else:
            self._writer.flush()
