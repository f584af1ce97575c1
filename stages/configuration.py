"""One small frozen struct per stage. Unknown fields are rejected; `auto` has been resolved before.

They are written to the log's header, so that a replay builds the same stages.
"""

from bisect import bisect_left

from msgspec import Struct

from grimboost.stages.calibration import CalibrationCurve


class CostCurve(Struct, frozen=True, forbid_unknown_fields=True):
    """Measured milliseconds of one target pass over `rows[i]` rows; `rows` ascend and start at 1."""

    rows: tuple[int, ...] = (1, 2, 4, 8, 16)
    milliseconds: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 1.0)

    def cost(self, rows: int) -> float:
        """Milliseconds of a pass over `rows` rows: linear between measured points and beyond the last."""
        if rows <= self.rows[0] or len(self.rows) == 1:
            return self.milliseconds[0]
        upper = min(bisect_left(self.rows, rows), len(self.rows) - 1)
        low, high = self.rows[upper - 1], self.rows[upper]
        low_ms, high_ms = self.milliseconds[upper - 1], self.milliseconds[upper]
        return low_ms + (high_ms - low_ms) * (rows - low) / (high - low)


class DrafterConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """`max_ahead_bytes` is the credit: candidate bytes that may stand beyond the committed frontier.

    `break_even`: share of drafts that have to begin right for asking to pay; 0 asks always.
    """

    enabled: bool = True
    max_ahead_bytes: int = 160
    minimum_request_bytes: int = 24
    break_even: float = 0.0
    request_bytes: int | None = None
    """At most so many in the first request behind a commit; None is all that the credit allows."""
    most_request_bytes: int = 1 << 30
    """Requests double from there on, up to this, until the next commit."""
    running_on: bool = False
    """Whether it asks for more as soon as it has an answer, or only when something was committed."""


class GateConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Strict mode verifies every span. Streaming mode releases those of at least `threshold` calibrated
    confidence, where nothing forbids it.

    `release`: never, certified (while `certified` is true), or always. `greedy` is false where the target samples:
    then a draft is no sample, and nothing is released. A certificate that opens later sets the threshold, not
    below `floor`.
    """

    mode: str = "strict"
    release: str = "never"
    certified: bool = False
    threshold: float = 1.0
    floor: float = 0.0
    greedy: bool = True
    anchor_bytes: int = 512
    max_unverified_bytes: int = 192
    max_unverified_tokens: int = 64
    calibration: CalibrationCurve = CalibrationCurve()


class VerifierConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Facts of the target that the plan depends on, and limits of one pass.

    `tie_bound` is in logits: a margin below it is re-checked one row at a time where the target is not
    row-invariant. `patience_seconds` is how long a pass waits for the drafter's answer, `draft_milliseconds` what
    waiting for one usually costs.
    """

    curve: CostCurve = CostCurve()
    row_invariant: bool = True
    tie_bound: float = 0.0
    max_rows: int = 32
    prefill_rows: int = 512
    patience_seconds: float = 0.05
    draft_milliseconds: float = 0.0
    drafting: bool = True
    max_new_tokens: int = 512
    streaming: bool = False
    enough_spans: int = 16
    """A drafter that has more to say is not waited for where so many spans wait already."""
    shown_stands: bool = False
    """Streaming to a client that cannot take back: what was shown is part of the path, right or wrong."""


class TrustConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """After a slip nothing is released for `doubt_bytes`, twice as many after each failed repair; after
    `max_repairs` of them the target makes `takeover_tokens` by itself."""

    doubt_bytes: int = 32
    max_repairs: int = 2
    takeover_tokens: int = 8


class CascadeConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The one cut point: budgets, stop strings and end-of-sequence ids. None is no limit."""

    context_limit: int
    max_new_tokens: int = 512
    max_new_bytes: int | None = None
    stop: tuple[bytes, ...] = ()
    end_ids: tuple[int, ...] = ()
    streaming: bool = False
    shown_stands: bool = False
    """As for the verifier."""
    open_end: bool = False
    """Do not wait for the audit of the last bytes."""
    trust: TrustConfig = TrustConfig()


class RevealerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """`streaming`: say what is committed and what slipped; `revisable`: and take back what the target refused."""

    streaming: bool = False
    revisable: bool = False


class StageConfigs(Struct, frozen=True, forbid_unknown_fields=True):
    """The five stages' configurations of one generation, as resolved."""

    cascade: CascadeConfig
    drafter: DrafterConfig = DrafterConfig()
    gate: GateConfig = GateConfig()
    verifier: VerifierConfig = VerifierConfig()
    revealer: RevealerConfig = RevealerConfig()
