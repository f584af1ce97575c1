"""Replay: feed a log's inputs to fresh pure stages, without event loop, weights or vocabulary.

The same inputs in the same order must give the same answers, or something that is not a message had an
influence. It knows nothing of how a log is shown.
"""

from typing import Any

import msgspec
from msgspec import Struct

from grimboost.errors import LogError, StageError
from grimboost.log import Log, LogEntry, LogHeader
from grimboost.messages import Message
from grimboost.stages.cascade import CascadeStage
from grimboost.stages.configuration import StageConfigs
from grimboost.stages.drafter import DrafterStage
from grimboost.stages.gate import GateStage
from grimboost.stages.revealer import RevealerStage
from grimboost.stages.sampling_rule import SamplingRule
from grimboost.stages.stage import Stage
from grimboost.stages.verifier import VerifierStage
from grimboost.wiring import CASCADE, DRAFTER, GATE, REVEALER, VERIFIER


class Difference(Struct, frozen=True):
    """The first entry at which the stages answered otherwise than the log says."""

    entry: LogEntry
    got: tuple[Message, ...]
    error: str | None = None


_encode = msgspec.msgpack.Encoder().encode


def fresh_stages(configs: StageConfigs, rule: SamplingRule) -> dict[str, Stage[Any]]:
    """The five stages of one generation, by name."""
    return {
        DRAFTER: DrafterStage(configs.drafter),
        GATE: GateStage(configs.gate),
        VERIFIER: VerifierStage(configs.verifier, rule),
        CASCADE: CascadeStage(configs.cascade),
        REVEALER: RevealerStage(configs.revealer),
    }


def replay(log: Log) -> Difference | None:
    """None if every answer is as recorded, else the first difference."""
    stages = _stages_of(log.header)
    for entry in log:
        stage = stages.get(entry.stage)
        if stage is None:
            raise LogError(f"entry {entry.sequence} is of an unknown stage {entry.stage!r}")
        try:
            got = tuple(stage.receive(entry.message))
        except Exception as error:  # a message that no stage sent may break one in any way
            text = str(error) if isinstance(error, StageError) else repr(error)
            return Difference(entry, (), text)
        if got != entry.answers and _encode(got) != _encode(entry.answers):  # as bytes NaN equals itself
            return Difference(entry, got)
    return None


def _stages_of(header: LogHeader) -> dict[str, Stage[Any]]:
    return fresh_stages(header.stages, header.rule)
