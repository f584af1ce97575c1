"""When a drafter and a target ran at the same moment, from message logs; and how late an event loop comes.

A worker's answer that the log has at second t, and that took d seconds, was in the making in about [t - d, t]:
what the event loop needed to take it in is not known, and shifts both kinds alike. A pass is under way for longer,
from the verifier's request on: its thread has to wake first. Only the decoding counts, from the begin of the first
pass that chooses tokens to the end of the last one. It starts no engine and knows no model.
"""

import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import anyio
from msgspec import Struct

from grimboost import messages as m
from grimboost.log import LogEntry

Intervals = list[tuple[float, float]]
"""Disjoint and ascending (begin, end), where a function gives them."""

BEAT = 0.005
"""Seconds that a heartbeat sleeps."""

LATEST = 0.05
"""Seconds by which a beat may come late: nothing on the event loop may compute for longer."""


# ---------------------------------------------------------------- intervals


def union(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """The same moments, each once; intervals that touch are one."""
    found: Intervals = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif end > begin:
            found.append((begin, end))
    return found


def common(one: Intervals, other: Intervals) -> Intervals:
    """Moments of both."""
    found: Intervals = []
    first = second = 0
    while first < len(one) and second < len(other):
        begin = max(one[first][0], other[second][0])
        end = min(one[first][1], other[second][1])
        if end > begin:
            found.append((begin, end))
        if one[first][1] <= other[second][1]:
            first += 1
        else:
            second += 1
    return found


def length(intervals: Intervals) -> float:
    """Seconds altogether."""
    return sum(end - begin for begin, end in intervals)


def within(moment: float, intervals: Intervals) -> bool:
    """Whether one of them holds that moment."""
    place = bisect_right(intervals, (moment, float("inf"))) - 1
    return place >= 0 and moment < intervals[place][1]


# ---------------------------------------------------------------- a log


class Trace(Struct, frozen=True):
    """One generation: when drafts and passes were in the making and when a pass was under way, the decoding's
    seconds, and what was shown before it was checked, as (second, bytes)."""

    drafts: Intervals
    passes: Intervals
    under_way: Intervals
    wall: float
    released: list[tuple[float, int]]


def trace(entries: Iterable[LogEntry]) -> Trace:
    """From a log's entries."""
    drafts: Intervals = []
    passes: Intervals = []
    under_way: Intervals = []
    released: list[tuple[float, int]] = []
    asked: dict[int, float] = {}
    for entry in entries:
        now = entry.seconds
        match entry.message:
            case m.DraftReturned(seconds=seconds):
                drafts.append((now - seconds, now))
            case m.PassReturned(number=number, seconds=seconds, choices=choices) if choices:
                passes.append((now - seconds, now))
                under_way.append((asked[number], now))
        asked |= {answer.number: now for answer in entry.answers if isinstance(answer, m.PassRequested)}
        released += [(now, size) for size in map(_unchecked, entry.answers) if size]
    passes = union(passes)
    decoding = [(passes[0][0], passes[-1][1])] if passes else []
    return Trace(common(union(drafts), decoding), passes, union(under_way), length(decoding), released)


def _unchecked(event: m.Message) -> int:
    """Bytes that this event shows before the target has checked them."""
    match event:
        case m.Chunk(data=data, released=True) | m.Provisional(data=data):
            return len(data)
    return 0


class Shares(Struct, frozen=True):
    """Of draft time with a pass beside it, of pass time with a draft beside it, of the decoding with both, and of
    the bytes shown unchecked those that were shown while a pass ran, or was under way. None where there was
    nothing to share."""

    draft: float | None
    passing: float | None
    wall: float | None
    released: float | None
    released_under_way: float | None


def shares(traces: Sequence[Trace]) -> Shares:
    """Over several generations: sums over sums."""
    both = sum(length(common(one.drafts, one.passes)) for one in traces)
    shown = [(one, moment, size) for one in traces for moment, size in one.released]
    early = sum(size for _, _, size in shown)
    return Shares(
        share(both, sum(length(one.drafts) for one in traces)),
        share(both, sum(length(one.passes) for one in traces)),
        share(both, sum(one.wall for one in traces)),
        share(sum(size for one, moment, size in shown if within(moment, one.passes)), early),
        share(sum(size for one, moment, size in shown if within(moment, one.under_way)), early),
    )


def share(part: float, whole: float) -> float | None:
    """part / whole; None where there is no whole."""
    return part / whole if whole else None


# ---------------------------------------------------------------- the event loop


@asynccontextmanager
async def heartbeat() -> AsyncIterator[list[float]]:
    """While the context lasts, a task sleeps `BEAT` again and again; gives a growing list of seconds too late."""
    late: list[float] = []

    async def beat() -> None:
        while True:
            begin = time.perf_counter()
            try:
                await anyio.sleep(BEAT)
            finally:  # the last one is cut short, or came so late that nobody waited for it
                late.append(max(0.0, time.perf_counter() - begin - BEAT))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        yield late
        tasks.cancel_scope.cancel()
