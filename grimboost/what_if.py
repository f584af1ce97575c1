"""What-if: a recorded generation under another gate or cascade, side by side with what happened.

What can be said comes from the log alone, and each answer says how far it goes: `answerable_bytes` of output,
then `end`. Up to `certain_bytes` it holds for any drafter. Behind that it holds for one that gives the same answer
to the same question whenever it is asked: a drafter that learns from what it was asked between may answer
otherwise. The order of messages and the times are as recorded until the first other decision; from there on they
are those of stages that take no time and a client that reads at once (`counterfactual`).

Facts about the spans that the target has judged (`judged_spans`) need no such run, and hold for the recorded one
only.
"""

import os
from collections.abc import Iterable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grimboost.counterfactual import Counterfactual, Memory
from grimboost.errors import LogError, MisuseError
from grimboost.log import Log
from grimboost.parameters import Parameters
from grimboost.replaying import check_replayable
from grimboost.resolution import STREAMING_REQUEST
from grimboost.stages.configuration import GateConfig, StageConfigs, TrustConfig
from grimboost.stages.gate_rule import GateRule
from grimboost.what_if_figures import Figures, JudgedShare, figures, judged, latest

ALL = 1 << 62
"""More bytes than any output has."""

BEFORE_END = 24
"""Bytes of the text that are shown where an answer ends."""


