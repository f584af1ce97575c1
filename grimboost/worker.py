"""Workers: one thread per model, which takes what waits for all generations and runs it as one batch.

Nothing awaits inside a model step, and the event loop never computes. Each generation holds a `Lease`; once
the lease has ended, queued work of it is not started and a late result is dropped (case D8). A worker thread
is a daemon: a model that hangs cannot keep the process alive.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakSet

import anyio
from msgspec import Struct, field

from grimboost.diagnostics import get_logger
from grimboost.event_loop import call_soon
from grimboost.instruments import Batch, Instruments, Work
from grimboost.messages import Message

log = get_logger(__name__)

LONGEST_GATHERING = 0.005
"""Seconds that a worker waits at most for jobs that may join those at hand, and no longer than its last batch
took."""


class Lease:
    """One generation's right to a worker: its run number, where answers go, and whether it has ended.

    `deliver` runs on the event loop. `ended` is set on the loop and read by the worker thread.
    """

    def __init__(self, run: int, deliver: Callable[[Message], None]) -> None:
        self.run = run
        self.ended = False
        self._deliver = deliver

    def deliver(self, message: Message) -> None:
        """Hand an answer to the generation, unless it is over."""
        if not self.ended:
            self._deliver(message)


class Job(Struct, frozen=True):
    """One request of one generation. `always` runs also when the lease has ended (giving back a slot).

    `submitted`: when it was made, in seconds of `time.perf_counter()`.
    """

    lease: Lease
    request: Any
    always: bool = False
    submitted: float = field(default_factory=time.perf_counter)


class Service(Protocol):
    """What a worker thread runs. Never raises for a single bad request: that becomes its answer."""

    def handle(self, jobs: Sequence[Job]) -> list[tuple[Lease, Message]]:
        """Answer a batch of jobs, in any order."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class WorkerStatistics(Struct, frozen=True):
    """Batches and jobs since the start, and the seconds in which the thread worked. The jobs had waited for
    `queued_seconds` together, and `queue` wait now."""

    batches: int
    jobs: int
    skipped: int
    busy_seconds: float
    queued_seconds: float = 0.0
    queue: int = 0


