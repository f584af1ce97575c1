"""Writes what happens as a Chrome trace: JSON that opens in Perfetto and in chrome://tracing.

The engine is the process. Each worker has a track, and in each generation each stage and the client; turns and
batches are complete events ("X"), with a nested one where a stage waited for room. Counters ("C") are queue
depths, frontiers and unverified bytes, in bytes of output; arrows ("s", "t", "f") lead from a draft to what
became of it. Times are microseconds since the trace began. No text of prompts or outputs is written, only
sizes. The file is the format's array of events, so one that was cut short opens, too.

Events are written as they come, in pieces. A disk that is full ends the trace with a warning, never a
generation. It knows no engine.
"""

import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from grimboost import messages as m
from grimboost.diagnostics import get_logger
from grimboost.errors import MisuseError
from grimboost.generation import Generation
from grimboost.instruments import Batch, Instrument, Turn
from grimboost.log import reason
from grimboost.trace_arrows import Arrows, Point
from grimboost.trace_events import batch_arguments, batch_name, frontiers, turn_arguments
from grimboost.wiring import CASCADE, CLIENT, REVEALER, STAGES

log = get_logger(__name__)

PROCESS = 1
CHUNK = 256
"""Turns and batches that are noted before they are written."""
MOST_ENDED = 64
"""Generations that have ended, but whose clients may still take events."""
LEAST_BLOCKED = 50e-6
"""Seconds from which on waiting for room is drawn."""

_WORKER_TRACKS = {"drafter": 1, "target": 2}
_TRACKS = {name: place for place, name in enumerate((*STAGES, CLIENT))}
_encode = msgspec.json.Encoder().encode


class _Taken(Struct):
    run: int
    event: m.ClientEvent | None
    asked: float
    at: float


class _Shown(Struct):
    """A generation's counters as they were last written, and what its client has in hand."""

    arrows: Arrows
    depths: dict[str, int]
    frontiers: dict[str, int]
    taken: _Taken | None = None
    ended: bool = False


