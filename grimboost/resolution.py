"""From what a caller asked and what the target states to the five stages' configurations: one pure function."""

from grimboost.adapters.target import TargetFacts
from grimboost.parameters import Parameters
from grimboost.stages.configuration import (
    CascadeConfig,
    CostCurve,
    DrafterConfig,
    GateConfig,
    StageConfigs,
    VerifierConfig,
)
from grimboost.stages.sampling_rule import SamplingRule

MAX_BLOCK_ROWS = 32
"""Row-invariance is stated for passes of up to so many rows."""

DRAFT_MILLISECONDS = 1.2
"""What waiting for a draft costs a pass: the drafter itself and two changes of threads (measured 0.7 to 2)."""

PATIENCE = 0.5
"""A pass waits for the drafter at most this share of what a plain pass takes."""


def resolve_stages(
    facts: TargetFacts,
    curve: CostCurve,
    params: Parameters,
    prompt_tokens: int,
    end_ids: tuple[int, ...],
    drafting: bool,
) -> tuple[StageConfigs, SamplingRule]:
    """Configurations of one generation and its rule of choice. `params` are checked before."""
    budget = params.max_new_tokens or 0
    more = max(0, min(budget, facts.context_limit - prompt_tokens))
    cascade = CascadeConfig(
        context_limit=facts.context_limit,
        max_new_tokens=budget,
        max_new_bytes=params.max_new_bytes,
        stop=params.stop_bytes,
        end_ids=() if params.ignore_eos else end_ids,
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
    )
    configs = StageConfigs(
        cascade=cascade,
        drafter=DrafterConfig(enabled=drafting, break_even=_break_even(curve)),
        gate=GateConfig(mode=params.mode),
        verifier=verifier,
    )
    return configs, params.rule(end_ids, prompt_tokens)


def _break_even(curve: CostCurve) -> float:
    """Share of one-span drafts that must be right: two rows and the wait against one row."""
    return min(0.9, max(0.0, (curve.cost(2) + DRAFT_MILLISECONDS) / curve.cost(1) - 1.0))
