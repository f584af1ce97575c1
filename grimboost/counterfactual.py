"""One recorded generation once more, under other configurations of its stages, against what its log knows.

As long as fresh stages answer as recorded, they get the recorded inputs in the recorded order. From the first
other answer on (`left_at`) messages between stages travel at once, control before data, while those of workers
take the time that they took in the log, a patience as long as it lasts, and the client reads what comes. Where an
answer of a worker is not in the log, or the engine or the client may have done something else, the run ends, and
`end` says why: nothing is guessed.

What does not depend on an unknown choice of the target is known all the same. So a pass may come back with some
choices unknown: only a stage that looks at one ends the run (`known_answers.Unasked`), and what the others say
of shown bytes is still said. It knows no figures.
"""

from copy import deepcopy
from math import inf
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from grimboost import messages as m
from grimboost.errors import LogError
from grimboost.known_answers import (
    NEVER_ASKED,
    UNASKED,
    Answer,
    DrafterAsker,
    DrafterMemory,
    NotRecorded,
    TargetAsker,
    TargetMemory,
    unasked,
)
from grimboost.lineage import sender_of
from grimboost.log import Log, LogEntry
from grimboost.message_lanes import Lanes, alike
from grimboost.replaying import fresh_stages
from grimboost.stages.configuration import StageConfigs
from grimboost.stages.gate_rule import GateRule
from grimboost.wiring import (
    CASCADE,
    CLIENT,
    DRAFTER,
    DRAFTER_WORKER,
    ENGINE,
    GATE,
    REVEALER,
    STAGES,
    TARGET_WORKER,
    VERIFIER,
    routes,
)

_ROUTES = {stage: routes(stage) for stage in STAGES}
_WORKERS = {DRAFTER: DRAFTER_WORKER, VERIFIER: TARGET_WORKER}


class Step(Struct, frozen=True):
    """`stage` received `message` at `seconds` and answered `answers`."""

    seconds: float
    stage: str
    message: m.Message
    answers: tuple[m.Message, ...]


class Mark(Struct, frozen=True):
    """The cascade has committed something: after so many steps, with what it had counted then."""

    steps: int
    seconds: float
    counts: m.Counts


class _Pending(Struct, frozen=True):
    """What a stage waits for, due at `at`; those due at once come in the order in which they were asked."""

    at: float
    order: int
    stage: str
    answer: Answer


class Memory:
    """What a log knows, gathered once for all runs against it."""

    def __init__(self, log: Log) -> None:
        config = log.header.stages.verifier
        self.target = TargetMemory(log.entries, config.row_invariant, config.curve)
        self.drafter = DrafterMemory(log.entries)
        self.audited = [
            answer
            for entry in log
            if entry.stage == CASCADE
            for answer in entry.answers
            if isinstance(answer, m.Audited)
        ]


