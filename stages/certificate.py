"""The certificate: may drafted spans be shown unchecked?

Claim: among spans of a calibrated confidence of at least `threshold`, slips are rarer than `epsilon`. When the
certificate opens, the claim holds with confidence 1 - `delta`, however often and whenever somebody looks
(`e_process.py` says why, and what is claimed where rates vary).

*Opening.* Thresholds are tested in a fixed sequence, strictest first, and one counts only when all stricter ones
have passed: the first wrong one in the sequence has to pass before any other wrong one counts, so searching
spends nothing (Learn then Test, Angelopoulos et al. 2021, arXiv:2110.01052). A pass is final until it closes.
A laxer threshold also has to have seen spans that no stricter one has (`own_needed`): else it would pass on the
others' spans, and open for spans that nobody has seen.

*Closing.* While it is open, released spans are watched for a rate above epsilon. Closing drops the evidence, and
each later opening is a claim of its own at 1 - delta. (Where the rate is epsilon or more all the time, there is a
first opening with probability delta at most, and a second, which needs the first, with delta squared.)

*Answers.* Of answers that showed spans unchecked, each is one bounded loss: did any of those slip? The bound on
their share holds also where slips come in clusters, about which the first claim says little: a run of clean
spans is evidence about spans like them, not about the one answer in a hundred that goes wrong from end to end.
It goes on over closings.

It does not know texts, models, generations under way, files or clocks, nor how confidence was calibrated; that
must have been done before the outcome was known.
"""

from itertools import pairwise, takewhile
from math import ceil, inf, log

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from grimboost.errors import MisuseError
from grimboost.stages.e_process import WATCHED, Watch, log_e_value, rate_upper, spans_needed, wilson_upper

LAXNESS = (1, 2, 5, 10, 20, 50, 100, 200)
"""Thresholds by default: a chance of slip of so many epsilon. Spans that keep to epsilon one by one come first:
laxer thresholds pass only where most spans are better than the threshold says. A stricter start would wait for
confidence that takes longer to earn than the certificate; a laxer one never opens where spans at 0.997 are common
and fail as often as they say."""

SUREST = 0.9999
"""No stricter threshold by default: calibration does not tell more apart."""


class Terms(Struct, frozen=True, forbid_unknown_fields=True):
    """What is claimed. `thresholds` are calibrated confidences, strictest first; `LAXNESS` fills in for none."""

    epsilon: float = 0.001
    delta: float = 0.05
    thresholds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.thresholds:
            grid = (round(1.0 - self.epsilon * factor, 12) for factor in LAXNESS)
            force_setattr(self, "thresholds", tuple(one for one in grid if 0.5 <= one <= SUREST))

    def check(self) -> None:
        """Raise `MisuseError` with the value that cannot be."""
        if not 1e-6 <= self.epsilon <= 0.5:
            raise MisuseError(f"epsilon has to be between 0.000001 and 0.5, not {self.epsilon}")
        if not 1e-9 <= self.delta <= 0.5:
            raise MisuseError(f"delta has to be between 0.000000001 and 0.5, not {self.delta}")
        grid = self.thresholds
        falling = all(strict > lax for strict, lax in pairwise(grid))
        if not grid or not falling or not all(0.0 < one <= 1.0 for one in grid):
            raise MisuseError(f"thresholds have to fall, from at most 1 to above 0, not {grid}")


class ThresholdCounts(Struct, frozen=True, forbid_unknown_fields=True):
    """Audited spans of at least this calibrated confidence since the evidence began, and whether that passed."""

    threshold: float
    spans: int = 0
    slips: int = 0
    passed: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.slips <= self.spans:
            raise ValueError("there are at most as many slips as spans")


class CertificateState(Struct, frozen=True, forbid_unknown_fields=True):
    """All that a certificate has to keep.

    `watch` holds logarithms of the wagers against the released spans as they were after the last slip, and
    `clean` the released spans since. `released` and what follows counts over all openings.
    """

    rows: tuple[ThresholdCounts, ...] = ()
    watch: tuple[float, ...] = ()
    clean: int = 0
    released: int = 0
    released_slips: int = 0
    answers: int = 0
    answers_with_slip: int = 0
    openings: int = 0
    closings: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.released_slips <= self.released or not 0 <= self.answers_with_slip <= self.answers:
            raise ValueError("there are at most as many slips as spans or answers")
        if not 0 <= self.closings <= self.openings <= self.closings + 1 or self.clean < 0:
            raise ValueError("a certificate opens and closes in turn")
        if len(self.watch) not in (0, len(WATCHED)) or not all(-inf < level < inf for level in self.watch):
            raise ValueError(f"a certificate has {len(WATCHED)} wagers on its released spans")


