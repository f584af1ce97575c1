"""The instrument that measures where time goes, and makes a profile of it at any moment.

It measures generations that begin while it listens, of one engine. Its memory is bounded, however long it
listens: sums are kept of everything; spreads are over the latest `KEPT` values of each kind; intervals are
swept into sums once there are more than `MOST_INTERVALS`. What a stage did before such a sweep and tells only
after it, having been blocked meanwhile, counts as nobody's. Hooks only note; the rest is done for `CHUNK` turns
at once.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from grimboost import messages as m
from grimboost.actor import ActorStatistics
from grimboost.generation import Generation
from grimboost.instruments import Batch, Instrument, Turn
from grimboost.profile import (
    CLIENT,
    DRAFTER,
    RUNNING,
    STAGES,
    TARGET,
    ClientProfile,
    Interval,
    Pass,
    PassProfile,
    Profile,
    StageProfile,
    WorkerProfile,
    cut,
    limit,
    overlap,
    passes_of,
    sweep,
)
from grimboost.spread import Spread, even_spread
from grimboost.stages.pieces import size_of
from grimboost.wiring import REVEALER
from grimboost.wiring import STAGES as STAGE_NAMES

KEPT = 2000
CHUNK = 256
MOST_INTERVALS = 1024

_KINDS = ("prefill", "decode", "mixed")


class Sample:
    """Values of one kind: count, sum and greatest of all, and the latest ones."""

    __slots__ = ("count", "greatest", "latest", "total")

    def __init__(self) -> None:
        self.count, self.total, self.greatest = 0, 0.0, 0.0
        self.latest = deque[float](maxlen=KEPT)

    def add(self, value: float) -> None:
        """One more."""
        self.count += 1
        self.total += value
        if value > self.greatest:  # noqa: PLR1730  (max() takes longer, and this is called often)
            self.greatest = value
        self.latest.append(value)

    def spread(self) -> Spread | None:
        """Mean and maximum of all, quantiles of the latest."""
        latest = even_spread(self.latest)
        return latest and replace(latest, mean=self.total / self.count, max=self.greatest)


class _Stage:
    def __init__(self) -> None:
        self.depth, self.queued = Sample(), Sample()
        self.sent = self.tokens = self.bytes = 0


class _Worker:
    def __init__(self) -> None:
        self.busy = self.waiting = 0.0
        self.ended = 0.0
        self.seconds, self.requests, self.queued, self.rows = Sample(), Sample(), Sample(), Sample()
        self.tokens = self.bytes = 0


class _Passes:
    def __init__(self) -> None:
        self.seconds, self.context, self.slots, self.rows = Sample(), Sample(), Sample(), Sample()
        self.least = 1 << 62

    def add(self, one: Pass) -> None:
        self.seconds.add(one.seconds)
        self.rows.add(one.rows)
        self.least = min(self.least, one.rows)
        self.slots.add(len(one.contexts))
        for context in one.contexts:
            self.context.add(context)

    def profile(self, kind: str) -> PassProfile:
        seconds, slots, context = self.seconds.spread(), self.slots.spread(), self.context
        most, mean, longest = int(self.rows.greatest), context.total / context.count, int(context.greatest)
        return PassProfile(kind, self.least, most, self.seconds.count, seconds, mean, longest, slots)


class Profiler(Instrument):
    """Add it to an engine's instruments. `profile` is for the event loop, or for when nothing runs."""

    def __init__(self) -> None:
        self._pending = deque[Turn | Batch]()
        self._working: dict[str, float] = {}  # worker -> since when; written in its thread
        self._running: dict[int, tuple[Generation, int]] = {}  # since when, or up to where it is swept
        self._first: float | None = None
        self._last = 0.0
        self._generations = 0
        self._stages = {name: _Stage() for name in STAGE_NAMES}
        self._ended = dict.fromkeys(STAGE_NAMES, ActorStatistics(0, 0))
        self._workers = defaultdict[str, _Worker](_Worker)
        self._passes = defaultdict[tuple[str, int], _Passes](_Passes)
        self._client = ClientProfile()
        self._took: dict[int, float] = {}
        self._intervals: list[Interval] = []
        self._swept: dict[int, int] = {}
        self._upto = 0

    # ------------------------------------------------------------ hooks

    def generation_started(self, generation: Generation) -> None:
        begun = generation.lane.begun
        self._first = begun if self._first is None else self._first
        self._running[generation.request.run] = (generation, _ns(begun))
        self._generations += 1

    def generation_ended(self, generation: Generation) -> None:
        self._drain()
        _, since = self._running.pop(generation.request.run, (None, None))
        if since is not None:
            self._last = time.perf_counter()
            self._intervals.append((since, _ns(self._last), RUNNING))
            self._ended = _plus(self._ended, generation)

    def turn(self, turn: Turn) -> None:
        self._pending.append(turn)
        if len(self._pending) >= CHUNK:
            self._drain()

    def batch_begins(self, worker: str, requests: tuple[Any, ...]) -> None:
        del requests
        self._working[worker] = time.perf_counter()

    def batch(self, batch: Batch) -> None:
        self._pending.append(batch)
        self._working.pop(batch.worker, None)

    def taken(self, run: int, event: m.ClientEvent | None, asked: float, at: float) -> None:
        if self._first is None:
            return
        c, before = self._client, self._took.pop(run, None)
        busy = asked - before if before is not None else 0.0
        self._client = ClientProfile(
            c.events + (event is not None), c.waiting_seconds + at - asked, c.busy_seconds + busy
        )
        if event is not None and not isinstance(event, m.Done):
            self._took[run] = at

    # ------------------------------------------------------------ what they come to

    def _drain(self) -> None:
        """Take in what is noted; what works now began behind `upto`."""
        upto = min((*self._working.copy().values(), time.perf_counter()))
        while self._pending:
            one = self._pending.popleft()
            if isinstance(one, Turn):
                self._take_turn(one)
            else:
                self._take_batch(one)
        if len(self._intervals) > MOST_INTERVALS:
            self._sweep(_ns(upto))

    def _take_turn(self, turn: Turn) -> None:
        if turn.run not in self._running:
            return
        stage = self._stages[turn.stage]
        stage.depth.add(turn.depth)
        stage.queued.add(turn.queued)
        for answer in turn.answers:
            stage.sent += 1
            size = _SIZES.get(type(answer))
            if size is not None:
                tokens, size_ = size(answer)
                stage.tokens += tokens
                stage.bytes += size_
        free = turn.sent - turn.blocked  # as if all of the waiting for room had come last
        self._note(turn.received, free, STAGES)
        if turn.stage == REVEALER and turn.blocked:
            self._note(free, turn.sent, CLIENT)

    def _take_batch(self, batch: Batch) -> None:
        if self._first is None or batch.end <= self._first:
            return
        worker = self._workers[batch.worker]
        worker.busy += batch.end - batch.begin
        worker.waiting += max(0.0, batch.begin - max(batch.idle, self._first))
        worker.ended = batch.end
        worker.seconds.add(batch.end - batch.begin)
        worker.requests.add(len(batch.work))
        for one in batch.work:
            worker.queued.add(batch.begin - one.submitted)
            tokens, size = _SIZES.get(type(one.answer), _nothing)(one.answer)
            worker.tokens += tokens
            worker.bytes += size
        self._take_passes(worker, batch)
        self._note(batch.begin, batch.end, TARGET if batch.worker == "target" else DRAFTER)

    def _take_passes(self, worker: _Worker, batch: Batch) -> None:
        for one in passes_of(batch.work):
            worker.rows.add(one.rows)
            self._passes[one.kind, (one.rows - 1).bit_length()].add(one)

    def _note(self, begin: float, end: float, layer: int) -> None:
        self._intervals.append((max(_ns(begin), self._upto), _ns(end), layer))

    def _sweep(self, upto: int) -> None:
        """Everything before a moment becomes sums."""
        before, self._intervals = cut(self._intervals, upto)
        for run, (generation, since) in self._running.items():
            before.append((since, upto, RUNNING))
            self._running[run] = (generation, max(since, upto))
        _add(self._swept, sweep(before))
        self._upto = max(self._upto, upto)

    def profile(self) -> Profile:
        """Of all that it saw so far."""
        self._drain()
        now = time.perf_counter()
        ended, open_ = self._ended, []
        for generation, since in self._running.values():
            ended = _plus(ended, generation)
            open_.append((since, _ns(now), RUNNING))
        found = dict(self._swept)
        _add(found, sweep([*self._intervals, *open_]))
        parts = overlap(found)
        wall = sum(duration for layers, duration in found.items() if layers & RUNNING) / 1e9
        stages = tuple(self._stage(name, ended[name]) for name in STAGE_NAMES)
        last = now if self._running else self._last
        workers = tuple(self._worker(name, worker, last) for name, worker in sorted(self._workers.items()))
        order = sorted(self._passes, key=lambda key: (_KINDS.index(key[0]), key[1]))
        passes = tuple(self._passes[key].profile(key[0]) for key in order)
        who, words = limit(wall, parts, stages, workers, passes)
        return Profile(self._generations, wall, parts, stages, workers, passes, self._client, who, words)

    def _stage(self, name: str, sums: ActorStatistics) -> StageProfile:
        stage = self._stages[name]
        return StageProfile(
            name,
            sums.received,
            stage.sent,
            sums.busy_seconds,
            sums.waiting_seconds,
            sums.blocked_seconds,
            sums.wall_seconds,
            stage.depth.spread(),
            stage.queued.spread(),
            stage.tokens,
            stage.bytes,
        )

    @staticmethod
    def _worker(name: str, worker: _Worker, last: float) -> WorkerProfile:
        waits = max(0.0, last - worker.ended)  # since its last batch
        return WorkerProfile(
            name,
            worker.seconds.count,
            int(worker.requests.total),
            worker.busy,
            worker.waiting + waits,
            worker.seconds.spread(),
            worker.requests.spread(),
            worker.queued.spread(),
            worker.rows.spread(),
            worker.tokens,
            worker.bytes,
        )