class Worker:
    """A thread, its queue and its service, which the thread itself makes.

    One thread loads, uses and drops a model: that is simple, and OpenMP keeps a pool per thread that computes,
    so a second one would make every parallel region of the first wait for sleeping helpers (measured: 1.5
    times per pass on two cores).
    """

    def __init__(self, name: str, make: Callable[[], Service], gathers: bool = False) -> None:
        """`gathers`: wait a moment for those whose jobs ran together last time, so that they stay together."""
        self.name = name
        self._make = make
        self._gathers = gathers
        self._last: WeakSet[Lease] = WeakSet()
        self._last_seconds = 0.0
        self._failure: BaseException | None = None
        self._ready = anyio.Event()
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._batches = self._jobs = self._skipped = 0
        self._busy = self._queued = 0.0
        self._idle = time.perf_counter()
        self.instruments = Instruments()
        self._on_loop: Callable[[Callable[[], object]], object] = lambda call: call()
        self._thread = threading.Thread(target=self._run, name=f"grimboost {name}", daemon=True)

    async def start(self) -> None:
        """Start the thread and wait until the service is made; raises what making it raised.

        Answers are delivered on the event loop that runs now. Cancelled: the thread ends by itself.
        """
        self.attach()
        self._thread.start()
        try:
            await self._ready.wait()
        except BaseException:
            self.stop()
            raise
        if self._failure is not None:
            raise self._failure

    def attach(self) -> None:
        """Deliver on the event loop that runs now: a worker may be started in one and used in the next."""
        self._on_loop = call_soon()
        self._ended = anyio.Event()

    def submit(self, job: Job) -> None:
        """Queue a job. Never blocks."""
        self._queue.put(job)

    def stop(self) -> None:
        """Ask the thread to end after the work at hand; returns at once."""
        self._queue.put(None)

    async def ended(self) -> None:
        """Wait until the thread has given everything back; a step that hangs is waited for."""
        await self._ended.wait()

    @property
    def started(self) -> bool:
        """Whether the thread was ever started."""
        return self._thread.ident is not None

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def statistics(self) -> WorkerStatistics:
        """A snapshot."""
        queue = self._queue.qsize()
        return WorkerStatistics(self._batches, self._jobs, self._skipped, self._busy, self._queued, queue)

    # ------------------------------------------------------------ in the thread

    def _run(self) -> None:
        try:
            service = self._make()
        except BaseException as error:  # raised again in `start`
            self._failure = error
            self._post(self._ready.set)
            return
        self._post(self._ready.set)
        while self._turn(service):
            pass
        service.close()
        self._post(self._ended.set)

    def _turn(self, service: Service) -> bool:
        """Take and run what waits; False at the end. Between turns the thread holds on to no job."""
        jobs, stopping = self._waiting()
        ready = [job for job in jobs if job.always or not job.lease.ended]
        self._skipped += len(jobs) - len(ready)
        if ready:
            self._work(service, ready)
        return not stopping

    def _waiting(self) -> tuple[list[Job], bool]:
        """Everything that is queued, at least one; and whether the end was among it."""
        taken = [self._queue.get()]
        deadline = time.perf_counter() + min(LONGEST_GATHERING, self._last_seconds)
        missing = set(self._last) if self._gathers and len(self._last) > 1 else set[Lease]()
        while True:
            missing = {lease for lease in missing if not lease.ended}
            missing.difference_update(job.lease for job in taken if job is not None)
            patience = deadline - time.perf_counter()
            if self._queue.empty() and (not missing or patience <= 0 or None in taken):
                break
            with suppress(queue.Empty):
                taken.append(self._queue.get(timeout=max(patience, 0.0)))
        return [job for job in taken if job is not None], None in taken

    def _work(self, service: Service, jobs: list[Job]) -> None:
        if hooks := self.instruments.batch_begins:
            self.instruments.tell(hooks, self.name, tuple(job.request for job in jobs))
        begin = time.perf_counter()
        answers = service.handle(jobs)
        end = time.perf_counter()
        self._last, self._last_seconds = WeakSet(job.lease for job in jobs), end - begin
        self._busy += self._last_seconds
        self._batches += 1
        self._jobs += len(jobs)
        self._queued += sum(begin - job.submitted for job in jobs)
        self._post(lambda: _deliver(answers))
        if hooks := self.instruments.batch:
            self.instruments.tell(hooks, Batch(self.name, _work(jobs, answers), self._idle, begin, end))
        self._idle = end

    def _post(self, call: Callable[[], object]) -> None:
        try:
            self._on_loop(call)
        except RuntimeError:  # the event loop is gone, and so is everyone who waited
            log.debug("answers dropped, the event loop has ended", worker=self.name)


def _work(jobs: list[Job], answers: list[tuple[Lease, Message]]) -> tuple[Work, ...]:
    """Jobs with their answers: those of one lease come in the order of its jobs, and one without comes last."""
    left = list(answers)
    work = []
    for job in jobs:
        place = next((place for place, (lease, _) in enumerate(left) if lease is job.lease), None)
        answer = None if place is None else left.pop(place)[1]
        work.append(Work(job.lease.run, job.request, answer, job.submitted))
    return tuple(work)


def _deliver(answers: list[tuple[Lease, Message]]) -> None:
    for lease, answer in answers:
        lease.deliver(answer)


class Port:
    """A stage's way to a worker: an outlet that turns messages into jobs of one lease."""

    def __init__(self, worker: Worker, lease: Lease, always: tuple[type, ...] = ()) -> None:
        self._worker, self._lease, self._always = worker, lease, always

    def post_nowait(self, item: Message) -> None:
        """Queue the request."""
        always = isinstance(item, self._always)
        self._worker.submit(Job(self._lease, item, always))

    async def send(self, item: Message) -> None:
        """The same; a worker's queue is bounded by one request in flight per stage."""
        self.post_nowait(item)
