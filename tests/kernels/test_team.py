"""The team of threads: everything is done once, nobody runs ahead, nobody hangs, all go home."""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from grimboost.kernels import team
from grimboost.kernels.compiled import kernel
from grimboost.kernels.team import add_to, meet, sleep_until_woken

BOUND = 60.0
"""Seconds after which a test gives up: on a busy machine a hang looks like slowness, so this is generous."""

SECTIONS = 40
CHUNKS = 13
FIRST, LATE = 0, 1

pytestmark = pytest.mark.skipif(not team.can_have_members(), reason="a team is one thread here")


@kernel()
def one_pass(memory: Any, threads: int, meeting: int, counters: Any, done: Any, faults: Any) -> None:
    """Sections of chunks; each section checks that the one before was finished when it began."""
    for section in range(SECTIONS):
        place = counters.ctypes.data + 8 * 8 * section
        chunk = add_to(place, 1)
        while chunk < CHUNKS:
            done[section, chunk] += 1
            if section > 0:
                for before in range(CHUNKS):
                    if done[section - 1, before] != done[section, chunk]:
                        faults[0] += 1
            chunk = add_to(place, 1)
        meet(memory, threads, meeting + section)


@kernel()
def member(rank: int, threads: int, memory: Any, job: Any, counters: Any, done: Any, faults: Any) -> None:
    while sleep_until_woken(memory, rank):
        one_pass(memory, threads, job[0], counters, done, faults)


class Team:
    """A team that counts."""

    def __init__(self, threads: int) -> None:
        self.threads, self.meeting = threads, 1
        self.memory = team.team_memory(threads)
        self.job, self.faults = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self.counters = np.zeros(8 * SECTIONS, np.int64)
        self.done = np.zeros((SECTIONS, CHUNKS), np.int64)
        team.prepare_team(self.memory, threads)
        arrays = (self.memory, self.job, self.counters, self.done, self.faults)
        self.members = [
            threading.Thread(target=member, args=(rank, threads, *arrays), daemon=True)
            for rank in range(1, threads)
        ]
        for one in self.members:
            one.start()

    def run(self) -> None:
        self.job[0] = self.meeting
        self.meeting += SECTIONS
        self.counters.fill(0)
        team.wake(self.memory, self.threads)
        one_pass(self.memory, self.threads, self.job[0], self.counters, self.done, self.faults)

    def end(self) -> None:
        self.memory[team.ENDING] = 1
        team.wake(self.memory, self.threads)


def within_bound(work: Callable[[], object]) -> None:
    """Run in a thread that may hang without hanging the tests."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(BOUND)
    assert not thread.is_alive(), f"not done after {BOUND} s"


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Processes that use all of the time that they are given."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.wait()


def passes(workers: Team, count: int) -> None:
    def work() -> None:
        for _ in range(count):
            workers.run()

    within_bound(work)
    assert (workers.done == count).all()
    assert workers.faults[0] == 0


def ended(workers: Team) -> bool:
    workers.end()
    for one in workers.members:
        one.join(BOUND)
    return not any(one.is_alive() for one in workers.members)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_every_chunk_is_done_once_and_no_section_begins_early(threads: int) -> None:
    workers = Team(threads)
    passes(workers, 500 if threads <= 2 else 100)
    assert ended(workers)


def test_a_busy_machine_delays_the_team_and_does_not_stop_it() -> None:
    workers = Team(2)
    with busy_neighbours(3):
        passes(workers, 20)
    assert ended(workers)


def test_members_sleep_between_passes() -> None:
    """Processor time of the process hardly grows while nobody asks for anything."""
    workers = Team(3)
    passes(workers, 5)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.15
    passes_after = threading.Thread(target=workers.run, daemon=True)
    passes_after.start()
    passes_after.join(BOUND)
    assert (workers.done == 6).all()
    assert ended(workers)


def test_members_wait_without_the_interpreters_lock() -> None:
    """Python code runs while all members sleep and while one of them is behind."""
    workers = Team(4)
    ticks = 0
    stop = threading.Event()

    def work() -> None:
        for _ in range(30):
            workers.run()
        stop.set()

    runner = threading.Thread(target=work, daemon=True)
    runner.start()
    deadline = time.monotonic() + BOUND
    while not stop.is_set() and time.monotonic() < deadline:
        ticks += 1
    assert stop.is_set()
    assert ticks > 0
    assert ended(workers)


def test_a_team_that_never_ran_ends() -> None:
    assert ended(Team(3))


def test_a_team_of_one_meets_nobody() -> None:
    memory = team.team_memory(1)
    meet(memory, 1, 10**9)
    assert not memory.any()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_counters_lie_on_cache_lines_of_their_own(threads: int) -> None:
    memory = team.team_memory(threads)
    assert memory.ctypes.data % 64 == 0
    assert memory.flags.c_contiguous
    assert len(memory) >= team.SEMAPHORES + 2 * team.LINE * threads
    gc.collect()  # the memory behind the slice stays
    memory[:] = 1
