"""One generation: five actors in a task group that the engine owns, and the handle that a client holds.

The client's frame owns nothing: when it goes away, is cancelled or collected, it only posts `CancelRequested`,
which never blocks. The cascade then ends the generation in order, and the slot is given back by the worker
thread. A client that does not read withholds room from its own revealer and stops nobody else.
"""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio
from msgspec import Struct

from grimboost import messages as m
from grimboost.actor import Actor, ActorStatistics, Outlet
from grimboost.certifier import Account
from grimboost.client_lane import ClientLane, Pace
from grimboost.delivery import Delivery
from grimboost.errors import GrimboostError, TargetError
from grimboost.instruments import Instruments
from grimboost.mailbox import Mailbox, MailboxClosed
from grimboost.recorder import Recorder
from grimboost.replaying import fresh_stages
from grimboost.request import Request
from grimboost.statistics import Statistics, statistics
from grimboost.wiring import (
    CASCADE,
    CLIENT,
    DRAFTER,
    DRAFTER_WORKER,
    ENGINE,
    GATE,
    STAGES,
    TARGET_WORKER,
    VERIFIER,
    routes,
)
from grimboost.worker import Job, Lease, Port, Worker

RELEASE_SECONDS = 10.0
"""How long leaving a generation waits for its slot; a pass that hangs longer is left behind."""


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


