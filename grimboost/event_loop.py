"""What anyio leaves to each event loop: calls from threads that wait for no result, and light signals.

An anyio event costs ten times an asyncio future, and each message that finds its receiver waiting needs one.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import anyio
import sniffio


def call_soon() -> Callable[[Callable[[], object]], object]:
    """A thread-safe function that runs a callback soon on the event loop that is running now.

    The function raises RuntimeError once that loop has ended.
    """
    if sniffio.current_async_library() == "trio":
        import trio

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe


class Signal(Protocol):
    """Set once; one task waits for it."""

    def is_set(self) -> bool: ...

    def set(self) -> object: ...

    async def wait(self) -> None: ...


class _FutureSignal:
    """A signal on asyncio."""

    __slots__ = ("_future", "_set")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._future = loop.create_future()
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        if not self._future.done():  # it may have been cancelled with the task that waits
            self._future.set_result(None)

    async def wait(self) -> None:
        await self._future


def new_signal() -> Signal:
    """A signal for the event loop that is running now."""
    try:
        return _FutureSignal(asyncio.get_running_loop())
    except RuntimeError:
        return anyio.Event()
