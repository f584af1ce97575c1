"""What a drafter's stated confidence is worth: a monotone map to the share of spans the target agreed with.

Observations are counted in bins that become finer towards 1, where releasing is decided. Each bin starts with a
few imagined observations that confirm the stated confidence, so that little evidence moves little, and many
clean spans lead to about one error in as many as were seen. Isotonic regression by pooling adjacent violators
(Ayer et al. 1955; for classifiers Zadrozny & Elkan 2002) makes the result monotone: a drafter that is surer is
never believed less. Old observations fade, because texts change.

It does not know thresholds, certificates or which spans were released. Nothing is promised about its result: a
certificate is tested on spans as they were calibrated before their outcome was known, good or bad.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from math import isfinite

from msgspec import Struct

EDGES = (
    *(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97),
    *(0.98, 0.985, 0.99, 0.993, 0.995, 0.997, 0.998, 0.999, 0.9995, 0.9998, 0.9999, 1.0),
)
"""Bins of stated confidence, each with its lower edge; the last one includes 1."""

BINS = len(EDGES) - 1
INNER = EDGES[1:-1]

PRIOR = 4.0
"""Imagined observations per bin: after 400 clean spans a bin stated as 0.9 is worth 0.999, one as 0.5 0.995."""

RESISTANCE = 0.1
"""Weight of the imagined observations of a bin when bins are pooled: a bin that was never seen gives way."""

SUREST = 0.9999
"""What the imagined observations confirm at most; a drafter that states 1 has not earned it."""

MEMORY = 20_000
"""All counts are halved when this many observations weigh: the resolution needs about so many."""


class CalibrationCurve(Struct, frozen=True, forbid_unknown_fields=True):
    """Knots of a monotone map, straight lines between them; a stated confidence may occur twice, as a step.

    Without knots it is the identity.
    """

    raw: tuple[float, ...] = ()
    calibrated: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.raw) != len(self.calibrated):
            raise ValueError("a calibration curve needs as many calibrated as raw confidences")
        for values in (self.raw, self.calibrated):
            if not all(0.0 <= value <= 1.0 for value in values) or any(a > b for a, b in pairwise(values)):
                raise ValueError("confidences of a calibration curve rise from 0 to 1")

    def of(self, confidence: float) -> float:
        """Probability that a span drafted with this confidence is the target's token, within [0, 1]."""
        confidence = _clipped(confidence)
        if not self.raw:
            return confidence
        above = bisect_right(self.raw, confidence)
        if above in (0, len(self.raw)):
            return self.calibrated[max(0, above - 1)]
        left, right = self.raw[above - 1], self.raw[above]
        low, high = self.calibrated[above - 1], self.calibrated[above]
        return min(high, low + (high - low) * (confidence - left) / (right - left))


class CalibrationCounts(Struct, frozen=True, forbid_unknown_fields=True):
    """Weights per bin of `EDGES`; empty when nothing was seen. Fractions come from forgetting.

    `seen` and `agreed` count spans; `raw` and `stated` sum their confidences, as drafted and as calibrated then.
    """

    seen: tuple[float, ...] = ()
    agreed: tuple[float, ...] = ()
    raw: tuple[float, ...] = ()
    stated: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not all(isfinite(count) for count in self.seen):
            raise ValueError("counts of a calibration are finite")
        for part in (self.seen, self.agreed, self.raw, self.stated):
            if len(part) not in (0, BINS) or len(part) != len(self.seen):
                raise ValueError(f"a calibration has {BINS} bins")
            if not all(0.0 <= one <= most for one, most in zip(part, self.seen, strict=True)):
                raise ValueError("a part of a calibration's counts is no more than all of them")


class Calibration:
    """Counts that grow with observations; `counts` is all there is to keep."""

    def __init__(self, counts: CalibrationCounts = CalibrationCounts()) -> None:  # noqa: B008 (frozen)
        self._seen, self._agreed, self._raw, self._stated = (
            list(part) or [0.0] * BINS for part in (counts.seen, counts.agreed, counts.raw, counts.stated)
        )
        self._total = sum(self._seen)
        self._curve: CalibrationCurve | None = None

    @property
    def counts(self) -> CalibrationCounts:
        """The present counts."""
        if not self._total:
            return CalibrationCounts()
        parts = (self._seen, self._agreed, self._raw, self._stated)
        return CalibrationCounts(*map(tuple, parts))

    def observe(self, confidence: float, agreed: bool, stated: float | None = None) -> None:
        """The target decided about a span that was drafted with `confidence`.

        `stated`: what it was calibrated to before it was decided; without it, what it would be now.
        """
        confidence = _clipped(confidence)
        stated = self.curve().of(confidence) if stated is None else _clipped(stated)
        place = bisect_right(INNER, confidence)
        self._seen[place] += 1.0
        self._agreed[place] += agreed
        self._raw[place] += confidence
        self._stated[place] += stated
        self._total += 1.0
        self._curve = None
        if self._total >= MEMORY:
            self._forget()

    def curve(self) -> CalibrationCurve:
        """The map as it stands; the identity while nothing was seen."""
        if self._curve is None:
            self._curve = self._fitted() if self._total else CalibrationCurve()
        return self._curve

    def error(self) -> float:
        """Expected calibration error of calibrated confidences: how far, in the mean over spans, what was
        stated before the outcome was known lies from the share that agreed, bin by bin of drafted confidence."""
        return self._distance(self._stated)

    def raw_error(self) -> float:
        """The same of confidences as the drafter gave them."""
        return self._distance(self._raw)

    def _distance(self, promised: Iterable[float]) -> float:
        off = sum(abs(sum_ - agreed) for sum_, agreed in zip(promised, self._agreed, strict=True))
        return off / self._total if self._total else 0.0

    def _fitted(self) -> CalibrationCurve:
        """Two knots per bin, its edges: within a bin a surer span is imagined to agree more often."""
        raw, values, weights = [], [], []
        for place, edges in enumerate(pairwise(EDGES)):
            seen = self._seen[place]
            for edge in edges:
                raw.append(edge)
                values.append((PRIOR * min(edge, SUREST) + self._agreed[place]) / (PRIOR + seen))
                weights.append(RESISTANCE + seen)
        return CalibrationCurve(tuple(raw), tuple(isotonic(values, weights)))

    def _forget(self) -> None:
        for part in (self._seen, self._agreed, self._raw, self._stated):
            part[:] = [count / 2 for count in part]
        self._total = sum(self._seen)


def isotonic(values: Iterable[float], weights: Iterable[float]) -> list[float]:
    """The rising sequence nearest to `values` in weighted squares: adjacent violators become their mean."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        block = (value, weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            block = _pooled(blocks.pop(), block)
        blocks.append(block)
    return [value for value, _, length in blocks for _ in range(length)]


def _pooled(one: tuple[float, float, int], other: tuple[float, float, int]) -> tuple[float, float, int]:
    weight = one[1] + other[1]
    mean = other[0] + (one[0] - other[0]) * (one[1] / weight)
    return mean, weight, one[2] + other[2]


def _clipped(confidence: float) -> float:
    """Within [0, 1]; what is no number is no confidence."""
    return min(1.0, confidence) if confidence > 0.0 else 0.0
