"""Replay: feed a log's inputs to fresh pure stages, without event loop, weights or vocabulary.

The same inputs in the same order must give the same answers, or something that is not a message had an influence;
and each input must be what was sent there (`lineage`), or a message is missing. It knows nothing of how a log is
shown.
"""

import os
from typing import Any

import msgspec
from msgspec import Struct

from grimboost import messages as m
from grimboost.errors import LogError, StageError
from grimboost.lineage import Broken, Lineage
from grimboost.log import Log, LogEntry, LogHeader
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
    """The first entry that cannot be: its stage answers otherwise, raises, or nobody sent it that message.

    `name`: the entry's, by its lineage. `got` is what the stage answers now; `error` says what else is wrong.
    """

    entry: LogEntry
    got: tuple[m.Message, ...]
    error: str | None = None
    name: str = ""


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


def replay(log: Log | str | os.PathLike[str]) -> Difference | None:
    """None if everything is as recorded, else the first difference.

    Raises `LogError` for a log that cannot be read, and for one that holds too little to be replayed.
    """
    if not isinstance(log, Log):
        log = Log.open(log)
    check_replayable(log.header)
    stages = fresh_stages(log.header.stages, log.header.rule)
    lineage = Lineage()
    for entry in log:
        try:
            lineage.feed(entry)
        except Broken as error:
            return Difference(entry, (), str(error), lineage.names.get(entry.sequence, entry.stage))
        stage = stages.get(entry.stage)
        if stage is None:
            continue  # the client: its lineage is all that there is to check
        name = lineage.names[entry.sequence]
        try:
            got = stage.receive(entry.message)
        except Exception as error:  # a message that no stage sent may break one in any way
            text = str(error) if isinstance(error, StageError) else repr(error)
            return Difference(entry, (), text, name)
        if tuple(got) != entry.answers and _encode(got) != _encode(entry.answers):  # as bytes NaN equals itself
            return Difference(entry, tuple(got), None, name)
    return None


def check_replayable(header: LogHeader) -> None:
    """Raise `LogError` for a log that fresh stages cannot follow."""
    if header.redacted:
        raise LogError("this log is redacted: it holds no texts, so the stages cannot be run again")
    if header.first:
        raise LogError(f"this log begins with entry {header.first}: what came before is needed to run the stages")


def ended(log: Log) -> bool:
    """Whether the log holds a generation to its end: its last event, and that the target's slot was given back."""
    seen = {type(answer) for entry in log for answer in entry.answers}
    return m.Done in seen and any(type(entry.message) is m.Released for entry in log)
