"""Counting values into fixed buckets, for as long as an engine lives. It knows nothing of what is counted.

One thread counts; any thread may take a snapshot, in which no count is ever lower than in an earlier one.
"""

from bisect import bisect_left
from collections.abc import Sequence

from msgspec import Struct


class Histogram(Struct, frozen=True):
    """`counts[i]` values were above `bounds[i - 1]` and at most `bounds[i]`; the last were above all bounds."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    sum: float = 0.0

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)


class Buckets:
    """A histogram that grows."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> Histogram:
        """As far as it has come."""
        return Histogram(self._bounds, tuple(self._counts), self._sum)
