"""The mailbox: nothing is lost, nothing comes twice, control overtakes data, and close wakes everyone."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest
import trio._core._run
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import both_loops, run

from grimboost.mailbox import Mailbox, MailboxClosed

trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True

COUNT = 10_000
LONG = 20.0
"""Seconds after which a test of so many messages is taken to hang."""

Receive = Callable[[Mailbox[int]], Awaitable[int | None]]


async def by_own_timeout(mailbox: Mailbox[int]) -> int | None:
    return await mailbox.receive(0.001)


async def by_scope(mailbox: Mailbox[int]) -> int | None:
    with anyio.move_on_after(0.001):
        return await mailbox.receive()
    return None


async def by_asyncio_timeout(mailbox: Mailbox[int]) -> int | None:
    try:
        async with asyncio.timeout(0.001):
            return await mailbox.receive()
    except TimeoutError:
        return None


class Stutter:
    """Waits now and then, sometimes just about as long as the other side's patience."""

    def __init__(self, seed: int, every: int) -> None:
        self._random, self._every = random.Random(seed), every

    async def __call__(self) -> None:
        if self._random.randrange(self._every) == 0:
            await anyio.sleep(self._random.choice((0.0, 0.0009, 0.001, 0.0011)))


async def numbered(mailbox: Mailbox[int], every: int = 60) -> None:
    pause = Stutter(1, every)
    for number in range(COUNT):
        await pause()
        await mailbox.send(number)
    mailbox.close()


async def consume(mailbox: Mailbox[int], receive: Receive) -> list[int]:
    got: list[int] = []
    try:
        while True:
            item = await receive(mailbox)
            if item is not None:
                got.append(item)
    except MailboxClosed:
        return got


@pytest.mark.parametrize("capacity", [0, 1])
@pytest.mark.parametrize("receive", [by_own_timeout, by_scope, by_asyncio_timeout])
async def test_D3_a_receive_that_times_out_loses_nothing(capacity: int, receive: Receive) -> None:
    mailbox: Mailbox[int] = Mailbox(capacity)
    async with asyncio.timeout(LONG), anyio.create_task_group() as tasks:
        tasks.start_soon(numbered, mailbox)
        got = await consume(mailbox, receive)
    assert got == list(range(COUNT))


@pytest.mark.parametrize("capacity", [0, 1])
async def test_D3_a_receiver_whose_task_is_cancelled_loses_nothing(capacity: int) -> None:
    mailbox: Mailbox[int] = Mailbox(capacity)
    got: list[int] = []

    async def consumer() -> None:
        while True:
            got.append(await mailbox.receive())  # type: ignore[arg-type]

    producer = asyncio.create_task(numbered(mailbox))
    pause = Stutter(2, 3)
    hung = time.monotonic() + LONG
    while not producer.done() or mailbox.statistics().data_waiting:
        assert time.monotonic() < hung
        task = asyncio.create_task(consumer())
        for _ in range(40):
            await asyncio.sleep(0)
        await pause()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert got == list(range(COUNT))


@pytest.mark.parametrize("capacity", [0, 1])
@pytest.mark.parametrize("native", [False, True])
async def test_D3_a_cancelled_send_that_is_retried_delivers_once(capacity: int, native: bool) -> None:
    mailbox: Mailbox[int] = Mailbox(capacity)

    async def attempt(number: int) -> bool:
        if native:
            try:
                async with asyncio.timeout(0.001):
                    await mailbox.send(number)
                    return True
            except TimeoutError:
                return False
        with anyio.move_on_after(0.001):
            await mailbox.send(number)
            return True
        return False

    async def producer() -> None:
        for number in range(COUNT):
            while not await attempt(number):
                pass
        mailbox.close()

    async def slow(mailbox: Mailbox[int]) -> int | None:
        await pause()
        return await mailbox.receive()

    pause = Stutter(3, 60)
    async with asyncio.timeout(LONG), anyio.create_task_group() as tasks:
        tasks.start_soon(producer)
        got = await consume(mailbox, slow)
    assert got == list(range(COUNT))


@settings(max_examples=60, deadline=None)
@given(st.random_module(), st.integers(0, 2), st.integers(1, 3), st.integers(1, 3), st.integers(0, 40))
def test_D3_any_order_of_tasks_on_trio(
    _random: object, capacity: int, senders: int, receivers: int, cancellations: int
) -> None:
    """Several of each, some of the receivers cancelled at any step: each item once, each sender's in order."""

    async def main() -> None:
        mailbox: Mailbox[tuple[int, int]] = Mailbox(capacity)
        got: list[tuple[int, int]] = []
        left = senders

        async def sender(name: int) -> None:
            nonlocal left
            for number in range(20):
                while True:
                    with anyio.CancelScope() as scope:
                        scopes.append(scope)
                        await mailbox.send((name, number))
                        break
            left -= 1
            if not left:
                mailbox.close()

        async def receiver() -> None:
            while True:
                with anyio.CancelScope() as scope:
                    scopes.append(scope)
                    try:
                        got.append(await mailbox.receive())  # type: ignore[arg-type]
                    except MailboxClosed:
                        return

        scopes: list[anyio.CancelScope] = []
        async with anyio.create_task_group() as tasks:
            for name in range(senders):
                tasks.start_soon(sender, name)
            for _ in range(receivers):
                tasks.start_soon(receiver)
            for _ in range(cancellations):
                await anyio.lowlevel.checkpoint()
                if scopes:
                    scopes.pop().cancel()
        assert sorted(got) == [(name, number) for name in range(senders) for number in range(20)]
        if receivers == 1:  # with several, who appends first says nothing about who received first
            for name in range(senders):
                assert [number for who, number in got if who == name] == list(range(20))
        assert mailbox.statistics().delivered == len(got)
        assert mailbox.statistics().senders_waiting == 0

    run(main, "trio")


