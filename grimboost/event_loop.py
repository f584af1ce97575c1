"""The one thing that anyio leaves to each event loop: a call from a thread that does not wait for its result."""

import asyncio
from collections.abc import Callable

import sniffio


def call_soon() -> Callable[[Callable[[], object]], object]:
    """A thread-safe function that runs a callback soon on the event loop that is running now.

    The function raises RuntimeError once that loop has ended.
    """
    if sniffio.current_async_library() == "trio":
        import trio

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe
