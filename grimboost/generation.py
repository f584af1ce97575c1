"""One generation: five actors in a task group that the engine owns, and the handle that a client holds.

The client's frame owns nothing: when it goes away, is cancelled or collected, it only posts `CancelRequested`,
which never blocks. The cascade then ends the generation in order, and the slot is given back by the worker
thread. A client that does not read withholds room from its own revealer and stops nobody else.
"""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import anyio
from msgspec import Struct

from grimboost import messages as m
from grimboost.actor import Actor, Outlet
from grimboost.errors import GrimboostError, TargetError
from grimboost.log import LogWriter
from grimboost.mailbox import Mailbox, MailboxClosed
from grimboost.parameters import Parameters
from grimboost.replay import fresh_stages
from grimboost.stages.configuration import StageConfigs
from grimboost.stages.sampling_rule import SamplingRule
from grimboost.wiring import (
    CASCADE,
    CLIENT,
    DRAFTER,
    DRAFTER_WORKER,
    ENGINE,
    STAGES,
    TARGET_WORKER,
    VERIFIER,
    routes,
)
from grimboost.worker import Job, Lease, Port, Worker

RELEASE_SECONDS = 10.0
"""How long leaving a generation waits for its slot; a pass that hangs longer is left behind."""


class Request(Struct, frozen=True):
    """Everything that a generation needs, resolved and checked."""

    run: int
    parameters: Parameters
    prompt: m.Started
    configs: StageConfigs
    rule: SamplingRule
    capacity: int


class Statistics(Struct, frozen=True):
    """Counts and seconds of one generation. Names are those of the command line's `--json`.

    `mean_accepted_tokens` is drafted tokens accepted per block. `tokens_per_second` is new tokens over decode
    seconds; decoding begins when the prompt is in the cache.
    """

    prompt_tokens: int
    new_tokens: int
    new_bytes: int
    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float
    time_to_first_byte_seconds: float | None
    target_passes: int
    target_rows: int
    drafted_tokens: int
    drafted_bytes: int
    accepted_tokens: int
    accepted_bytes: int
    mean_accepted_tokens: float
    mismatches: int
    realignments: int
    ties_rechecked: int


class Result(Struct, frozen=True):
    """What a generation came to. `data` is every byte streamed; `text` shows broken characters as U+FFFD."""

    data: bytes
    token_ids: tuple[int, ...]
    finish_reason: m.FinishReason
    statistics: Statistics
    error: str | None = None

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


class _ClientLane:
    """The revealer's way to the client: notes what passes and when, then waits for room."""

    def __init__(self, mailbox: Mailbox[m.ClientEvent]) -> None:
        self._mailbox = mailbox
        self.data = bytearray()
        self.begun = time.perf_counter()
        self.prefilled: float | None = None
        self.first_byte: float | None = None
        self.ended: float | None = None
        self.done: m.Done | None = None

    def post_nowait(self, item: m.ClientEvent) -> None:
        self._mailbox.post_nowait(item)

    async def send(self, item: m.ClientEvent) -> None:
        self._note(item, time.perf_counter())
        await self._mailbox.send(item)

    def _note(self, item: m.ClientEvent, now: float) -> None:
        match item:
            case m.Chunk(data=data):
                self.data += data
                self.first_byte = self.first_byte or now
            case m.Progress(done=done, total=total) if done >= total:
                self.prefilled = now
            case m.Done():
                self.done, self.ended = item, now