class ThresholdReport(Struct, frozen=True):
    """One threshold for people. `upper` bounds its slip rate at any moment. `missing`: clean spans until it passes
    by itself, 0 once it has; `own_missing`: spans that stricter ones do not hold until it may count."""

    threshold: float
    spans: int
    slips: int
    log10_e_value: float
    upper: float
    passed: bool
    missing: int
    own_missing: int


class CertificateReport(Struct, frozen=True):
    """What a certificate says now. `spans` to `wilson_upper` belong to the decisive threshold: the laxest one
    that counts, or the strictest while closed. `wilson_upper` is no part of any claim: it holds for one look."""

    open: bool
    threshold: float | None
    epsilon: float
    delta: float
    spans: int
    slips: int
    e_value: float
    log10_e_value: float
    upper: float
    wilson_upper: float
    released: int
    released_slips: int
    answers: int
    answers_with_slip: int
    answers_upper: float
    openings: int
    closings: int
    reason: str
    thresholds: tuple[ThresholdReport, ...]


class Certificate:
    """The present evidence under some terms, and what follows from it."""

    def __init__(self, terms: Terms, state: CertificateState = CertificateState()) -> None:  # noqa: B008 (frozen)
        """Raises `MisuseError` for terms that cannot be, and for a state that is not of these terms."""
        terms.check()
        self.terms = terms
        self._counts = replace(state, rows=(), watch=(), clean=0)
        rows = state.rows or tuple(map(ThresholdCounts, terms.thresholds))
        self._spans = [row.spans for row in rows]
        self._slips = [row.slips for row in rows]
        self._passed = [row.passed for row in rows]
        self._own_needed = [0, *map(own_needed, terms.thresholds[1:])]
        self._watch = Watch(terms.epsilon, state.watch, state.clean)
        self._check(rows)

    @property
    def threshold(self) -> float | None:
        """Spans of at least this calibrated confidence may be released; None while closed."""
        return self.terms.thresholds[self._decisive] if self.opened else None

    @property
    def opened(self) -> bool:
        """Whether anything may be released."""
        return self._passed[0]

    @property
    def state(self) -> CertificateState:
        """All there is to keep."""
        numbers = zip(self.terms.thresholds, self._spans, self._slips, self._passed, strict=True)
        rows = tuple(ThresholdCounts(*row) for row in numbers)
        return replace(self._counts, rows=rows, watch=self._watch.levels, clean=self._watch.clean)

    def observe(self, confidence: float, slip: bool, released: bool) -> None:
        """One audited span, with the calibrated confidence it had before the audit.

        Equal to computing every e-value after every span: e-values rise with each clean span and fall with each
        slip, so a threshold passes exactly when it has the spans needed for its slips (`spans_needed`).
        """
        was_open = self.opened
        for place, threshold in enumerate(self.terms.thresholds):
            if confidence >= threshold:
                self._count(place, slip)
        if released:
            self._released(slip, was_open)
        if self.opened and not was_open:
            self._counts = replace(self._counts, openings=self._counts.openings + 1)

    def end_generation(self, slip: bool, whole: bool) -> None:
        """A generation that showed spans unchecked is over. `slip`: one of them slipped.

        Without a slip it counts only if it was audited to its end (`whole`): leaving others out is safe.
        """
        if slip or whole:
            c = self._counts
            self._counts = replace(c, answers=c.answers + 1, answers_with_slip=c.answers_with_slip + slip)

    def report(self) -> CertificateReport:
        """The present state, for people. About ten milliseconds: bounds are searched."""
        rows = tuple(self._row(place) for place in range(len(self._spans)))
        row = rows[self._decisive]
        c, delta = self._counts, self.terms.delta
        return CertificateReport(
            open=self.opened,
            threshold=self.threshold,
            epsilon=self.terms.epsilon,
            delta=delta,
            spans=row.spans,
            slips=row.slips,
            e_value=10.0 ** min(row.log10_e_value, 300.0),
            log10_e_value=row.log10_e_value,
            upper=row.upper,
            wilson_upper=wilson_upper(row.spans, row.slips, delta),
            released=c.released,
            released_slips=c.released_slips,
            answers=c.answers,
            answers_with_slip=c.answers_with_slip,
            answers_upper=rate_upper(c.answers, c.answers_with_slip, delta),
            openings=c.openings,
            closings=c.closings,
            reason=self._reason(row),
            thresholds=rows,
        )

    @property
    def _decisive(self) -> int:
        """The laxest threshold that counts; the strictest while none does."""
        prefix = takewhile(self._passed.__getitem__, range(len(self._passed)))
        return max((place for place in prefix if not self._own_missing(place)), default=0)

    def _own_missing(self, place: int) -> int:
        own = self._spans[place] - self._spans[place - 1] if place else 0
        return max(0, self._own_needed[place] - own)

    def _count(self, place: int, slip: bool) -> None:
        self._spans[place] += 1
        self._slips[place] += slip
        if not self._passed[place]:
            self._passed[place] = self._passes(self._spans[place], self._slips[place])

    def _passes(self, spans: int, slips: int) -> bool:
        """Whether the e-value is at least 1/delta. Where slips are not rarer than epsilon it is at most 1."""
        terms = self.terms
        return slips < terms.epsilon * spans and spans >= spans_needed(terms.epsilon, terms.delta, slips)

    def _released(self, slip: bool, was_open: bool) -> None:
        c = self._counts
        self._counts = replace(c, released=c.released + 1, released_slips=c.released_slips + slip)
        if was_open and self._watch.observe(slip):
            self._close()

    def _close(self) -> None:
        for part in (self._spans, self._slips):
            part[:] = [0] * len(part)
        self._passed[:] = [False] * len(self._passed)
        self._watch = Watch(self.terms.epsilon)
        self._counts = replace(self._counts, closings=self._counts.closings + 1)

    def _row(self, place: int) -> ThresholdReport:
        spans, slips, passed = self._spans[place], self._slips[place], self._passed[place]
        terms = self.terms
        return ThresholdReport(
            threshold=terms.thresholds[place],
            spans=spans,
            slips=slips,
            log10_e_value=log_e_value(terms.epsilon, spans, slips) / log(10.0),
            upper=rate_upper(spans, slips, terms.delta),
            passed=passed,
            missing=0 if passed else spans_needed(terms.epsilon, terms.delta, slips) - spans,
            own_missing=self._own_missing(place),
        )

    def _reason(self, row: ThresholdReport) -> str:
        rate = f"{100 * self.terms.epsilon:g}%"
        slips = f"{_counted(row.slips, 'slip')} in " if row.spans else ""
        seen = f"{slips}{_counted(row.spans, 'audited span')} of confidence {row.threshold:g} or more"
        if self.opened:
            return f"open: {seen}; this showed a slip rate below {rate}, and released spans have not shown more"
        before = f"released spans slipped more often than {rate}; since then " if self._counts.closings else ""
        return f"closed: {before}{seen}; about {row.missing:,} more without a slip would show a rate below {rate}"

    def _check(self, rows: tuple[ThresholdCounts, ...]) -> None:
        if tuple(row.threshold for row in rows) != self.terms.thresholds:
            raise MisuseError(f"this evidence is not for the thresholds {self.terms.thresholds}")
        least = spans_needed(self.terms.epsilon, self.terms.delta, 0)
        if any(row.passed and row.spans < least for row in rows):
            raise MisuseError(f"a threshold passed with fewer than {least} spans in this evidence; none can")
        if self.opened != (self._counts.openings > self._counts.closings):
            raise MisuseError("this evidence is open in one place and closed in another")


def own_needed(threshold: float) -> int:
    """Spans between a threshold and the next stricter one before it may count: as many as would hold one slip,
    were they no better than it says."""
    return ceil(1.0 / (1.0 - threshold) - 1e-6)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}" if number else f"no {noun}"