def _plus(sums: dict[str, ActorStatistics], generation: Generation) -> dict[str, ActorStatistics]:
    return {name: sums[name].plus(its) for name, its in generation.stages().items()}


def _add(sums: dict[int, int], more: dict[int, int]) -> None:
    for layers, duration in more.items():
        sums[layers] = sums.get(layers, 0) + duration


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


# ---------------------------------------------------------------- tokens and bytes of messages


def _nothing(_: Any) -> tuple[int, int]:
    return 0, 0


def _spans(message: Any) -> tuple[int, int]:
    return len(message.spans), size_of(message.spans)


def _gated(message: m.Spans) -> tuple[int, int]:
    return len(message.spans), size_of(one.span for one in message.spans)


def _tokens(message: m.Verdict) -> tuple[int, int]:
    return len(message.tokens), size_of(message.tokens)


def _choices(message: m.PassReturned) -> tuple[int, int]:
    return len(message.choices), size_of(message.choices)


def _data(message: Any) -> tuple[int, int]:
    return 0, len(message.data)


def _commit(message: m.Commit) -> tuple[int, int]:
    return (0 if message.finish else len(message.ids)), len(message.data)


_SIZES: dict[type, Callable[[Any], tuple[int, int]]] = {
    m.Draft: _spans,
    m.DraftReturned: _spans,
    m.Spans: _gated,
    m.Verdict: _tokens,
    m.PassReturned: _choices,
    m.Commit: _commit,
    m.Chunk: _data,
    m.Provisional: _data,
}
