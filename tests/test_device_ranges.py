"""NVTX ranges and device times, against a stand-in for cupy: there is no device here."""

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from scripted import Target, assert_clean, collect, make_engine, oracle, prompt, run

from grimboost.device_ranges import MOST_PENDING, DeviceRanges, device_ranges
from grimboost.instruments import Batch


class Event:
    """Passed by the device at once, unless told otherwise."""

    def __init__(self, cuda: "Cuda") -> None:
        self.cuda, self.stream, self.at = cuda, None, 0.0

    def record(self, stream: Any) -> None:
        self.stream = stream
        self.at = self.cuda.clock
        self.cuda.clock += 2.0

    @property
    def done(self) -> bool:
        return not self.cuda.busy

    def synchronize(self) -> None:
        raise AssertionError("nothing may wait for the device")


class Cuda:
    """What is used of `cupy.cuda`. Its clock ticks two milliseconds per event."""

    def __init__(self, devices: int = 1) -> None:
        self.clock, self.busy = 0.0, False
        self.ranges: dict[int, list[str]] = {}
        self.names: list[str] = []
        self.nvtx = SimpleNamespace(RangePush=self.push, RangePop=self.pop)
        self.runtime = SimpleNamespace(getDeviceCount=lambda: devices)
        self.stream = SimpleNamespace(ptr=7)

    def push(self, name: str) -> None:
        self.names.append(name)
        self.ranges.setdefault(threading.get_ident(), []).append(name)

    def pop(self) -> None:
        self.ranges[threading.get_ident()].pop()

    def get_current_stream(self) -> Any:
        return self.stream

    def Event(self) -> Event:
        return Event(self)

    @staticmethod
    def get_elapsed_time(begin: Event, end: Event) -> float:
        assert begin.stream is end.stream
        return end.at - begin.at


def stand_in(cuda: Any) -> Any:
    return SimpleNamespace(cuda=cuda)


def batch(worker: str) -> Batch:
    return Batch(worker, (), 0.0, 0.0, 0.0)


def test_each_batch_is_a_range_in_its_own_thread_and_has_a_device_time() -> None:
    cuda, target = Cuda(), Target()
    ranges = DeviceRanges(stand_in(cuda))

    async def main() -> Any:
        async with make_engine(target, oracle(broken_at=7), instruments=[ranges]) as engine:
            await collect(engine.generate(prompt()))
            await collect(engine.generate(prompt(1)))
        return engine.statistics()

    statistics = run(main)
    assert_clean(target)
    assert len(cuda.ranges) == 2, "one thread for the drafter, one for the target"
    assert not any(cuda.ranges.values()), "each range that began has ended"
    assert {name.split(":")[0] for name in cuda.names} == {"grimboost drafter", "grimboost target"}
    assert "grimboost target: PassRequested" in cuda.names
    times = {time.worker: time for time in ranges.times()}
    assert times["target"].batches == statistics.target.batches
    assert times["drafter"].batches == statistics.drafter.batches
    assert all(time.stream == 7 and time.seconds >= 0.002 * time.batches for time in times.values())


def test_nothing_waits_for_the_device_and_what_it_owes_is_bounded() -> None:
    cuda = Cuda()
    ranges = DeviceRanges(stand_in(cuda))
    cuda.busy = True
    for _ in range(MOST_PENDING + 5):
        ranges.batch_begins("target", ())
        ranges.batch(batch("target"))
    assert ranges.times() == ()
    assert len(ranges._pending) == MOST_PENDING
    cuda.busy = False
    [time] = ranges.times()
    assert (time.worker, time.stream, time.batches) == ("target", 7, MOST_PENDING)


def test_streams_are_counted_apart() -> None:
    cuda = Cuda()
    ranges = DeviceRanges(stand_in(cuda))
    for pointer in (1, 2, 1):
        cuda.stream = SimpleNamespace(ptr=pointer)
        ranges.batch_begins("target", ())
        cuda.stream = SimpleNamespace(ptr=9)  # the batch leaves another one behind
        ranges.batch(batch("target"))
    assert [(time.stream, time.batches) for time in ranges.times()] == [(1, 2), (2, 1)]


def test_added_in_the_middle_of_a_batch_it_pops_no_range_of_others() -> None:
    cuda = Cuda()
    ranges = DeviceRanges(stand_in(cuda))
    ranges.batch(batch("target"))
    assert cuda.ranges == {}


@pytest.mark.parametrize("cuda", [Cuda(0), None], ids=["no device", "no driver"])
def test_without_a_device_there_is_none(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = stand_in(cuda)
    module.__spec__ = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "cupy", module)
    assert device_ranges() is None


def test_with_a_device_an_engine_adds_it_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert not make_engine().instruments.batch_begins
    module = stand_in(Cuda())
    module.__spec__ = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "cupy", module)
    [hook] = make_engine().instruments.batch_begins
    assert isinstance(hook.owner, DeviceRanges)
