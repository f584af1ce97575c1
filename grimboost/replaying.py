"""Replay: feed a log's inputs to fresh pure stages, without event loop, weights or vocabulary.

The same inputs in the same order must give the same answers, or something that is not a message had an influence;
and each input must be what was sent there (`lineage`), or a message is missing. It knows nothing of how a log is
shown.
"""

import os
from typing import Any

from msgspec import Struct

from grimboost import messages as m
from grimboost.errors import LogError, StageError
from grimboost.lineage import Broken, Lineage, same
from grimboost.log import Log, LogEntry, LogHeader
from grimboost.stages.cascade import CascadeStage
from grimboost.stages.configuration import StageConfigs
from grimboost.stages.drafter import DrafterStage
from grimboost.stages.gate import GateStage
from grimboost.stages.gate_rule import GateRule
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


def fresh_stages(
    configs: StageConfigs, rule: SamplingRule, gate_rule: GateRule | None = None
) -> dict[str, Stage[Any]]:
    """The five stages of one generation, by name. `gate_rule`: what a plug-in adds to the gate."""
    return {
        DRAFTER: DrafterStage(configs.drafter),
        GATE: GateStage(configs.gate, gate_rule),
        VERIFIER: VerifierStage(configs.verifier, rule),
        CASCADE: CascadeStage(configs.cascade),
        REVEALER: RevealerStage(configs.revealer),
    }


def replay(log: Log | str | os.PathLike[str], gate_rule: GateRule | None = None) -> Difference | None:
    """None if everything is as recorded, else the first difference.

    `gate_rule`: the rule that the log's header names, if it names one; a log never has code imported.
    Raises `LogError` for a log that cannot be read, and for one that holds too little to be replayed, or was made
    with another rule.
    """
    if not isinstance(log, Log):
        log = Log.open(log)
    check_replayable(log.header, gate_rule)
    stages = fresh_stages(log.header.stages, log.header.rule, gate_rule)
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
        if not same(tuple(got), entry.answers):
            return Difference(entry, tuple(got), None, name)
    return None


def check_replayable(header: LogHeader, gate_rule: GateRule | None = None) -> None:
    """Raise `LogError` for a log that fresh stages, with that rule in the gate, cannot follow."""
    if header.redacted:
        raise LogError("this log is redacted: it holds no texts, so the stages cannot be run again")
    if header.first:
        raise LogError(f"this log begins with entry {header.first}: what came before is needed to run the stages")
    given = gate_rule.name if gate_rule is not None else ""
    if given != header.gate_rule:
        made = f"with the gate rule {header.gate_rule!r}" if header.gate_rule else "without a gate rule"
        name = repr(given) if given else "none"
        raise LogError(f"this log was made {made}, and is replayed with the same; given is {name} (--gate)")