class Counterfactual:
    """`run` it once, then look at `steps`, `marks` and `end`."""

    def __init__(
        self, log: Log, configs: StageConfigs, memory: Memory | None = None, gate_rule: GateRule | None = None
    ) -> None:
        self.steps: list[Step] = []
        self.marks: list[Mark] = []
        self.end: str | None = None
        """Why it does not go on; None where it came to the generation's own end."""
        self.exact_steps: int | None = None
        """Steps before a message that could not be delivered whole; what is known all the same stands behind."""
        self.left_at: float | None = None
        """Seconds at which a stage first answered otherwise than recorded."""
        self.left_byte = 0
        """Committed bytes at that moment."""
        self.reused = 0
        """Answers of the drafter that were taken from another moment of the recorded run."""
        self.certain_steps: int | None = None
        """Steps before the first of them was asked for: they do not depend on how the drafter learns."""
        self.certain_bytes: int | None = None
        """Committed bytes at that moment."""
        self.frontier = 0
        self._log, self._memory = log, memory or Memory(log)
        self._certified = configs.gate.mode == "streaming" and configs.gate.release == "certified"
        self._stages = fresh_stages(configs, log.header.rule, gate_rule)
        self._lanes = {name: Lanes() for name in STAGES}
        self._askers: dict[str, DrafterAsker | TargetAsker] = {
            DRAFTER: DrafterAsker(self._memory.drafter),
            VERIFIER: TargetAsker(self._memory.target),
        }
        self._pending: list[_Pending] = []
        self._order = 0
        self._now = self._heard = 0.0  # `_heard`: when the verifier got its latest message
        self._audited = 0
        self._unknown: list[tuple[str, str]] = []  # stages that asked what the log does not hold, and why

    def run(self) -> "Counterfactual":
        """To the end of the answer. Raises `LogError` for a log whose messages do not follow from each other."""
        place = self._follow()
        if place is not None:
            self.left_at, self.left_byte = self._now, self.frontier
            self._go_on(place)
        elif not all(stage.done for stage in self._stages.values()):
            self.end = "the log ends here"
        return self

    def commits(self) -> list[m.Commit]:
        """What the cascade has committed."""
        answers = (answer for step in self.steps if step.stage == CASCADE for answer in step.answers)
        return [answer for answer in answers if isinstance(answer, m.Commit)]

    # ------------------------------------------------------------ as recorded

    def _follow(self) -> int | None:
        """Deliver what the log has; returns the place behind the first entry that is answered otherwise."""
        self._start()
        for place, entry in enumerate(self._log.entries):
            if entry.stage == CLIENT:
                continue
            self._now = entry.seconds
            answers = self._deliver(entry.stage, self._taken(entry))
            if not alike(answers, entry.answers):
                return place + 1
        return None

    def _start(self) -> None:
        started = next((entry.message for entry in self._log if isinstance(entry.message, m.Started)), None)
        for edge in routes(ENGINE)[m.Started] if started else ():
            self._lanes[edge.receiver].put(ENGINE, started, edge.blocks)  # type: ignore[arg-type]

    def _taken(self, entry: LogEntry) -> m.Message:
        """What this run has in the place of the entry's message."""
        edge = sender_of(type(entry.message), entry.stage)
        found: m.Message | None = entry.message
        if edge is not None and (edge.sender in STAGES or isinstance(entry.message, m.Started)):
            found = self._lanes[entry.stage].take_from(edge.sender, edge.blocks)
        elif edge is not None and edge.sender != ENGINE:
            found = self._answered(entry)
        if found is None or not alike((found,), (entry.message,)):
            raise LogError(
                f"entry {entry.sequence}, {type(entry.message).__name__} to the {entry.stage}, does not follow "
                "from what was sent before: 'grimboost replay' says more"
            )
        return found

    def _answered(self, entry: LogEntry) -> m.Message | None:
        for one in self._pending:
            if one.stage == entry.stage and one.answer.message == entry.message:
                self._pending.remove(one)
                return entry.message
        return None

    # ------------------------------------------------------------ by itself

    def _go_on(self, place: int) -> None:
        """From the recorded entry at `place` on, which may not apply any more."""
        outside = (m.CancelRequested, m.Certified)
        limit = next((entry for entry in self._log.entries[place:] if isinstance(entry.message, outside)), None)
        while self._drain():
            due = min(self._pending, key=lambda one: (one.at, one.order), default=None)
            at = due.at if due is not None else inf
            elapses = self._elapses()
            if min(at, elapses) == inf:
                break
            if limit is not None and limit.seconds <= min(at, elapses):
                self.end = _LIMITS[type(limit.message)]
                return
            self._now = max(self._now, min(at, elapses))
            if due is None or elapses < at:
                self._attempt(VERIFIER, m.Elapsed())
            else:
                self._pending.remove(due)
                self._return(due)
        if self.end is None and not all(stage.done for stage in self._stages.values()):
            self.end = "nobody is left to answer"

    def _elapses(self) -> float:
        stage = self._stages[VERIFIER]
        patience = None if stage.done else stage.patience
        return inf if patience is None else self._heard + patience

    def _return(self, due: _Pending) -> None:
        if self._stages[due.stage].done:
            return
        if due.answer.message is None:
            self.end = f"the log ends before an answer of the {_WORKERS[due.stage]}"
        else:
            self._attempt(due.stage, due.answer.message)

    def _drain(self) -> bool:
        """Deliver what stages have sent each other; False where the answer ends."""
        while self.end is None:
            name = next((name for name in STAGES if self._lanes[name]), None)
            if name is None:
                break
            message = self._lanes[name].take()
            if not self._stages[name].done:
                self._attempt(name, message)
        asked = [why for stage, why in self._unknown if not self._stages[stage].done]
        self.end = self.end or next(iter(asked), None)
        if self.end is not None:
            self._show_rest()
        return self.end is None

    def _attempt(self, name: str, message: m.Message) -> None:
        """Deliver a message that may hold choices which nobody knows."""
        partial = isinstance(message, m.Verdict) and any(unasked(message.choices))
        before: Any = deepcopy(self._stages[name]) if partial else None
        try:
            self._deliver(name, message)
        except NotRecorded as unknown:
            self.end, self.exact_steps = str(unknown), len(self.steps)
            if partial and isinstance(message, m.Verdict):
                self._stages[name] = before
                self._audit_part(message)

    def _audit_part(self, verdict: m.Verdict) -> None:
        """What the known choices say of shown bytes holds, whatever the others say of those behind."""
        known = next(place for place, one in enumerate(verdict.choices) if any(unasked([one])))
        if known and self._log.header.stages.cascade.shown_stands:
            self._deliver(CASCADE, replace(verdict, choices=verdict.choices[:known]))

    def _show_rest(self) -> None:
        """What the cascade has sent goes to the client, whatever else is unknown."""
        while self._lanes[REVEALER] and not self._stages[REVEALER].done:
            self._deliver(REVEALER, self._lanes[REVEALER].take())

    # ------------------------------------------------------------ one message

    def _deliver(self, name: str, message: m.Message) -> tuple[m.Message, ...]:
        answers = tuple(self._stages[name].receive(message))
        if any(_unknown_in(answer) for answer in answers):
            raise NotRecorded(NEVER_ASKED)
        if name == VERIFIER:
            self._heard = self._now
        self.steps.append(Step(self._now, name, message, answers))
        for answer in answers:
            self._send(name, answer)
        if name == CASCADE and any(isinstance(answer, m.Commit) for answer in answers):
            self.marks.append(Mark(len(self.steps), self._now, self._stages[CASCADE].counts))  # type: ignore[attr-defined]
        return answers

    def _send(self, name: str, answer: m.Message) -> None:
        if isinstance(answer, m.Committed):
            self.frontier = answer.frontier
        for edge in _ROUTES[name][type(answer)]:
            if edge.receiver in STAGES:
                self._lanes[edge.receiver].put(name, answer, edge.blocks)
            elif edge.receiver == ENGINE:
                self._check_evidence(answer)
            elif edge.receiver != CLIENT:
                self._ask(name, answer)

    def _ask(self, name: str, request: Any) -> None:
        try:
            answer = self._askers[name].ask(request)
        except NotRecorded as unknown:
            self._unknown.append((name, str(unknown)))
            return
        if name == DRAFTER and not answer.as_recorded:
            self.reused += 1
            if self.certain_steps is None:
                self.certain_steps, self.certain_bytes = len(self.steps), self.frontier
        self._order += 1
        self._pending.append(_Pending(self._now + answer.seconds, self._order, name, answer))

    def _check_evidence(self, audited: m.Message) -> None:
        """A certificate is what its evidence makes it."""
        known, place = self._memory.audited, self._audited
        self._audited += 1
        if self._certified and (place >= len(known) or known[place] != audited):
            self._unknown.append(
                (GATE, "the certificate would get other evidence, and nobody knows what it would allow")
            )


_LIMITS = {
    m.CancelRequested: "the client cancelled here, and nobody knows what it would have done",
    m.Certified: "the certificate changed here, and nobody knows whether it would have",
}


def _unknown_in(answer: m.Message) -> bool:
    """Whether the answer commits a choice that the log does not hold."""
    match answer:
        case m.Verdict(tokens=tokens) | m.Committed(tokens=tokens):
            return any(unasked(tokens))
        case m.Commit(ids=ids):
            return any(type(id) is type(UNASKED.id) for id in ids)
    return False
