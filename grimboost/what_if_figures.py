"""What a run came to, and how far a log can tell: the figures of what-if. It runs nothing itself."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from grimboost import messages as m
from grimboost.client_lane import ClientLane
from grimboost.counterfactual import Counterfactual, Mark
from grimboost.mailbox import Mailbox
from grimboost.spread import Spread
from grimboost.stages.calibration import CalibrationCurve
from grimboost.wiring import REVEALER


class Figures(Struct, frozen=True):
    """A run up to a commit; names as in `Statistics`. `seconds`: when that was, since the start.

    Times of a run that left the record are estimates, as if its stages took no time. Released tokens are counted
    when the target has said something of them, released bytes when they are shown.
    """

    new_bytes: int = 0
    new_tokens: int = 0
    seconds: float = 0.0
    coverage: float = 0.0
    released_tokens: int = 0
    released_bytes: int = 0
    audited_tokens: int = 0
    slip_tokens: int = 0
    slips: tuple[m.Slip, ...] = ()
    retracted_bytes: int = 0
    doubt_tokens: int = 0
    takeover_tokens: int = 0
    takeovers: int = 0
    target_passes: int = 0
    target_rows: int = 0
    passes_per_1000_tokens: float = 0.0
    time_to_first_byte_seconds: float | None = None
    commit_seconds: Spread | None = None
    gap_seconds: Spread | None = None

    @property
    def slip_rate(self) -> float | None:
        """Slips per released token; None where nothing was released."""
        return self.slip_tokens / self.released_tokens if self.released_tokens else None


class JudgedShare(Struct, frozen=True):
    """A fact about the spans that the target judged in the recorded run: how many were at least so sure, as
    calibrated, and how many of these were not the target's."""

    threshold: float
    spans: int
    slips: int
    share: float
    """Of all judged spans."""

    @property
    def slip_rate(self) -> float | None:
        """Slips per span; None without spans."""
        return self.slips / self.spans if self.spans else None


def figures(run: Counterfactual, mark: Mark | None) -> Figures:
    """Of a run up to one of its marks; None is before the first one."""
    if mark is None:
        return Figures()
    c, lane = mark.counts, _watched(run, mark)
    return Figures(
        new_bytes=c.new_bytes,
        new_tokens=c.new_tokens,
        seconds=mark.seconds,
        coverage=c.coverage,
        released_tokens=c.released_tokens,
        released_bytes=c.released_bytes,
        audited_tokens=c.audited_tokens,
        slip_tokens=c.slip_tokens,
        slips=c.slips,
        retracted_bytes=c.retracted_bytes,
        doubt_tokens=c.doubt_tokens,
        takeover_tokens=c.takeover_tokens,
        takeovers=c.takeovers,
        target_passes=c.target_passes,
        target_rows=c.target_rows,
        passes_per_1000_tokens=1000.0 * c.target_passes / c.new_tokens if c.new_tokens else 0.0,
        time_to_first_byte_seconds=lane.first_byte,
        commit_seconds=lane.commit_seconds,
        gap_seconds=lane.gap_seconds,
    )


def latest(marks: Sequence[Mark], new_bytes: int) -> Mark | None:
    """The last one that lies within so many output bytes."""
    return next((mark for mark in reversed(marks) if mark.counts.new_bytes <= new_bytes), None)


class _Client(ClientLane):
    """Reads events at given times."""

    def __init__(self) -> None:
        super().__init__(Mailbox(0))
        self.begun = 0.0

    def read(self, event: m.ClientEvent, seconds: float) -> None:
        self._note(event, seconds)


def _watched(run: Counterfactual, mark: Mark) -> ClientLane:
    """What a client had seen when the mark's commit, and nothing later, had reached it."""
    client, commits = _Client(), sum(one.steps <= mark.steps for one in run.marks)
    for step in run.steps:
        if step.stage == REVEALER:
            for event in step.answers:
                client.read(event, step.seconds)  # type: ignore[arg-type]
            commits -= isinstance(step.message, m.Commit)
            if not commits:
                break
    return client


def judged(
    audited: Iterable[m.Audited], curve: CalibrationCurve, thresholds: Iterable[float]
) -> list[JudgedShare]:
    """Facts at each of the thresholds."""
    spans = [(curve.of(span.confidence), span.slip) for message in audited for span in message.spans]
    shares = []
    for threshold in thresholds:
        slips = [slip for confidence, slip in spans if confidence >= threshold]
        share = len(slips) / len(spans) if spans else 0.0
        shares.append(JudgedShare(threshold, len(slips), sum(slips), share))
    return shares
