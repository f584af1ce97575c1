"""The cascade: the single writer of the committed frontier and of the epoch.

Each verdict commits at least one target token (target-first-token rule), so the output moves forward whatever
the drafter says. A mismatch raises the epoch and invalidates everything drafted; a realignment raises it too,
but only the segmentation is void, the drafted bytes stand. A verdict of an older epoch is stale and dropped.

::

    RUNNING ──Verdict──▶ RUNNING      RUNNING ──stop rule / CancelRequested / TargetFailed──▶ FINISHED

In strict mode there is no doubt interval and no takeover: nothing is shown before it is verified. It knows
neither caches nor the client.
"""

from enum import StrEnum

from msgspec.structs import replace

from grimboost import messages as m
from grimboost.stages.configuration import CascadeConfig
from grimboost.stages.stage import undefined
from grimboost.stages.stop_rules import StopRules


class State(StrEnum):
    """Life of the cascade stage."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class CascadeStage:
    """Commits verdicts, applies the stop rules, tells everyone."""

    patience = None

    def __init__(self, config: CascadeConfig) -> None:
        self._config = config
        self._state = State.WAITING
        self._epoch = 0
        self._prompt_tokens = 0
        self._rules = StopRules(config, 0)
        self._counts = m.Counts()

    @property
    def done(self) -> bool:
        return self._state is State.FINISHED

    def receive(self, message: m.CascadeInput) -> list[m.Message]:
        """Control messages come first in the answer: they never block, the commit may."""
        if self._state is State.FINISHED:
            return []  # a verdict that was under way when the generation ended
        match message:
            case m.Started() if self._state is State.WAITING:
                return self._start(message)
            case m.CancelRequested():
                return self._finish(m.FinishReason.CANCELLED)
            case m.TargetFailed():
                return self._finish(m.FinishReason.ERROR, error=message.error)
            case m.Prefilled() if self._state is State.RUNNING:
                return [message]
            case m.Verdict() if self._state is State.RUNNING:
                return [] if message.epoch != self._epoch else self._commit(message)
        raise undefined("cascade", self._state, message)

    def _start(self, message: m.Started) -> list[m.Message]:
        self._state = State.RUNNING
        self._prompt_tokens = len(message.prompt_ids)
        self._rules = StopRules(self._config, self._prompt_tokens)
        self._counts = replace(self._counts, prompt_tokens=self._prompt_tokens)
        reason = self._rules.begin()
        return self._finish(reason) if reason else []

    def _commit(self, verdict: m.Verdict) -> list[m.Message]:
        offset = self._rules.length
        taken = self._rules.take(verdict.tokens)
        self._count(verdict, len(taken.tokens))
        if taken.finish:
            return self._finish(taken.finish, taken.tokens, taken.data, offset)
        answer: list[m.Message] = []
        if verdict.outcome is not m.Outcome.AGREED:
            self._epoch += 1
            answer.append(m.Invalidated(self._epoch, keep=verdict.outcome is m.Outcome.REALIGNED))
        ids = tuple(token.id for token in taken.tokens)
        answer.append(m.Committed(self._epoch, self._rules.length, taken.tokens, self._rules.more))
        answer.append(m.Commit(offset, taken.data, taken.reveal_to, ids))
        return answer

    def _finish(
        self,
        reason: m.FinishReason,
        tokens: tuple[m.PathToken, ...] = (),
        data: bytes = b"",
        offset: int | None = None,
        error: str | None = None,
    ) -> list[m.Message]:
        self._state = State.FINISHED
        cut = self._rules.stop_now(reason)
        path = tuple(self._rules.ids)
        self._counts = replace(self._counts, new_tokens=len(path), new_bytes=cut)
        # `ids` of the last commit is the whole path: a stop string may have taken back earlier ids
        last = m.Commit(cut if offset is None else offset, data, cut, path, reason, self._counts, error)
        return [m.Finished(self._prompt_tokens + len(path), reason), last]

    def _count(self, verdict: m.Verdict, kept: int) -> None:
        c = self._counts
        accepted = min(verdict.accepted, kept)
        whole = accepted == verdict.accepted
        accepted_bytes = (
            verdict.accepted_bytes if whole else sum(len(token.data) for token in verdict.tokens[:accepted])
        )
        self._counts = replace(
            c,
            target_passes=c.target_passes + verdict.passes,
            target_rows=c.target_rows + verdict.rows,
            blocks=c.blocks + 1,
            drafted_tokens=c.drafted_tokens + verdict.drafted,
            drafted_bytes=c.drafted_bytes + verdict.drafted_bytes,
            accepted_tokens=c.accepted_tokens + accepted,
            accepted_bytes=c.accepted_bytes + accepted_bytes,
            mismatches=c.mismatches + (verdict.outcome is m.Outcome.MISMATCH),
            realignments=c.realignments + (verdict.outcome is m.Outcome.REALIGNED),
            ties_rechecked=c.ties_rechecked + verdict.ties,
        )
