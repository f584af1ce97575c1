"""Workers: one batch of all that waits, slots that outlive a running step (D8), and threads that always end."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from scripted import (
    BOUND,
    Gate,
    Target,
    assert_clean,
    assert_whole,
    both_loops,
    collect,
    make_engine,
    prompt,
    reached,
    run,
)

from grimboost import messages as m
from grimboost.mailbox import Mailbox
from grimboost.stages.sampling_rule import SamplingRule
from grimboost.target_service import TargetService
from grimboost.worker import Job, Lease, Port, Worker

OPEN = m.OpenRequested(SamplingRule())


class Echo:
    """Answers `Released(number)` to the number it is asked; `work` runs before each batch."""

    def __init__(self, work: Callable[[Sequence[Job]], object] = lambda _: None) -> None:
        self.work = work
        self.batches: list[list[Any]] = []
        self.closed = threading.Event()

    def handle(self, jobs: Sequence[Job]) -> list[tuple[Lease, m.Message]]:
        self.work(jobs)
        self.batches.append([job.request for job in jobs])
        return [(job.lease, m.Released(job.request)) for job in jobs]

    def close(self) -> None:
        self.closed.set()


def lease_of(run: int = 1) -> tuple[Lease, Mailbox[Any]]:
    mailbox: Mailbox[Any] = Mailbox()
    return Lease(run, mailbox.post_nowait), mailbox


async def ended(worker: Worker) -> None:
    worker.stop()
    with anyio.fail_after(BOUND):
        await worker.ended()


@both_loops
def test_jobs_that_ran_together_are_waited_for_a_moment_and_stay_together(backend: str) -> None:
    async def main() -> None:
        service = Echo(lambda _: time.sleep(0.05))
        worker = Worker("test", lambda: service, gathers=True)
        await worker.start()
        (first, one), (second, two), (third, _) = lease_of(1), lease_of(2), lease_of(3)
        worker.submit(Job(first, 0))  # holds the thread while the next ones come
        await anyio.sleep(0.02)
        for number, lease in enumerate((first, second, third), 1):
            worker.submit(Job(lease, number))
        for _ in range(2):
            await one.receive()
        worker.submit(Job(first, 4))
        await anyio.sleep(0.002)  # the thread is free, and waits for the two others
        third.ended = True
        worker.submit(Job(second, 5))
        for mailbox in (one, two):
            await mailbox.receive()
        await two.receive()
        assert service.batches[:3] == [[0], [1, 2, 3], [4, 5]]
        begin = time.perf_counter()
        worker.submit(Job(first, 6))  # the second does not come again: a moment, and no longer
        await one.receive()
        assert time.perf_counter() - begin < 0.05 + 0.045
        assert service.batches[3:] == [[6]]
        await ended(worker)

    run(main, backend)


@both_loops
def test_what_waits_is_one_batch_in_order(backend: str) -> None:
    async def main() -> None:
        gate = Gate()
        service = Echo(lambda jobs: gate() if jobs[0].request == 0 else None)
        worker = Worker("test", lambda: service)
        await worker.start()
        lease, mailbox = lease_of()
        worker.submit(Job(lease, 0))
        await reached(gate.begun)
        for number in range(1, 6):
            worker.submit(Job(lease, number))
        gate.go.set()
        got = [(await mailbox.receive()).length for _ in range(6)]
        assert got == list(range(6))
        assert service.batches == [[0], [1, 2, 3, 4, 5]]
        statistics = worker.statistics()
        assert (statistics.batches, statistics.jobs, statistics.skipped) == (2, 6, 0)
        await ended(worker)
        assert service.closed.is_set()

    run(main, backend)


@both_loops
def test_D8_queued_work_of_an_ended_lease_is_not_started_and_its_late_result_is_dropped(backend: str) -> None:
    async def main() -> None:
        gate = Gate()
        service = Echo(lambda jobs: gate() if jobs[0].request == 0 else None)
        worker = Worker("test", lambda: service)
        await worker.start()
        (gone, gone_mailbox), (alive, mailbox) = lease_of(1), lease_of(2)
        worker.submit(Job(gone, 0))
        await reached(gate.begun)
        worker.submit(Job(gone, 1))
        worker.submit(Job(alive, 2))
        worker.submit(Job(gone, 3, always=True))
        gone.ended = True
        gate.go.set()
        assert (await mailbox.receive()).length == 2
        assert service.batches == [[0], [2, 3]]  # 1 never started, what gives back a slot always runs
        assert worker.statistics().skipped == 1
        assert gone_mailbox.receive_nowait() is None
        await ended(worker)

    run(main, backend)


@both_loops
def test_D8_a_slot_is_given_back_only_after_the_step_that_uses_it(backend: str) -> None:
    """The generation ends while its pass runs, and another one wants a slot at once."""

    async def main() -> None:
        gate = Gate()
        target = Target()
        events: list[str] = []

        def step(batch: object) -> None:
            events.append("step begins")
            gate()
            events.append("step returns")

        target.on_step = step
        target.on_close = lambda: events.append("closed")
        target.on_open = lambda: events.append("opened")
        worker = Worker("target", lambda: TargetService(target))
        await worker.start()
        (old, old_mailbox), (new, new_mailbox) = lease_of(1), lease_of(2)
        port = Port(worker, old, always=(m.ReleaseRequested,))
        port.post_nowait(OPEN)
        assert await old_mailbox.receive() == m.Opened()
        port.post_nowait(m.PassRequested(1, 0, prompt(), 1))
        await reached(gate.begun)
        old.ended = True
        port.post_nowait(m.PassRequested(2, 0, prompt(), 1))
        port.post_nowait(m.ReleaseRequested(0))
        Port(worker, new).post_nowait(OPEN)
        assert target.open_slots == 1
        gate.go.set()
        assert await new_mailbox.receive() == m.Opened()
        assert sorted(events[3:]) == ["closed", "opened"]
        assert events[:3] == ["opened", "step begins", "step returns"]  # one step: the queued one never began
        assert old_mailbox.receive_nowait() is None
        assert target.open_slots == 1
        await ended(worker)
        assert target.open_slots == 0

    run(main, backend)


@both_loops
def test_D8_a_cancelled_generation_keeps_its_slot_while_its_step_runs(backend: str) -> None:
    """The same from the outside: cancel during a step, then another generation runs undisturbed."""

    async def main() -> None:
        gate, target = Gate(), Target()
        open_at_return: list[int] = []

        def step(batch: Sequence[Any]) -> None:
            target.on_step = lambda batch: None
            gate()
            open_at_return.append(target.open_slots)

        target.on_step = step
        async with make_engine(target) as engine:
            first, second = engine.generate(prompt(0), max_new_tokens=40), engine.generate(prompt(1))
            async with anyio.create_task_group() as tasks:
                async with first:
                    await reached(gate.begun)
                    tasks.start_soon(collect, second)
                    first.cancel()
                    await anyio.wait_all_tasks_blocked()
                    assert target.open_slots == 1  # not freed, and the second one's job waits behind it
                    assert not first.finished.is_set()
                    gate.go.set()
                assert first.finished.is_set()
            assert_whole(second, 1)
            assert open_at_return == [1]
            assert first.result.finish_reason == "cancelled"
            assert first.result.data == b""

    run(main, backend)


@both_loops
@pytest.mark.parametrize("kind", ["waits", "computes"])
def test_D8_the_loop_stays_responsive_during_a_step(backend: str, kind: str) -> None:
    """A heartbeat is never more than 50 ms late. On a busy machine one calm attempt out of five has to do."""

    def step(_: object) -> None:
        end = time.perf_counter() + 0.2
        if kind == "waits":
            threading.Event().wait(0.2)
        while time.perf_counter() < end:
            sum(range(50))  # pure Python: holds the interpreter as much as it can

    async def latest() -> float:
        worker = Worker("test", lambda: Echo(step))
        await worker.start()
        lease, mailbox = lease_of()
        worker.submit(Job(lease, 0))
        worst, last = 0.0, time.perf_counter()
        while mailbox.receive_nowait() is None:
            await anyio.sleep(0.005)
            now = time.perf_counter()
            worst, last = max(worst, now - last - 0.005), now
        await ended(worker)
        return worst

    async def main() -> None:
        lags: list[float] = []
        while not lags or (min(lags) >= 0.05 and len(lags) < 5):
            lags.append(await latest())
        assert min(lags) < 0.05, lags

    run(main, backend)


@both_loops
def test_what_making_the_service_raises_is_raised_in_start(backend: str) -> None:
    def make() -> Echo:
        raise RuntimeError("no weights")

    async def main() -> None:
        worker = Worker("test", make)
        with pytest.raises(RuntimeError, match="no weights"):
            await worker.start()

    run(main, backend)
    assert_clean(Target())


@both_loops
def test_a_start_that_is_cancelled_ends_the_thread_once_the_service_is_made(backend: str) -> None:
    gate, service = Gate(), Echo()

    def make() -> Echo:
        gate()
        return service

    async def main() -> None:
        worker = Worker("test", make)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.start)
            await reached(gate.begun)
            tasks.cancel_scope.cancel()
        gate.go.set()
        with anyio.fail_after(BOUND):
            await worker.ended()
        assert service.closed.is_set()

    run(main, backend)
    assert_clean(Target())


async def test_a_start_cancelled_by_asyncio_itself_ends_the_thread_too() -> None:
    gate, service = Gate(), Echo()

    def make() -> Echo:
        gate()
        return service

    worker = Worker("test", make)
    task = asyncio.create_task(worker.start())
    await reached(gate.begun)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.go.set()
    await worker.ended()
    assert service.closed.is_set()


@both_loops
def test_a_loop_that_ends_while_a_job_runs_leaves_a_thread_that_ends(backend: str) -> None:
    gate, service = Gate(), Echo()
    service.work = gate
    worker = Worker("test", lambda: service)

    async def main() -> None:
        await worker.start()
        worker.submit(Job(lease_of()[0], 0))
        await reached(gate.begun)
        worker.stop()

    run(main, backend)
    assert worker.alive
    gate.go.set()
    assert service.closed.wait(BOUND)
    assert_clean(Target())


def test_a_worker_started_in_one_loop_delivers_in_the_next() -> None:
    worker = Worker("test", Echo)
    run(worker.start)
    assert worker.started

    async def main() -> None:
        worker.attach()
        lease, mailbox = lease_of()
        worker.submit(Job(lease, 7))
        assert await mailbox.receive() == m.Released(7)
        await ended(worker)

    run(main, "trio")


@both_loops
def test_between_jobs_a_worker_holds_on_to_nothing(backend: str) -> None:
    async def main() -> None:
        worker = Worker("test", Echo)
        await worker.start()
        lease, mailbox = lease_of()
        gone = weakref.ref(lease)
        worker.submit(Job(lease, 1))
        await mailbox.receive()
        # the thread delivers before it waits again: a second answer means that it has let go of the first job
        other, other_mailbox = lease_of()
        worker.submit(Job(other, 2))
        await other_mailbox.receive()
        del lease
        gc.collect()
        assert gone() is None
        await ended(worker)

    run(main, backend)


def test_the_target_service_repeats_a_batch_that_failed_slot_by_slot() -> None:
    target = Target()
    service = TargetService(target)
    leases = [lease_of(number)[0] for number in range(3)]
    service.handle([Job(lease, OPEN) for lease in leases])
    sizes: list[int] = []

    def step(batch: Sequence[Any]) -> None:
        sizes.append(len(batch))
        if any(rows.tokens == prompt(1) for rows in batch):
            raise RuntimeError("device error")

    target.on_step = step
    answers = dict(
        service.handle([Job(lease, m.PassRequested(1, 0, prompt(place), 1)) for place, lease in enumerate(leases)])
    )
    assert sizes == [3, 1, 1, 1]
    assert isinstance(answers[leases[0]], m.PassReturned)
    assert answers[leases[1]] == m.PassFailed("RuntimeError('device error')")
    assert isinstance(answers[leases[2]], m.PassReturned)
    service.close()
    assert target.open_slots == 0


def test_D8_a_pass_that_waits_beside_its_own_release_never_runs_and_disturbs_nobody() -> None:
    target = Target()
    service = TargetService(target)
    (gone, _), (alive, _) = lease_of(1), lease_of(2)
    service.handle([Job(gone, OPEN), Job(alive, OPEN)])
    sizes: list[int] = []
    target.on_step = lambda batch: sizes.append(len(batch))
    answers = service.handle(
        [
            Job(gone, m.PassRequested(1, 0, prompt(0), 1)),
            Job(alive, m.PassRequested(1, 0, prompt(1), 1)),
            Job(gone, m.ReleaseRequested(0), always=True),
        ]
    )
    assert sizes == [1]
    assert [(lease, type(answer)) for lease, answer in answers] == [
        (gone, m.Released),
        (alive, m.PassReturned),
    ]


@pytest.mark.parametrize("wrong", ["fewer results", "more results", "fewer choices", "no length"])
def test_a_target_that_breaks_its_contract_fails_its_generation_not_the_worker(wrong: str) -> None:
    class Broken(Target):
        def step(self, batch: Sequence[Any]) -> list[list[Any]]:
            results = super().step(batch)
            match wrong:
                case "fewer results":
                    return results[:-1]
                case "more results":
                    return [*results, results[0]]
                case "fewer choices":
                    return [choices[:-1] for choices in results]
            return results

        def length(self, slot: Any) -> int:
            if wrong == "no length":
                raise RuntimeError("length is not known")
            return super().length(slot)

    target = Broken()
    service = TargetService(target)
    lease = lease_of()[0]
    service.handle([Job(lease, OPEN)])
    [(_, answer)] = service.handle([Job(lease, m.PassRequested(1, 0, prompt(), 1))])
    assert isinstance(answer, m.PassFailed)
    [(_, answer)] = service.handle([Job(lease, m.ReleaseRequested(1))])
    assert isinstance(answer, m.Released)
    assert target.open_slots == 0


def test_a_device_that_fails_for_good_still_answers_every_release() -> None:
    """After a device error every further call raises: a generation must not wait for its slot for ever."""

    class Dead(Target):
        def rollback(self, slot: Any, length: int) -> None:
            raise RuntimeError("device is gone")

        def close(self, slot: Any) -> None:
            raise RuntimeError("device is gone")

    service = TargetService(Dead())
    lease, other = lease_of(1)[0], lease_of(2)[0]
    service.handle([Job(lease, OPEN), Job(other, OPEN)])
    assert service.handle([Job(lease, m.ReleaseRequested(0))]) == [(lease, m.Released(0))]
    service.close()  # does not raise for the other one


def test_a_port_marks_what_always_runs() -> None:
    jobs: list[Job] = []

    class Queue:
        def submit(self, job: Job) -> None:
            jobs.append(job)

    lease = lease_of()[0]
    port = Port(Queue(), lease, always=(m.ReleaseRequested,))  # type: ignore[arg-type]
    port.post_nowait(OPEN)
    port.post_nowait(m.ReleaseRequested(0))
    assert [(job.lease, job.always) for job in jobs] == [(lease, False), (lease, True)]
