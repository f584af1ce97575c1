"""A team of threads that run one kernel together: claim chunks, meet at barriers, sleep between passes.

The members are Python threads that stay inside compiled code, without the GIL, as long as the team lives: they
sleep on a semaphore, do their share of a pass and sleep again, so a busy event loop never delays one. Within a
pass they wait for each other by spinning, because a pass has hundreds of short sections; a wait that takes
longer than that yields the processor, so that a busy neighbour costs its share and no more.

It knows nothing of what is computed.
"""

import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from grimboost.kernels.compiled import kernel

LINE = 8
"""int64 values per cache line: counters of different meaning lie on lines of their own."""

ARRIVED = 0
"""Place of the barrier's counter in the team's memory: arrivals since the team began, never reset."""

ENDING = LINE
"""Place of the flag that sends the members home."""

SEMAPHORES = 2 * LINE
"""Place of the semaphores: two lines each, the start of member 1, 2, ..."""

SPINS = 4000
"""Turns of waiting before the processor is offered to others; about 50 microseconds."""

_i64 = ir.IntType(64)


def can_have_members() -> bool:
    """Whether unnamed POSIX semaphores are there (not on macOS or Windows: the team is then one thread)."""
    return sys.platform == "linux"


def team_memory(threads: int) -> Any:
    """The team's shared int64 memory, aligned to a cache line."""
    size = SEMAPHORES + 2 * LINE * threads
    memory = np.zeros(size + LINE, np.int64)
    start = -(memory.ctypes.data // 8) % LINE
    return memory[start : start + size]


@intrinsic
def add_to(_typing, _address, _value):
    """Atomically add to the int64 at an address; returns what was there."""

    def body(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _i64.as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), body


@intrinsic
def current(_typing, _address):
    """The int64 at an address, and with it everything that was written before it."""

    def body(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], _i64.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), body


@intrinsic
def relax(_typing):
    """Tell the processor that this is a waiting loop."""

    def body(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        architecture = builder.module.triple.partition("-")[0]
        if architecture == "x86_64":
            signature = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, signature, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), body


def _system(name: str, *arguments: Any) -> Any:
    """A function of the C library that returns an int."""
    return types.ExternalFunction(name, types.int32(*arguments))


_offer_processor = _system("sched_yield")
_semaphore_start = _system("sem_init", types.int64, types.int32, types.uint32)
_semaphore_wait = _system("sem_wait", types.int64)
_semaphore_post = _system("sem_post", types.int64)


@kernel()
def meet(team: Any, threads: int, meeting: int) -> None:
    """Wait until all have come to this meeting; meetings are numbered from 1 over the team's life."""
    if threads == 1:
        return
    address = team.ctypes.data + 8 * ARRIVED
    add_to(address, 1)
    spins = 0
    while current(address) < meeting * threads:
        spins += 1
        if spins > SPINS:
            _offer_processor()
        else:
            relax()


@kernel()
def prepare_team(team: Any, threads: int) -> None:
    """Make the semaphores, before any member starts."""
    for member in range(1, threads):
        _semaphore_start(team.ctypes.data + 8 * (SEMAPHORES + 2 * LINE * member), 0, 0)


@kernel()
def wake(team: Any, threads: int) -> None:
    """Let the members run one pass."""
    for member in range(1, threads):
        _semaphore_post(team.ctypes.data + 8 * (SEMAPHORES + 2 * LINE * member))


@kernel()
def sleep_until_woken(team: Any, member: int) -> bool:
    """Whether there is a pass to run; False when the team ends."""
    address = team.ctypes.data + 8 * (SEMAPHORES + 2 * LINE * member)
    while _semaphore_wait(address) != 0:  # a signal came between
        pass
    return current(team.ctypes.data + 8 * ENDING) == 0
