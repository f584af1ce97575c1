"""What generations come to in numbers: what the stages counted, and what the client's lane timed.

Names are those of the command line's `--json`. It measures nothing itself.
"""

from collections import deque
from collections.abc import Mapping
from itertools import zip_longest

import msgspec
from msgspec import Struct

from grimboost import messages as m
from grimboost.actor import ActorStatistics
from grimboost.certifier import Account
from grimboost.client_lane import ClientLane
from grimboost.histogram import Histogram
from grimboost.parameters import Parameters
from grimboost.spread import Spread, even_spread, spread
from grimboost.stages.certificate import CertificateReport
from grimboost.worker import WorkerStatistics


class Statistics(Struct, frozen=True):
    """Counts and seconds of one generation.

    `mean_accepted_tokens` is drafted tokens accepted per block. `tokens_per_second` is new tokens over decode
    seconds; decoding begins when the prompt is in the cache. `passes_per_1000_tokens` is target passes.

    Of streaming mode: released tokens and bytes were shown before the target had checked them. `coverage` is the
    share of output tokens that were, and stand. `audited_tokens` counts those that the target has checked since.
    `slip_positions` are indices into the result's `token_ids`, ascending; one may equal their number, where a slip
    is in the head of a token that a stop string cut, or what it stands for was taken back. `retracted_share` is
    bytes taken back per byte of the output (normalized erasure). `commit_seconds` is how long shown bytes waited
    for the target. Spreads are None where nothing was measured.
    """

    prompt_tokens: int
    new_tokens: int
    new_bytes: int
    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float
    time_to_first_byte_seconds: float | None
    target_passes: int
    target_rows: int
    drafted_tokens: int
    drafted_bytes: int
    accepted_tokens: int
    accepted_bytes: int
    mean_accepted_tokens: float
    mismatches: int
    realignments: int
    ties_rechecked: int
    passes_per_1000_tokens: float = 0.0
    rows_per_1000_tokens: float = 0.0
    released_tokens: int = 0
    released_bytes: int = 0
    coverage: float = 0.0
    audited_tokens: int = 0
    slip_tokens: int = 0
    slip_bytes: int = 0
    slip_positions: tuple[int, ...] = ()
    slips: tuple[m.Slip, ...] = ()
    retracted_bytes: int = 0
    retracted_share: float = 0.0
    doubt_tokens: int = 0
    takeover_tokens: int = 0
    takeovers: int = 0
    gap_seconds: Spread | None = None
    audit_lag_bytes: Spread | None = None
    commit_seconds: Spread | None = None
    calibration_error: float | None = None
    certificate: CertificateReport | None = None
    release_reason: str | None = None


def release_reason(params: Parameters, certificate: CertificateReport | None) -> str | None:
    """In words, why bytes may or may not be shown unchecked; None in strict mode."""
    if params.mode == "strict":
        return None
    if certificate is None:
        return "nothing is shown unchecked while the target samples"
    if params.release == "always":
        return "without a certificate, for an experiment"
    return "nothing may be" if params.release == "never" else f"certificate {certificate.reason}"


def statistics(lane: ClientLane, counts: m.Counts, account: Account | None, params: Parameters) -> Statistics:
    """As far as the generation has come."""
    ended = lane.ended or lane.now()
    prefilled = lane.prefilled or ended
    decode = ended - prefilled
    c = counts
    certificate = account.report if account else None
    per_thousand = 1000.0 / c.new_tokens if c.new_tokens else 0.0
    return Statistics(
        prompt_tokens=c.prompt_tokens,
        new_tokens=c.new_tokens,
        new_bytes=len(lane.data),
        prefill_seconds=prefilled - lane.begun,
        decode_seconds=decode,
        tokens_per_second=c.new_tokens / decode if decode > 0 else 0.0,
        time_to_first_byte_seconds=lane.first_byte - lane.begun if lane.first_byte else None,
        target_passes=c.target_passes,
        target_rows=c.target_rows,
        drafted_tokens=c.drafted_tokens,
        drafted_bytes=c.drafted_bytes,
        accepted_tokens=c.accepted_tokens,
        accepted_bytes=c.accepted_bytes,
        mean_accepted_tokens=c.accepted_tokens / c.blocks if c.blocks else 0.0,
        mismatches=c.mismatches,
        realignments=c.realignments,
        ties_rechecked=c.ties_rechecked,
        passes_per_1000_tokens=c.target_passes * per_thousand,
        rows_per_1000_tokens=c.target_rows * per_thousand,
        released_tokens=c.released_tokens,
        released_bytes=c.released_bytes,
        coverage=c.coverage,
        audited_tokens=c.audited_tokens,
        slip_tokens=c.slip_tokens,
        slip_bytes=c.slip_bytes,
        slip_positions=tuple(slip.position for slip in c.slips),
        slips=c.slips,
        retracted_bytes=c.retracted_bytes,
        retracted_share=c.retracted_bytes / len(lane.data) if lane.data else 0.0,
        doubt_tokens=c.doubt_tokens,
        takeover_tokens=c.takeover_tokens,
        takeovers=c.takeovers,
        gap_seconds=lane.gap_seconds,
        audit_lag_bytes=lane.audit_lag_bytes,
        commit_seconds=lane.commit_seconds,
        calibration_error=account.calibration_error if account else None,
        certificate=certificate,
        release_reason=release_reason(params, certificate),
    )