class Generation:
    """Use it as `async with engine.generate(...) as generation`, and iterate over its events."""

    def __init__(
        self,
        request: Request,
        target: Worker,
        drafter: Worker | None,
        start: Callable[["Generation"], None],
        recorder: Recorder,
        account: Account | None = None,
        instruments: Instruments | None = None,
        pace: Pace | None = None,
    ) -> None:
        """`account`: where what the target says of drafts goes, in streaming mode. `pace`: of all generations."""
        self.request = request
        self.finished = anyio.Event()
        self._start = start
        self.recorder = recorder
        self._instruments = instruments or Instruments()
        self._delivery = Delivery()
        self._exhausted = False
        self._account = account
        self._target = target
        self._failure: BaseException | None = None
        self._client: Mailbox[m.ClientEvent] = Mailbox(request.capacity)
        self.lane = ClientLane(self._client, pace)
        self._mailboxes: dict[str, Mailbox[Any]] = {name: Mailbox(request.capacity) for name in STAGES}
        self._leases = {
            TARGET_WORKER: Lease(request.run, self._mailboxes[VERIFIER].post_nowait),
            DRAFTER_WORKER: Lease(request.run, self._mailboxes[DRAFTER].post_nowait),
        }
        self._actors = self._wire(drafter)
        self._last_stages: dict[str, ActorStatistics] | None = None

    def _wire(self, drafter: Worker | None) -> list[Actor]:
        outlets: dict[str, Outlet] = {
            **self._mailboxes,
            CLIENT: self.lane,
            ENGINE: self._account or Mailbox(0),
            TARGET_WORKER: Port(self._target, self._leases[TARGET_WORKER], always=(m.ReleaseRequested,)),
            DRAFTER_WORKER: Port(drafter, self._leases[DRAFTER_WORKER]) if drafter else Mailbox(0),
        }
        stages = fresh_stages(self.request.configs, self.request.rule, self.request.gate_rule)
        record, run, instruments = self.recorder.record, self.request.run, self._instruments
        return [
            Actor(name, stages[name], self._mailboxes[name], outlets, record, run, instruments) for name in STAGES
        ]

    # ------------------------------------------------------------ run by the engine

    async def run(self) -> None:
        """All actors, until the generation is over. Errors are kept for the client, never raised here."""
        self.lane.begun = time.perf_counter()
        self.recorder.begin(self.lane.begun)
        self._instruments.tell(self._instruments.generation_started, self)
        for edge in routes(ENGINE)[m.Started]:
            self._mailboxes[edge.receiver].post_nowait(self.request.prompt)
        if self._account is not None:
            self._account.begin(self._mailboxes[GATE].post_nowait)
        try:
            await self.recorder.open()
            async with anyio.create_task_group() as tasks:
                for actor in self._actors:
                    tasks.start_soon(actor.run, name=f"{actor.name} {self.request.run}")
        except ExceptionGroup as group:
            self._failure = group.exceptions[0]
        finally:
            self._end()

    def _end_account(self) -> None:
        """An audit that was cut short counts as far as it came, never as agreement with the rest."""
        if self._account is not None:
            lane = self.lane
            self._account.end(lane.done is not None and lane.final >= len(lane.data))

    async def keep_evidence(self) -> None:
        """Behind `run`: what was learned about the drafter goes to the store."""
        if self._account is not None:
            await self._account.keep()

    async def keep_flight(self) -> None:
        """Behind `run`: if it failed, its last messages go to disk."""
        if self.failed:
            await self.recorder.keep_flight()

    def _end(self) -> None:
        for lease in self._leases.values():
            lease.ended = True
        # whatever happened, the worker closes the slot, after the pass that may still be running
        self._target.submit(Job(self._leases[TARGET_WORKER], m.ReleaseRequested(0), always=True))
        self._client.close()
        self._end_account()
        self.recorder.end()
        self._last_stages = self.stages()
        self._instruments.tell(self._instruments.generation_ended, self)
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
        self.recorder.leave()

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
        asked = time.perf_counter()
        try:
            event = await self._client.receive()
        except MailboxClosed:
            event = None
        self._note_taken(event, asked)
        if event is None:
            if self._failure is not None:
                raise self._error() from self._failure
            raise StopAsyncIteration
        return event

    def _note_taken(self, event: m.ClientEvent | None, asked: float) -> None:
        if not self._exhausted:
            self._exhausted = event is None
            self.recorder.record(CLIENT, self._delivery.take(event), ())
            if hooks := self._instruments.taken:
                self._instruments.tell(hooks, self.request.run, event, asked, time.perf_counter())

    async def write_flight(self, path: Path | str, redact: bool | None = None) -> None:
        """Write its last messages as a log, now or after its end; whole for a short generation, as replay needs.

        `redact`: without texts; if not said, as the engine's logs are. Raises `MisuseError`.
        """
        await self.recorder.write_flight(Path(path), redact)

    @property
    def failed(self) -> bool:
        """Whether a stage raised, or the target failed."""
        done = self.lane.done
        return self._failure is not None or (done is not None and done.reason is m.FinishReason.ERROR)

    def _error(self) -> GrimboostError:
        if isinstance(self._failure, GrimboostError):
            return type(self._failure)(*self._failure.args)
        return GrimboostError(f"the generation failed: {self._failure!r}")

    def raise_for_error(self) -> None:
        """Raise `TargetError` if the target failed."""
        if self.lane.done is not None and self.lane.done.reason is m.FinishReason.ERROR:
            raise TargetError(self.lane.done.error or "the target failed")

    @property
    def result(self) -> Result:
        """What it came to so far; before the end the reason is `cancelled`."""
        lane, done = self.lane, self.lane.done
        error = done.error if done else (repr(self._failure) if self._failure else None)
        figures = statistics(lane, self.counts, self._account, self.request.parameters)
        return Result(bytes(lane.data), done.ids if done else (), self.reason, figures, error)

    @property
    def reason(self) -> m.FinishReason:
        """Why it ended; before the end `cancelled`."""
        if self._failure is not None:
            return m.FinishReason.ERROR
        return self.lane.done.reason if self.lane.done else m.FinishReason.CANCELLED

    @property
    def error_type(self) -> str | None:
        """Class of the error that ended it, if one did."""
        if self._failure is not None:
            return type(self._failure).__name__
        return TargetError.__name__ if self.reason is m.FinishReason.ERROR else None

    def stages(self) -> dict[str, ActorStatistics]:
        """What each stage did so far. Also from another thread, and when it is over."""
        actors = tuple(self._actors)  # before looking whether it is over: then they are cleared
        return self._last_stages or {actor.name: actor.statistics() for actor in actors}

    @property
    def counts(self) -> m.Counts:
        """What the stages counted; before the end only the prompt."""
        done = self.lane.done
        return done.counts if done else m.Counts(prompt_tokens=len(self.request.prompt.prompt_ids))

    @property
    def faithful(self) -> bytes:
        """What of the output the target chose: all of it that was checked, up to the first slip."""
        lane = self.lane
        return bytes(lane.data[: lane.final if lane.first_slip is None else min(lane.final, lane.first_slip)])
