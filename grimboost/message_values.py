"""Values inside messages: enums and small frozen structs. They follow the messages' rules of evolution.

Others use them as part of `grimboost.messages`. They know nothing of who sends what.
"""

from enum import StrEnum

from msgspec import Struct


class FinishReason(StrEnum):
    """Why a generation ended. On the same token `stop` wins over `length`."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Outcome(StrEnum):
    """What one target pass said about the candidate."""

    AGREED = "agreed"
    """No byte of the candidate was contradicted, and the spans that are left still fit."""
    REALIGNED = "realigned"
    """Same bytes, other segmentation: no mismatch, but the spans that are left must be cut anew."""
    MISMATCH = "mismatch"
    """The target chose other bytes; everything from there on is invalid."""


class Decision(StrEnum):
    """What the gate says of a span."""

    VERIFY = "verify"
    RELEASE = "release"


class PathToken(Struct, frozen=True, array_like=True, gc=False):
    """One target token of the committed path and its bytes (empty for a control token)."""

    id: int
    data: bytes


class Choice(Struct, frozen=True, array_like=True, gc=False):
    """What the target chose after one row: id, bytes, and the margin to the runner-up in logits.

    A margin of `inf` means that there was no competitor.
    """

    id: int
    data: bytes
    margin: float


class DraftToken(Struct, frozen=True, array_like=True, gc=False):
    """Draft statistics of one drafter token: its length in bytes and how sure the drafter is of it.

    Statistics that a drafter cannot give are None. Confidence is in [0, 1].
    """

    length: int
    confidence: float
    top1: float | None = None
    margin: float | None = None
    entropy: float | None = None


class Span(Struct, frozen=True, array_like=True, gc=False):
    """Candidate bytes of one presumptive target token, with the minimum confidence over its bytes.

    Not `whole`: it ends where the drafter stopped for want of room, perhaps inside a token. `held`: a plug-in's
    rule holds it back at the gate, so that what the target says of it is no evidence about spans that are shown.
    """

    id: int
    data: bytes
    confidence: float
    whole: bool = True
    held: bool = False


class GatedSpan(Struct, frozen=True, array_like=True, gc=False):
    """A span with the gate's decision, its reason, and the calibrated confidence that it decided on."""

    span: Span
    decision: Decision
    reason: str
    confidence: float = 0.0


class Slip(Struct, frozen=True, array_like=True, gc=False):
    """A shown token that the target would not have chosen: place in the output's ids, offset and bytes as shown,
    the target's choice in its place (no bytes for a control token), and the drafter's confidence in it."""

    position: int
    offset: int
    data: bytes
    chosen: bytes
    confidence: float


class JudgedSpan(Struct, frozen=True, array_like=True, gc=False):
    """A drafted span that the target has judged: its confidence, whether it was shown before, whether wrong."""

    confidence: float
    released: bool
    slip: bool


class Counts(Struct, frozen=True, gc=False):
    """What the cascade counted of one generation; no times, those belong to the shell.

    Released are tokens and bytes that were shown before the target had checked them; kept are those of them that
    stand in the output, audited those that the target has checked. Doubt and takeover: output tokens that
    became final in these states. Of `drafted_blocks`, blocks with a draft in them, `accepted_by_position[i]` had
    at least i + 1 accepted tokens.
    """

    prompt_tokens: int = 0
    new_tokens: int = 0
    new_bytes: int = 0
    target_passes: int = 0
    target_rows: int = 0
    blocks: int = 0
    drafted_tokens: int = 0
    drafted_bytes: int = 0
    accepted_tokens: int = 0
    accepted_bytes: int = 0
    mismatches: int = 0
    realignments: int = 0
    ties_rechecked: int = 0
    released_tokens: int = 0
    released_bytes: int = 0
    kept_tokens: int = 0
    audited_tokens: int = 0
    slips: tuple[Slip, ...] = ()
    retracted_bytes: int = 0
    doubt_tokens: int = 0
    takeover_tokens: int = 0
    takeovers: int = 0
    drafted_blocks: int = 0
    accepted_by_position: tuple[int, ...] = ()

    @property
    def coverage(self) -> float:
        """Share of the output's tokens that were shown before the target had checked them, and stand."""
        return self.kept_tokens / self.new_tokens if self.new_tokens else 0.0

    @property
    def slip_tokens(self) -> int:
        """Tokens that slipped."""
        return len(self.slips)

    @property
    def slip_bytes(self) -> int:
        """Their bytes, as shown."""
        return sum(len(slip.data) for slip in self.slips)
