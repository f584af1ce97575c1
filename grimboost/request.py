"""What one generation needs, resolved and checked, and the header under which it is recorded."""

import time

from msgspec import Struct

from grimboost import messages as m
from grimboost.loading import LoadedTarget
from grimboost.log import LogHeader
from grimboost.parameters import Parameters
from grimboost.prompts import started_with
from grimboost.resolution import Clearance, resolve_stages
from grimboost.stages.configuration import StageConfigs
from grimboost.stages.gate_rule import GateRule
from grimboost.stages.sampling_rule import SamplingRule
from grimboost.versions import versions


class Request(Struct, frozen=True):
    """Everything that a generation needs, resolved and checked."""

    run: int
    parameters: Parameters
    prompt: m.Started
    configs: StageConfigs
    rule: SamplingRule
    capacity: int
    gate_rule: GateRule | None = None


def make_request(
    loaded: LoadedTarget,
    drafter: str | None,
    ids: tuple[int, ...],
    params: Parameters,
    clearance: Clearance | None,
    run: int,
    capacity: int,
    gate_rule: GateRule | None = None,
) -> Request:
    """`drafter`: its name; None for none. `clearance`: what its certificate says, in streaming mode.

    `gate_rule` has a meaning in streaming mode only, and is left out in strict mode.
    """
    configs, rule = resolve_stages(
        loaded.target.facts,
        loaded.curve,
        params,
        len(ids),
        tuple(loaded.end_ids),
        drafter is not None,
        clearance,
    )
    started = started_with(loaded.target.vocabulary, ids)
    asked = gate_rule if params.mode == "streaming" else None
    return Request(run, params, started, configs, rule, capacity, asked)


def header_of(request: Request, loaded: LoadedTarget, drafter: str | None) -> LogHeader:
    """The header of the request's log."""
    facts, streaming = loaded.target.facts, request.parameters.mode == "streaming"
    return LogHeader(
        versions=versions(),
        model=facts.name,
        model_digest=facts.digest,
        tokenizer_digest=loaded.tokenizer_digest,
        precision=facts.precision,
        drafter=drafter or "none",
        stages=request.configs,
        rule=request.rule,
        end_of_sequence={} if request.parameters.ignore_eos else loaded.end_ids,
        started=time.time(),
        gate_rule=request.gate_rule.name if request.gate_rule is not None else "",
        epsilon=request.parameters.epsilon if request.parameters.release == "certified" and streaming else None,
    )