@both_loops
def test_control_comes_before_data(backend: str) -> None:
    async def main() -> None:
        mailbox: Mailbox[str] = Mailbox(4)
        await mailbox.send("data 1")
        await mailbox.send("data 2")
        mailbox.post_nowait("control 1")
        mailbox.post_nowait("control 2")
        got = [await mailbox.receive() for _ in range(3)]
        mailbox.post_nowait("control 3")
        got += [mailbox.receive_nowait() for _ in range(3)]
        assert got == ["control 1", "control 2", "data 1", "control 3", "data 2", None]

    run(main, backend)


@pytest.mark.parametrize("capacity", [0, 1])
def test_posting_never_blocks_and_does_not_take_the_room_of_data(capacity: int) -> None:
    async def main() -> None:
        mailbox: Mailbox[int] = Mailbox(capacity)
        for number in range(1000):
            mailbox.post_nowait(number)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(mailbox.send, 1000)
            got = [await mailbox.receive() for _ in range(1001)]
        assert got == list(range(1001))

    run(main)


@pytest.mark.parametrize("capacity", [0, 1, 3])
def test_a_sender_waits_when_the_lane_is_full_and_the_first_to_wait_is_the_first_to_send(capacity: int) -> None:
    async def main() -> None:
        mailbox: Mailbox[int] = Mailbox(capacity)
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(mailbox.send, number)
                await anyio.wait_all_tasks_blocked()
            assert mailbox.statistics().data_waiting == capacity
            assert mailbox.statistics().senders_waiting == 8 - capacity
            got = []
            for _ in range(8):
                mailbox.post_nowait(-1)  # a receiver that comes for control must not shuffle the waiting line
                assert await mailbox.receive() == -1
                await anyio.wait_all_tasks_blocked()
                got.append(await mailbox.receive())
                await anyio.wait_all_tasks_blocked()
        assert got == list(range(8))

    run(main)


@both_loops
def test_closing_wakes_all_and_what_is_queued_can_still_be_received(backend: str) -> None:
    async def main() -> None:
        full: Mailbox[int] = Mailbox(1)
        empty: Mailbox[int] = Mailbox(1)
        ends: list[str] = []

        async def expect_closed(name: str, operation: Callable[[], Awaitable[object]]) -> None:
            with pytest.raises(MailboxClosed):
                await operation()
            ends.append(name)

        await full.send(0)
        full.post_nowait(1)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(expect_closed, "sender", lambda: full.send(2))
                tasks.start_soon(expect_closed, "receiver", empty.receive)
            await anyio.wait_all_tasks_blocked()
            full.close()
            empty.close()
        assert sorted(ends) == ["receiver"] * 3 + ["sender"] * 3
        with pytest.raises(MailboxClosed):
            await full.send(3)
        full.post_nowait(4)
        assert [await full.receive(), await full.receive()] == [1, 0]
        with pytest.raises(MailboxClosed):
            await full.receive()
        assert full.statistics().dropped == 5

    run(main, backend)


@both_loops
@pytest.mark.parametrize("capacity", [0, 1])
def test_lifting_the_limit_lets_all_senders_through(backend: str, capacity: int) -> None:
    async def main() -> None:
        mailbox: Mailbox[int] = Mailbox(capacity)
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(mailbox.send, number)
                await anyio.wait_all_tasks_blocked()
            mailbox.lift()
        await mailbox.send(5)
        got = [mailbox.receive_nowait() for _ in range(7)]
        assert sorted(got[:6]) == list(range(6))  # type: ignore[type-var]
        assert got[6] is None
        if backend == "asyncio":
            assert got[:6] == list(range(6))

    run(main, backend)


@both_loops
def test_nothing_within_the_timeout_is_none(backend: str) -> None:
    async def main() -> None:
        mailbox: Mailbox[int] = Mailbox(1)
        assert await mailbox.receive(0.001) is None
        assert await mailbox.receive(0) is None
        await mailbox.send(5)
        assert await mailbox.receive(0) == 5

    run(main, backend)


def test_statistics_count_what_waits_and_what_went() -> None:
    async def main() -> None:
        mailbox: Mailbox[int] = Mailbox(2)
        await mailbox.send(1)
        mailbox.post_nowait(2)
        statistics = mailbox.statistics()
        assert (statistics.data_waiting, statistics.control_waiting, statistics.delivered) == (1, 1, 0)
        await mailbox.receive()
        statistics = mailbox.statistics()
        assert (statistics.data_waiting, statistics.control_waiting, statistics.delivered) == (1, 0, 1)
        assert (statistics.senders_waiting, statistics.dropped) == (0, 0)

    run(main)


def test_a_negative_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity is -1"):
        Mailbox(-1)