class Generation:
    """Use it as `async with engine.generate(...) as generation`, and iterate over its events."""

    def __init__(
        self,
        request: Request,
        target: Worker,
        drafter: Worker | None,
        start: Callable[["Generation"], None],
        writer: LogWriter | None,
    ) -> None:
        self.request = request
        self.finished = anyio.Event()
        self._start = start
        self._writer = writer
        self._target = target
        self._failure: BaseException | None = None
        self._client: Mailbox[m.ClientEvent] = Mailbox(request.capacity)
        self._lane = _ClientLane(self._client)
        self._mailboxes: dict[str, Mailbox[Any]] = {name: Mailbox(request.capacity) for name in STAGES}
        self._leases = {
            TARGET_WORKER: Lease(request.run, self._mailboxes[VERIFIER].post_nowait),
            DRAFTER_WORKER: Lease(request.run, self._mailboxes[DRAFTER].post_nowait),
        }
        self._actors = self._wire(drafter)

    def _wire(self, drafter: Worker | None) -> list[Actor]:
        outlets: dict[str, Outlet] = {
            **self._mailboxes,
            CLIENT: self._lane,
            TARGET_WORKER: Port(self._target, self._leases[TARGET_WORKER], always=(m.ReleaseRequested,)),
            DRAFTER_WORKER: Port(drafter, self._leases[DRAFTER_WORKER]) if drafter else Mailbox(0),
        }
        stages = fresh_stages(self.request.configs, self.request.rule)
        return [Actor(name, stages[name], self._mailboxes[name], outlets, self._record) for name in STAGES]

    def _record(self, stage: str, message: m.Message, answers: list[m.Message]) -> None:
        if self._writer is not None:
            seconds = time.perf_counter() - self._lane.begun
            self._writer.write(seconds, stage, message, answers)  # type: ignore[arg-type]

    # ------------------------------------------------------------ run by the engine

    async def run(self) -> None:
        """All actors, until the generation is over. Errors are kept for the client, never raised here."""
        self._lane.begun = time.perf_counter()
        for edge in routes(ENGINE)[m.Started]:
            self._mailboxes[edge.receiver].post_nowait(self.request.prompt)
        try:
            async with anyio.create_task_group() as tasks:
                for actor in self._actors:
                    tasks.start_soon(actor.run, name=f"{actor.name} {self.request.run}")
        except ExceptionGroup as group:
            self._failure = group.exceptions[0]
        finally:
            self._end()

    def _end(self) -> None:
        for lease in self._leases.values():
            lease.ended = True
        # whatever happened, the worker closes the slot, after the pass that may still be running
        self._target.submit(Job(self._leases[TARGET_WORKER], m.ReleaseRequested(0), always=True))
        self._client.close()
        if self._writer is not None:
            self._writer.close()
        self._actors.clear()  # whoever keeps the handle keeps neither the stages
        self._leases.clear()  # nor the drafter's session
        self.finished.set()

    # ------------------------------------------------------------ held by the client

    def cancel(self) -> None:
        """End the generation where it stands, from any task. Never blocks.

        Whoever iterates still gets the chunks that were committed, and `Done` with the reason `cancelled`. The
        slot does not wait for that.
        """
        self._client.lift()
        self._mailboxes[CASCADE].post_nowait(m.CancelRequested())

    def leave(self) -> None:
        """Cancel, and say that nobody reads events any more. Never blocks; leaving the context does it."""
        self._client.close()
        self.cancel()

    async def __aenter__(self) -> "Generation":
        self._start(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        with anyio.move_on_after(RELEASE_SECONDS, shield=True):
            await self.finished.wait()

    def __aiter__(self) -> "Generation":
        return self

    async def __anext__(self) -> m.ClientEvent:
        try:
            event = await self._client.receive()
        except MailboxClosed:
            event = None
        if event is None:
            if self._failure is not None:
                raise self._error() from self._failure
            raise StopAsyncIteration
        return event

    def _error(self) -> GrimboostError:
        if isinstance(self._failure, GrimboostError):
            return type(self._failure)(*self._failure.args)
        return GrimboostError(f"the generation failed: {self._failure!r}")

    def raise_for_error(self) -> None:
        """Raise `TargetError` if the target failed."""
        if self._lane.done is not None and self._lane.done.reason is m.FinishReason.ERROR:
            raise TargetError(self._lane.done.error or "the target failed")

    @property
    def result(self) -> Result:
        """What it came to so far; before the end the reason is `cancelled`."""
        lane, done = self._lane, self._lane.done
        counts = done.counts if done else m.Counts(prompt_tokens=len(self.request.prompt.prompt_ids))
        reason = done.reason if done else m.FinishReason.CANCELLED
        if self._failure is not None:
            reason = m.FinishReason.ERROR
        error = done.error if done else (repr(self._failure) if self._failure else None)
        return Result(bytes(lane.data), done.ids if done else (), reason, self._statistics(counts), error)

    def _statistics(self, counts: m.Counts) -> Statistics:
        lane = self._lane
        ended = lane.ended or time.perf_counter()
        prefilled = lane.prefilled or ended
        decode = ended - prefilled
        return Statistics(
            prompt_tokens=counts.prompt_tokens,
            new_tokens=counts.new_tokens,
            new_bytes=len(lane.data),
            prefill_seconds=prefilled - lane.begun,
            decode_seconds=decode,
            tokens_per_second=counts.new_tokens / decode if decode > 0 else 0.0,
            time_to_first_byte_seconds=lane.first_byte - lane.begun if lane.first_byte else None,
            target_passes=counts.target_passes,
            target_rows=counts.target_rows,
            drafted_tokens=counts.drafted_tokens,
            drafted_bytes=counts.drafted_bytes,
            accepted_tokens=counts.accepted_tokens,
            accepted_bytes=counts.accepted_bytes,
            mean_accepted_tokens=counts.accepted_tokens / counts.blocks if counts.blocks else 0.0,
            mismatches=counts.mismatches,
            realignments=counts.realignments,
            ties_rechecked=counts.ties_rechecked,
        )