class Totals(Struct, frozen=True):
    """Over all generations that have ended; names as in `Statistics`."""

    generations: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    new_bytes: int = 0
    target_passes: int = 0
    target_rows: int = 0
    drafted_blocks: int = 0
    drafted_tokens: int = 0
    drafted_bytes: int = 0
    accepted_tokens: int = 0
    accepted_bytes: int = 0
    accepted_by_position: tuple[int, ...] = ()
    mismatches: int = 0
    released_tokens: int = 0
    released_bytes: int = 0
    kept_tokens: int = 0
    audited_tokens: int = 0
    slip_tokens: int = 0
    slip_bytes: int = 0
    retracted_bytes: int = 0
    doubt_tokens: int = 0
    takeover_tokens: int = 0
    takeovers: int = 0

    @property
    def coverage(self) -> float:
        """Share of the output's tokens that were shown before the target had checked them, and stand."""
        return self.kept_tokens / self.new_tokens if self.new_tokens else 0.0

    def with_generation(self, counts: m.Counts) -> "Totals":
        """One generation more."""
        mine = msgspec.structs.asdict(self)
        places = zip_longest(mine.pop("accepted_by_position"), counts.accepted_by_position, fillvalue=0)
        sums = {name: value + getattr(counts, name, 1) for name, value in mine.items()}
        return Totals(accepted_by_position=tuple(one + other for one, other in places), **sums)


class EngineStatistics(Struct, frozen=True):
    """A snapshot: generations that run, slots that they hold, work done by each worker, what ended ones came to.

    `stages` are sums over all generations, ended ones and those that run. `finished` counts ended ones by
    reason. The histograms count since the engine began: until the first byte, between two chunks, whole
    generations. The spreads are over what was timed last, `RECENT` values of each at most.
    """

    generations: int
    open_slots: int
    target: WorkerStatistics
    drafter: WorkerStatistics | None
    totals: Totals = Totals()
    stages: Mapping[str, ActorStatistics] = {}
    finished: Mapping[m.FinishReason, int] = {}
    time_to_first_token_seconds: Histogram = Histogram()
    inter_token_seconds: Histogram = Histogram()
    request_seconds: Histogram = Histogram()
    time_to_first_byte_seconds: Spread | None = None
    gap_seconds: Spread | None = None
    audit_lag_bytes: Spread | None = None
    commit_seconds: Spread | None = None


RECENT = 10_000


class Recent:
    """What the latest generations timed, over all of them."""

    def __init__(self) -> None:
        self._first, self._gaps = deque[float](maxlen=RECENT), deque[float](maxlen=RECENT)
        self._lags, self._waits = deque[int](maxlen=RECENT), deque[tuple[float, float]](maxlen=RECENT)

    def add(self, lane: ClientLane) -> None:
        """A generation has ended."""
        if lane.first_byte is not None:
            self._first.append(lane.first_byte - lane.begun)
        self._gaps.extend(lane.gaps)
        self._lags.extend(lane.lags)
        self._waits.extend(lane.waits)

    def spreads(self) -> dict[str, Spread | None]:
        """By the names of `EngineStatistics`. A few milliseconds. Copies first: another thread may ask."""
        return {
            "time_to_first_byte_seconds": even_spread(list(self._first)),
            "gap_seconds": even_spread(list(self._gaps)),
            "audit_lag_bytes": even_spread(list(self._lags)),
            "commit_seconds": spread(list(self._waits)),
        }
