"""A mailbox: one bounded data lane whose senders wait for room, and one control lane that never blocks.

Control is delivered before data. Each message is delivered exactly once and in its lane's order, also when
a send or a receive is cancelled at any await: a message enters and leaves the queue synchronously, and all
waiting happens before (case D3). With capacity 0 a sender waits until a receiver waits.

Non-blocking operations are sync and end in `_nowait`, possibly blocking ones are async. It times how long each
item lay there, and knows nothing of what it carries.
"""

import math
import time
from collections import deque
from typing import Generic, TypeVar

import anyio
from msgspec import Struct

from grimboost.event_loop import Signal, new_signal

Item = TypeVar("Item")


class MailboxClosed(Exception):
    """Nobody will receive what is sent, or nothing more will come."""


class MailboxStatistics(Struct, frozen=True):
    """Present queue lengths and totals since the start; `waited_seconds` is over all items that were delivered."""

    data_waiting: int
    control_waiting: int
    senders_waiting: int
    delivered: int
    dropped: int
    waited_seconds: float = 0.0


class Mailbox(Generic[Item]):
    """Any number of senders, one or more receivers, all on one event loop."""

    def __init__(self, capacity: int = 8) -> None:
        if capacity < 0:
            raise ValueError(f"capacity is {capacity}; it has to be 0 or more")
        self._capacity: float = capacity
        self._data: deque[tuple[Item, float]] = deque()  # with the moment at which it was put there
        self._control: deque[tuple[Item, float]] = deque()
        self._receivers: deque[Signal] = deque()
        self._senders: deque[Signal] = deque()
        self._closed = False
        self._delivered = 0
        self._dropped = 0
        self._waited = 0.0
        self.queued = 0.0  # seconds that the latest item lay here

    def __len__(self) -> int:
        return len(self._control) + len(self._data)

    def statistics(self) -> MailboxStatistics:
        """A snapshot."""
        return MailboxStatistics(
            len(self._data),
            len(self._control),
            len(self._senders),
            self._delivered,
            self._dropped,
            self._waited,
        )

    # ------------------------------------------------------------ sending

    def post_nowait(self, item: Item) -> None:
        """Put on the control lane. Never blocks; after close the item is dropped and counted."""
        if self._closed:
            self._dropped += 1
            return
        self._control.append((item, time.perf_counter()))
        self._wake(self._receivers)

    async def send(self, item: Item) -> None:
        """Put on the data lane, waiting for room. Cancelled: the item was not sent.

        With room it does not give way to other tasks: whoever sends without end has to do that by itself.
        Raises `MailboxClosed` if the mailbox is closed before there is room.
        """
        waited = False
        while not self._closed and not (self._room() and (waited or not self._senders)):
            await self._wait(self._senders, again=waited)
            waited = True
        if self._closed:
            self._dropped += 1
            raise MailboxClosed
        self._data.append((item, time.perf_counter()))
        self._wake(self._receivers)
        if self._room():
            self._wake(self._senders)

    def _room(self) -> bool:
        return len(self._data) < max(self._capacity, len(self._receivers) if self._capacity == 0 else 0)

    # ------------------------------------------------------------ receiving

    def receive_nowait(self) -> Item | None:
        """The next item, control first; None if there is none."""
        if self._control:
            item, since = self._control.popleft()
        elif self._data:
            item, since = self._data.popleft()
            self._wake(self._senders)
        else:
            self.queued = 0.0
            return None
        self._delivered += 1
        self.queued = time.perf_counter() - since
        self._waited += self.queued
        return item

    async def receive(self, timeout: float | None = None) -> Item | None:
        """The next item; None if none came within `timeout` seconds.

        Raises `MailboxClosed` if the mailbox is closed and empty. Cancelled: no item is lost.
        """
        if timeout is None or self._control or self._data:
            return await self._receive()
        with anyio.move_on_after(timeout):
            return await self._receive()
        return self.receive_nowait()  # what came at the same moment as the end of the patience

    async def _receive(self) -> Item | None:
        waited = False
        while not (self._control or self._data):
            if self._closed:
                raise MailboxClosed
            if self._capacity == 0:
                self._wake(self._senders)
            await self._wait(self._receivers, again=waited)
            waited = True
        return self.receive_nowait()

    # ------------------------------------------------------------ ending

    def lift(self) -> None:
        """Let senders wait no more: for the rest of something that ends, which its receiver may never read."""
        self._capacity = math.inf
        while self._senders:
            self._wake(self._senders)

    def close(self) -> None:
        """Refuse what comes from now on and wake everyone. What is queued can still be received."""
        self._closed = True
        for waiters in (self._receivers, self._senders):
            while waiters:
                waiters.popleft().set()

    @staticmethod
    def _wake(waiters: deque[Signal]) -> None:
        if waiters:
            waiters.popleft().set()

    @classmethod
    async def _wait(cls, waiters: deque[Signal], again: bool) -> None:
        """Until woken. `again`: woken before and too late, so the place at the head of the line is kept."""
        event = new_signal()
        if again:
            waiters.appendleft(event)
        else:
            waiters.append(event)
        try:
            await event.wait()
        except BaseException:  # cancelled: leave the line, or pass on a turn that came at the same moment
            if event.is_set():
                cls._wake(waiters)
            else:
                waiters.remove(event)
            raise
