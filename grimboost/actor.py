"""The one shell around a pure stage: receive, record, decide, send. All five actors run this loop.

It is the only place that awaits on behalf of a stage, notes its inputs for the log and its times for instruments,
and knows how an actor ends: done (the stage says so), failed (it raised: the task group of its generation ends) or
cancelled.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from anyio.lowlevel import checkpoint
from msgspec import Struct
from msgspec.structs import astuple

from grimboost.instruments import Instruments, Turn
from grimboost.mailbox import Mailbox, MailboxClosed
from grimboost.messages import Elapsed, Message
from grimboost.stages.stage import Stage
from grimboost.wiring import routes

BATCH = 16
"""Messages handled in one go before other tasks get a turn."""


class Outlet(Protocol):
    """Where an actor's messages go: a mailbox or a worker's port."""

    def post_nowait(self, item: Any) -> None: ...

    async def send(self, item: Any) -> None: ...


class ActorStatistics(Struct, frozen=True):
    """Messages in and out since the start, and seconds: deciding and sending, waiting for room, waiting for a
    message (or for a turn on the event loop), and from its beginning to its end or to now.

    A wait counts when it is over; `full_seconds` is how long the one for room has lasted that is not. Those
    that were received had lain in the mailbox for `queued_seconds` together, and `queue` lie there now.
    """

    received: int
    sent: int
    busy_seconds: float = 0.0
    blocked_seconds: float = 0.0
    waiting_seconds: float = 0.0
    wall_seconds: float = 0.0
    full_seconds: float = 0.0
    queued_seconds: float = 0.0
    queue: int = 0

    @property
    def mean_queued_seconds(self) -> float:
        """How long a message lay in the mailbox."""
        return self.queued_seconds / self.received if self.received else 0.0

    def plus(self, other: "ActorStatistics") -> "ActorStatistics":
        """Of two actors together."""
        return ActorStatistics(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


class Actor:
    """One stage with its mailbox and the outlets that the wiring gives it."""

    def __init__(
        self,
        name: str,
        stage: Stage[Any],
        mailbox: Mailbox[Any],
        outlets: Mapping[str, Outlet],
        record: Callable[[str, Message, list[Message]], None],
        run: int = 0,
        instruments: Instruments | None = None,
    ) -> None:
        """`run`: number of the generation, for instruments."""
        self.name = name
        self.run_number = run
        self.mailbox = mailbox
        self._stage = stage
        self._record = record
        self._instruments = instruments or Instruments()
        self._received = self._sent = 0
        self._busy = self._blocked = self._waiting = 0.0
        self._began: float | None = None
        self._ended: float | None = None
        self._idle: float | None = None  # since when it waits for a message
        self._full: float | None = None  # since when it waits for room
        self._routes = {
            message: tuple((outlets[edge.receiver], edge.blocks) for edge in edges)
            for message, edges in routes(name).items()
        }

    def statistics(self) -> ActorStatistics:
        """A snapshot, also from another thread."""
        now = self._ended or time.perf_counter()
        full, began = self._full, self._began
        return ActorStatistics(
            self._received,
            self._sent,
            self._busy,
            self._blocked,
            self._waiting,
            now - began if began is not None else 0.0,
            now - full if full is not None else 0.0,
            self.mailbox.statistics().waited_seconds,
            len(self.mailbox),
        )

    async def run(self) -> None:
        """Until the stage is done. The mailbox is closed on every way out, so nobody waits for this actor."""
        try:
            handled = 0
            self._began = self._idle = time.perf_counter()
            while not self._stage.done:
                message = self.mailbox.receive_nowait()
                if message is None:
                    message, handled = await self.mailbox.receive(self._stage.patience), 0
                elif handled >= BATCH:
                    await checkpoint()
                    handled = 0
                handled += 1
                await self._handle(Elapsed() if message is None else message)
        finally:
            self._ended = time.perf_counter()
            if self._idle is not None:
                self._waiting += self._ended - self._idle
            self.mailbox.close()

    async def _handle(self, message: Message) -> None:
        """Decide, record and send."""
        received = time.perf_counter()
        idle = received if self._idle is None else self._idle
        self._waiting += received - idle
        self._idle = None
        queued, depth = self.mailbox.queued, len(self.mailbox)
        self._received += 1
        try:
            answers = self._stage.receive(message)
        except Exception:
            self._record(self.name, message, [])  # the message that broke the stage is the one to replay
            raise
        self._record(self.name, message, answers)
        decided = time.perf_counter()
        before = self._blocked
        await self._send(answers)
        blocked = self._blocked - before
        self._idle = sent = time.perf_counter()
        self._busy += sent - received - blocked
        if hooks := self._instruments.turn:
            turn = Turn(
                self.run_number,
                self.name,
                message,
                tuple(answers),
                idle,
                received,
                decided,
                sent,
                blocked,
                queued,
                depth,
            )
            self._instruments.tell(hooks, turn)

    async def _send(self, answers: list[Message]) -> None:
        for answer in answers:
            for outlet, blocks in self._routes[type(answer)]:
                self._sent += 1
                if blocks:
                    self._full = begin = time.perf_counter()
                    try:
                        await outlet.send(answer)
                    except MailboxClosed:  # the receiver has ended; what follows is of no use to it
                        continue
                    finally:
                        self._blocked += time.perf_counter() - begin
                        self._full = None
                else:
                    outlet.post_nowait(answer)