class Changes(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be otherwise; None is as recorded. Names as in `Parameters`."""

    threshold: float | None = None
    anchor_bytes: int | None = None
    max_unverified_bytes: int | None = None
    max_unverified_tokens: int | None = None
    doubt_bytes: int | None = None
    max_repairs: int | None = None
    takeover_tokens: int | None = None
    epsilon: float | None = None

    def given(self) -> dict[str, float]:
        """Those that are not None."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class WhatIf(Struct, frozen=True):
    """One configuration, as far as the log can tell.

    `recorded`: what happened, up to the last commit within the answerable bytes. `as_recorded`: every stage does
    what it did, to the last message; the reasons that the gate gives may be others. `differs_at`: output bytes
    committed when something was first decided otherwise. `reused`: drafts taken from another moment of the run.
    """

    changes: Changes
    as_recorded: bool
    recorded_bytes: int
    answerable_bytes: int
    certain_bytes: int
    differs_at: int | None
    end: str | None
    reused: int
    recorded: Figures
    what_if: Figures

    @property
    def share(self) -> float:
        """Of the recorded output, that can be answered; 1 where the answer comes to the generation's own end."""
        if self.end is None:
            return 1.0
        return min(1.0, self.answerable_bytes / self.recorded_bytes) if self.recorded_bytes else 0.0


class WhatIfs:
    """A log that was understood. `ask` it as often as you like: each answer takes as long as a replay."""

    def __init__(self, log: Log | str | os.PathLike[str], gate_rule: GateRule | None = None) -> None:
        """`gate_rule`: the one that the log's header names, if it names one.

        Raises `LogError` for a log that cannot be read or does not replay, or is not whole.
        """
        self.log = log if isinstance(log, Log) else Log.open(log)
        check_replayable(self.log.header, gate_rule)
        self._rule = gate_rule
        self._memory = Memory(self.log)
        self._recorded = self._run(self.log.header.stages)
        if self._recorded.left_at is not None:
            raise LogError(
                "this log does not replay, so nothing can be told from it: 'grimboost replay' says where"
            )
        last = latest(self._recorded.marks, ALL)
        self.recorded_bytes = last.counts.new_bytes if last else 0

    def ask(self, changes: Changes = Changes()) -> WhatIf:  # noqa: B008 (frozen)
        """What if these were changed? Raises `MisuseError` for changes that cannot be, or mean nothing here."""
        configs = changed(self.log, changes)
        if configs is None:
            return self._unanswerable(changes)
        run = self._run(configs)
        mark = run.marks[-1] if run.marks else None
        reached = mark.counts.new_bytes if mark else 0
        limit = ALL if run.end is None else reached
        return WhatIf(
            changes=changes,
            as_recorded=run.left_at is None,
            recorded_bytes=self.recorded_bytes,
            answerable_bytes=reached,
            certain_bytes=reached if run.certain_bytes is None else min(reached, run.certain_bytes),
            differs_at=None if run.left_at is None else run.left_byte,
            end=None if run.end is None else _end(run, reached),
            reused=run.reused,
            recorded=figures(self._recorded, latest(self._recorded.marks, limit)),
            what_if=figures(run, mark),
        )

    def judged_spans(self, thresholds: Iterable[float] | None = None) -> list[JudgedShare]:
        """Facts about the recorded run at these thresholds; without them, at each confidence that occurs."""
        curve = self.log.header.stages.gate.calibration
        if thresholds is None:
            found = {curve.of(span.confidence) for one in self._memory.audited for span in one.spans}
            thresholds = sorted(found)
        return judged(self._memory.audited, curve, thresholds)

    def _run(self, configs: StageConfigs) -> Counterfactual:
        return Counterfactual(self.log, configs, self._memory, self._rule).run()

    def _unanswerable(self, changes: Changes) -> WhatIf:
        end = (
            "at byte 0: the log holds what the certificate allowed, but not the evidence for it; nothing can be "
            "said of when it would open for another epsilon"
        )
        nothing = Figures()
        return WhatIf(changes, False, self.recorded_bytes, 0, 0, 0, end, 0, nothing, nothing)


def what_if(
    log: Log | str | os.PathLike[str],
    changes: Changes = Changes(),  # noqa: B008 (frozen)
    gate_rule: GateRule | None = None,
) -> WhatIf:
    """One answer. Raises `LogError` and `MisuseError`; make `WhatIfs` to ask more of one log."""
    return WhatIfs(log, gate_rule).ask(changes)


def changed(log: Log, changes: Changes) -> StageConfigs | None:
    """The recorded configuration with the changes, as a caller who had asked for them would have got it.

    None where they need a certificate whose evidence the log does not hold.
    """
    given, configs = changes.given(), log.header.stages
    if not given:
        return configs
    gate = configs.gate
    if gate.mode != "streaming":
        raise MisuseError(
            "this log was made in strict mode: no gate decided anything, so there is nothing to vary"
        )
    Parameters(mode="streaming", **given).checked()  # type: ignore[arg-type]
    epsilon = given.pop("epsilon", None)
    if epsilon is not None and gate.release == "certified" and epsilon != log.header.epsilon:
        return None
    trust = {name: value for name, value in given.items() if name in TrustConfig.__struct_fields__}
    caps = {name: value for name, value in given.items() if name in _CAPS}
    gate = replace(gate, **caps)
    if changes.threshold is not None:
        gate = _with_threshold(gate, changes.threshold)
    cascade = replace(configs.cascade, trust=replace(configs.cascade.trust, **trust))
    drafter = configs.drafter
    if drafter.running_on and changes.max_unverified_bytes is not None:  # its credit is what may be shown
        drafter = replace(drafter, max_ahead_bytes=changes.max_unverified_bytes + STREAMING_REQUEST)
    return replace(configs, cascade=cascade, gate=gate, drafter=drafter)


_CAPS = ("anchor_bytes", "max_unverified_bytes", "max_unverified_tokens")


def _with_threshold(gate: GateConfig, threshold: float) -> GateConfig:
    """A certificate can only raise what the caller asked for."""
    if not (gate.release == "certified" and gate.certified):
        return replace(gate, floor=threshold, threshold=threshold)
    if gate.threshold > gate.floor:  # it is the certificate's
        return replace(gate, floor=threshold, threshold=max(threshold, gate.threshold))
    if threshold < gate.floor:
        raise MisuseError(
            f"the certificate was asked for spans of at least {gate.floor:g}, and the log does not say whether it "
            f"would have allowed any below that; ask for a threshold from there on"
        )
    return replace(gate, floor=threshold, threshold=threshold)


def _end(run: Counterfactual, reached: int) -> str:
    data = b"".join(one.data for one in run.commits())
    tail = data[:reached][-BEFORE_END:].decode(errors="replace")
    behind = f", behind {tail!r}" if tail else ""
    return f"at byte {reached}{behind}: {run.end}"
