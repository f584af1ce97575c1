"""From what a caller asked and what the target states to the five stages' configurations: one pure function."""

from msgspec import Struct
from msgspec.structs import replace

from grimboost.adapters.target import TargetFacts
from grimboost.parameters import DEFAULT_THRESHOLD, Parameters
from grimboost.stages.calibration import CalibrationCurve
from grimboost.stages.configuration import (
    CascadeConfig,
    CostCurve,
    DrafterConfig,
    GateConfig,
    RevealerConfig,
    StageConfigs,
    TrustConfig,
    VerifierConfig,
)
from grimboost.stages.sampling_rule import SamplingRule

MAX_BLOCK_ROWS = 32
"""Row-invariance is stated for passes of up to so many rows."""

DRAFT_MILLISECONDS = 1.2
"""What waiting for a draft costs a pass: the drafter itself and two changes of threads (measured 0.7 to 2)."""

STREAMING_REQUEST = 16
"""Bytes of one request in streaming mode: three or four tokens. The first is shown when all are drafted."""

PATIENCE = 0.5
"""A pass waits for the drafter at most this share of what a plain pass takes."""


class Clearance(Struct, frozen=True):
    """What is known of a drafter when a generation begins: the certificate's threshold, None while it is closed,
    and how the drafter's confidences are to be read."""

    threshold: float | None = None
    calibration: CalibrationCurve = CalibrationCurve()


def resolve_stages(
    facts: TargetFacts,
    curve: CostCurve,
    params: Parameters,
    prompt_tokens: int,
    end_ids: tuple[int, ...],
    drafting: bool,
    clearance: Clearance | None = None,
) -> tuple[StageConfigs, SamplingRule]:
    """Configurations of one generation and its rule of choice. `params` are checked before.

    `clearance`: what the certificate and the calibration say now, in streaming mode.
    """
    streaming, stands = params.mode == "streaming", params.on_slip == "continue"
    budget = params.max_new_tokens or 0
    more = max(0, min(budget, facts.context_limit - prompt_tokens))
    cascade = CascadeConfig(
        context_limit=facts.context_limit,
        max_new_tokens=budget,
        max_new_bytes=params.max_new_bytes,
        stop=params.stop_bytes,
        end_ids=() if params.ignore_eos else end_ids,
        streaming=streaming,
        shown_stands=streaming and stands,
        open_end=streaming and params.finish == "open",
        trust=TrustConfig(params.doubt_bytes, params.max_repairs, params.takeover_tokens),
    )
    verifier = VerifierConfig(
        curve=curve,
        row_invariant=facts.row_invariant,
        tie_bound=facts.tie_bound,
        max_rows=min(curve.rows[-1], MAX_BLOCK_ROWS),
        draft_milliseconds=DRAFT_MILLISECONDS,
        patience_seconds=min(0.25, max(0.02, PATIENCE * curve.cost(1) / 1000.0)),
        drafting=drafting,
        max_new_tokens=more,
        streaming=streaming,
        shown_stands=streaming and stands,
    )
    rule = params.rule(end_ids, prompt_tokens)
    drafter = DrafterConfig(enabled=drafting, break_even=_break_even(curve))
    gate = _gate(params, rule, clearance) if streaming else GateConfig()
    if gate.release == "always" or gate.certified:  # else drafts serve the verifier only, as in strict mode
        room = params.max_unverified_bytes + STREAMING_REQUEST
        drafter = replace(
            drafter,
            running_on=True,
            request_bytes=STREAMING_REQUEST,
            most_request_bytes=2 * STREAMING_REQUEST,
            minimum_request_bytes=STREAMING_REQUEST // 2,
            max_ahead_bytes=room,
        )
    configs = StageConfigs(
        cascade=cascade,
        drafter=drafter,
        gate=gate,
        verifier=verifier,
        revealer=RevealerConfig(streaming=streaming, revisable=streaming and not stands),
    )
    return configs, rule


def _gate(params: Parameters, rule: SamplingRule, clearance: Clearance | None) -> GateConfig:
    """The caller's threshold holds in any case; the certificate's only where it is asked, and only if higher."""
    clearance = clearance or Clearance()
    certified = clearance.threshold is not None and params.release == "certified"
    own = DEFAULT_THRESHOLD if params.release == "always" else 0.0
    threshold = own if params.threshold is None else params.threshold
    return GateConfig(
        mode="streaming",
        release=params.release,
        certified=certified,
        floor=threshold,
        threshold=max(threshold, clearance.threshold or 0.0) if certified else threshold,
        greedy=rule.greedy,
        anchor_bytes=params.anchor_bytes,
        max_unverified_bytes=params.max_unverified_bytes,
        max_unverified_tokens=params.max_unverified_tokens,
        calibration=clearance.calibration,
    )


def _break_even(curve: CostCurve) -> float:
    """Share of one-span drafts that must be right: two rows and the wait against one row."""
    return min(0.9, max(0.0, (curve.cost(2) + DRAFT_MILLISECONDS) / curve.cost(1) - 1.0))