class TraceWriter(Instrument):
    """An instrument; `close` ends the file."""

    def __init__(self, path: Path) -> None:
        """Raises `MisuseError` if the file cannot be written."""
        try:
            self._file: BinaryIO | None = path.open("wb", buffering=1 << 16)
        except (OSError, ValueError) as error:
            raise MisuseError(f"cannot trace to {path}: {reason(error)}") from error
        self.path = path
        self._zero = time.perf_counter()
        self._pending = deque[Turn | Batch | _Taken]()
        self._runs: dict[int, _Shown] = {}
        self._arrows = 0
        self._first = True
        self._name("process_name", 0, "grimboost")
        for name, track in _WORKER_TRACKS.items():
            self._track(track, f"{name} worker")

    # ------------------------------------------------------------ hooks

    def generation_started(self, generation: Generation) -> None:
        run = generation.request.run
        self._runs[run] = _Shown(Arrows(run), {}, {"committed": 0, "released": 0, "revealed": 0})
        for name, place in _TRACKS.items():
            self._track(10 * run + place, f"generation {run}: {name}")

    def generation_ended(self, generation: Generation) -> None:
        """Its client may still take events."""
        self._drain()
        if shown := self._runs.get(generation.request.run):
            shown.ended = True
        ended = [run for run, shown in self._runs.items() if shown.ended]
        for run in ended[:-MOST_ENDED]:
            self._forget(run)

    def turn(self, turn: Turn) -> None:
        self._pending.append(turn)
        if len(self._pending) >= CHUNK:
            self._drain()

    def batch(self, batch: Batch) -> None:
        self._pending.append(batch)

    def taken(self, run: int, event: m.ClientEvent | None, asked: float, at: float) -> None:
        self._pending.append(_Taken(run, event, asked, at))

    def close(self) -> None:
        """Write what is left, and end the file. Safe to call twice, behind the generations."""
        self._drain()
        for run in tuple(self._runs):
            self._forget(run)
        self._put(b"\n]\n")
        self._end()

    # ------------------------------------------------------------ events

    def _drain(self) -> None:
        while self._pending:
            one = self._pending.popleft()
            if isinstance(one, Batch):
                self._batch(one)
            elif one.run in self._runs:
                self._turn(one) if isinstance(one, Turn) else self._taken(one)
        for shown in self._runs.values():
            self._draw(shown)

    def _forget(self, run: int) -> None:
        """Nothing more will be told of it."""
        shown = self._runs.pop(run, None)
        if shown is not None:
            self._draw(shown, at_once=True)

    def _turn(self, turn: Turn) -> None:
        track, shown = 10 * turn.run + _TRACKS[turn.stage], self._runs[turn.run]
        kind = type(turn.message).__name__
        self._complete(track, kind, "stage", turn.received, turn.sent, turn_arguments(turn))
        if turn.blocked >= LEAST_BLOCKED:
            self._complete(track, "waiting for room", "stage", turn.sent - turn.blocked, turn.sent, {})
        if shown.depths.get(turn.stage) != turn.depth:
            shown.depths[turn.stage] = turn.depth
            self._counter(turn.run, f"queue of the {turn.stage}", turn.received, {"messages": turn.depth})
        if turn.stage in {CASCADE, REVEALER}:
            self._frontiers(turn, shown)
        shown.arrows.turn(turn, track)

    def _frontiers(self, turn: Turn, shown: _Shown) -> None:
        found = frontiers(shown.frontiers, turn)
        if found != shown.frontiers:
            shown.frontiers = found
            self._counter(turn.run, "frontiers", turn.sent, found)
            unverified = max(0, found["released"] - found["committed"])
            self._counter(turn.run, "unverified bytes", turn.sent, {"bytes": unverified})

    def _batch(self, batch: Batch) -> None:
        track = _WORKER_TRACKS[batch.worker]
        self._complete(track, batch_name(batch), "worker", batch.begin, batch.end, batch_arguments(batch))
        for run in {one.run for one in batch.work}:
            if run in self._runs:
                self._runs[run].arrows.batch(batch, track)

    def _taken(self, taken: _Taken) -> None:
        """What the client did with the event before is known when it asks for the next one."""
        shown = self._runs[taken.run]
        before, shown.taken = shown.taken, taken
        if before is not None and before.event is not None:
            arguments = {"waited_ms": round(1000 * (before.at - before.asked), 3)}
            track = 10 * taken.run + _TRACKS[CLIENT]
            self._complete(track, type(before.event).__name__, "client", before.at, taken.asked, arguments)

    def _draw(self, shown: _Shown, at_once: bool = False) -> None:
        for points in shown.arrows.finished(at_once):
            self._arrows += 1
            for place, point in enumerate(points):
                self._flow("s" if not place else "f" if place == len(points) - 1 else "t", point)

    # ------------------------------------------------------------ the file

    def _complete(self, track: int, name: str, kind: str, begin: float, end: float, args: dict[str, Any]) -> None:
        if begin >= self._zero:
            duration = round(self._time(end) - self._time(begin), 3)
            event = {"ph": "X", "name": name, "cat": kind, "pid": PROCESS, "tid": track, "ts": self._time(begin)}
            self._write({**event, "dur": duration, "args": args})

    def _counter(self, run: int, name: str, at: float, values: dict[str, int]) -> None:
        label = f"generation {run}: {name}"
        self._write({"ph": "C", "name": label, "pid": PROCESS, "tid": 0, "ts": self._time(at), "args": values})

    def _flow(self, phase: str, point: Point) -> None:
        at, track = point
        event = {"ph": phase, "name": "draft", "cat": "draft", "id": self._arrows, "pid": PROCESS, "tid": track}
        self._write({**event, "ts": self._time(at), **({} if phase == "s" else {"bp": "e"})})

    def _track(self, track: int, name: str) -> None:
        self._name("thread_name", track, name)
        index = {"sort_index": track}
        self._write({"ph": "M", "name": "thread_sort_index", "pid": PROCESS, "tid": track, "args": index})

    def _name(self, what: str, track: int, name: str) -> None:
        self._write({"ph": "M", "name": what, "pid": PROCESS, "tid": track, "args": {"name": name}})

    def _time(self, at: float) -> float:
        return round((at - self._zero) * 1e6, 3)

    def _write(self, event: dict[str, Any]) -> None:
        self._put((b"[\n" if self._first else b",\n") + _encode(event))
        self._first = False

    def _put(self, data: bytes) -> None:
        if self._file is not None:
            try:
                self._file.write(data)
            except (OSError, ValueError) as error:
                self._fail(error)

    def _end(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError | ValueError) -> None:
        log.warning("the trace ends, the generation goes on", path=str(self.path), error=reason(error))
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # it would write what is left, once more
                file.close()
