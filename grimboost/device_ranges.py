"""NVTX ranges and device times of each worker's batches on CUDA, through cupy where it is installed.

A range begins and ends in the worker's thread, named after worker and request, so that a profiler of the device
(Nsight Systems) shows which batch its kernels belong to. A pair of events on the stream that is current there
says how long the device worked between them, asked for only once the device has passed both: nothing waits for
it. Without cupy, or without a device, there is no such instrument. It knows no model.

It is tested against a stand-in for cupy only; it has never run on a device.
"""

import threading
from collections import deque
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from msgspec import Struct

from grimboost.instruments import Batch, Instrument

MOST_PENDING = 1024
"""Pairs of events whose time is not asked for yet; the oldest are given up."""


class StreamTime(Struct, frozen=True):
    """What a device did for one worker on one stream: batches, and seconds between their events."""

    worker: str
    stream: int
    batches: int
    seconds: float


def device_ranges() -> "DeviceRanges | None":
    """The instrument; None without cupy or without a device."""
    if find_spec("cupy") is None:
        return None
    try:
        cupy: Any = import_module("cupy")
        if cupy.cuda.runtime.getDeviceCount() < 1:
            return None
    except Exception:  # cupy says in many ways that there is no driver
        return None
    return DeviceRanges(cupy)


class _Pair(Struct):
    worker: str
    stream: Any
    begin: Any
    end: Any


class DeviceRanges(Instrument):
    """Has to be told of a worker's batches in that worker's thread, as instruments are."""

    def __init__(self, cupy: Any) -> None:
        """`cupy`: the module."""
        self._cuda = cupy.cuda
        self._open: dict[str, _Pair] = {}
        self._pending = deque[_Pair](maxlen=MOST_PENDING)
        self._settling = threading.Lock()
        self._sums: dict[tuple[str, int], StreamTime] = {}

    def batch_begins(self, worker: str, requests: tuple[Any, ...]) -> None:
        kinds = dict.fromkeys(type(request).__name__ for request in requests)
        self._cuda.nvtx.RangePush(f"grimboost {worker}: {', '.join(kinds)}")
        stream = self._cuda.get_current_stream()
        pair = _Pair(worker, stream, self._cuda.Event(), self._cuda.Event())
        pair.begin.record(stream)
        self._open[worker] = pair

    def batch(self, batch: Batch) -> None:
        pair = self._open.pop(batch.worker, None)
        if pair is None:  # it began before this instrument was added
            return
        pair.end.record(pair.stream)
        self._cuda.nvtx.RangePop()
        with self._settling:  # workers' threads meet here
            self._pending.append(pair)
            self._settle()

    def _settle(self) -> None:
        """Take the times of those that the device has passed. Streams are independent: one may wait for long."""
        for _ in range(len(self._pending)):
            pair = self._pending.popleft()
            if not pair.end.done:
                self._pending.append(pair)
                continue
            seconds = self._cuda.get_elapsed_time(pair.begin, pair.end) / 1000.0
            key = pair.worker, pair.stream.ptr
            before = self._sums.get(key, StreamTime(*key, 0, 0.0))
            self._sums[key] = StreamTime(*key, before.batches + 1, before.seconds + seconds)

    def times(self) -> tuple[StreamTime, ...]:
        """What the device has passed so far, by worker and stream."""
        with self._settling:
            self._settle()
            return tuple(self._sums[key] for key in sorted(self._sums))
