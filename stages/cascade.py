"""The cascade: the single writer of the committed frontier, of the released one and of the epoch.

Each verdict commits at least one token of the path (target-first-token rule), so the output moves forward whatever
the drafter says. A mismatch raises the epoch and invalidates everything drafted; a realignment raises it too,
but only the segmentation is void, the drafted bytes stand. A verdict of an older epoch is stale and dropped.

::

    RUNNING ──Verdict──▶ RUNNING      RUNNING ──stop rule / CancelRequested / TargetFailed──▶ FINISHED

In streaming mode the gate's releases pass through here, so that one stage knows what was shown in which epoch: a
release that a mismatch overtook is dropped like any stale message. Verdicts then audit what was shown
(`audit`), a slip opens a doubt interval (`trust`), and each message says what of the shown bytes still stands.
It knows neither caches nor the client.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec.structs import replace

from grimboost import messages as m
from grimboost.stages.audit import Audit, audit_revisable, audit_standing
from grimboost.stages.configuration import CascadeConfig
from grimboost.stages.pieces import begun_before, bytes_of, size_of, tally, whole_before
from grimboost.stages.stage import undefined
from grimboost.stages.stop_rules import StopRules, Taken
from grimboost.stages.trust import Trust, TrustMachine

OVERTAKEN = 1024
"""Bytes: a release that verdicts have overtaken by more is dropped."""


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
        self._trust = TrustMachine(config.trust)
        self._released: tuple[m.Span, ...] = ()  # from the committed frontier on
        self._shown = 0  # output offset up to which bytes may have been shown
        self._tail = b""  # last committed bytes

    @property
    def done(self) -> bool:
        return self._state is State.FINISHED

    @property
    def counts(self) -> m.Counts:
        """What was counted as far as the generation has come."""
        if self._state is State.FINISHED:
            return self._counts
        rules, takeovers = self._rules, self._trust.takeovers
        return replace(self._counts, new_tokens=len(rules.ids), new_bytes=rules.length, takeovers=takeovers)

    def receive(self, message: m.CascadeInput) -> list[m.Message]:
        """Control messages come first in the answer: they never block, the commit may."""
        if self._state is State.FINISHED:
            return []  # a verdict that was under way when the generation ended
        match message:
            case m.Started() if self._state is State.WAITING:
                return self._start(message)
            case m.CancelRequested():
                return self._break_off(m.FinishReason.CANCELLED)
            case m.TargetFailed():
                return self._break_off(m.FinishReason.ERROR, message.error)
            case m.Prefilled() if self._state is State.RUNNING:
                return [message]
            case m.Release() if self._state is State.RUNNING:
                return [] if message.epoch != self._epoch else self._release(message)
            case m.Verdict() if self._state is State.RUNNING:
                return [] if message.epoch != self._epoch else self._commit(message)
        raise undefined("cascade", self._state, message)

    def _start(self, message: m.Started) -> list[m.Message]:
        self._state = State.RUNNING
        self._prompt_tokens = len(message.prompt_ids)
        self._rules = StopRules(self._config, self._prompt_tokens)
        self._counts = replace(self._counts, prompt_tokens=self._prompt_tokens)
        reason = self._rules.begin()
        return self._finish(reason, b"", 0) if reason else []

    # ------------------------------------------------------------ releases

    def _release(self, message: m.Release) -> list[m.Message]:
        """Show what joins on and cannot exceed a budget; the rest waits for the target."""
        size = size_of(self._released)
        offset, begun = self._rules.length + size, len(self._released)
        for span in self._joining(message, offset):
            size += len(span.data)
            if not self._rules.allows(len(self._released) + 1, size, span.id):
                break
            self._released = (*self._released, span)
        if len(self._released) == begun:
            return []
        data = bytes_of(self._released[begun:])
        _, ended = self._show()
        if self._config.open_end and (ended or not self._rules.allows(len(self._released) + 1, size + 1, -1)):
            return self._end_unaudited()
        return [m.Reveal(offset, data, self._shown)]

    def _joining(self, message: m.Release, offset: int) -> Iterable[m.Span]:
        """Spans from `offset` on. What lies before it a verdict has overtaken; if that says otherwise, none."""
        at = message.offset
        if at < offset:
            overtaken = bytes_of(message.spans)[: offset - at]
            if not (self._tail + bytes_of(self._released)).endswith(overtaken):
                return ()
        for place, span in enumerate(message.spans):
            if at >= offset:
                return message.spans[place:] if at == offset else ()
            at += len(span.data)
        return ()

    def _show(self) -> tuple[int, bool]:
        """Show as far as stop strings allow; how far that is, and whether one ends what is released."""
        before = max(self._shown, self._rules.length)
        reveal_to, ended = self._rules.preview(bytes_of(self._released))
        self._shown = max(self._shown, reveal_to)
        released = self._counts.released_bytes + max(0, self._shown - before)
        self._counts = replace(self._counts, released_bytes=released)
        return reveal_to, ended

    # ------------------------------------------------------------ verdicts

    def _commit(self, verdict: m.Verdict) -> list[m.Message]:
        offset = self._rules.length
        audit = self._audit(verdict, offset)
        first = len(self._rules.ids)
        taken = self._rules.take(audit.tokens)
        self._count(verdict, len(taken.tokens))
        slips: tuple[m.Slip, ...] = ()
        if self._config.streaming:
            self._tail = (self._tail + taken.data)[-OVERTAKEN:]
            self._count_audit(audit, taken, offset)
            slips = self._slips(audit, first, offset)
        self._released = audit.left
        told: list[m.Message] = [m.Audited(audit.judged)] if audit.judged else []
        if taken.finish:
            return [*told, *self._finish(taken.finish, taken.data, offset, slips=slips)]
        reveal_to = taken.reveal_to
        if self._config.streaming:
            self._judge(audit, slips, offset)
            reveal_to, _ = self._show()
        standing = size_of(self._released)
        ids = tuple(token.id for token in taken.tokens)
        certain = taken.reveal_to if self._config.streaming and not self._config.shown_stands else None
        commit = m.Commit(offset, taken.data, reveal_to, ids, standing=standing, slips=slips, certain_to=certain)
        wrong = tuple(slip.position - first for slip in slips)
        return [*self._steer(verdict, audit, taken, wrong), *told, commit]

    def _audit(self, verdict: m.Verdict, offset: int) -> Audit:
        if not self._config.streaming:
            return Audit(verdict.tokens, (), (), (), True, False)
        shown = max(0, self._shown - offset)
        choices = tuple(m.PathToken(one.id, self._rules.output_data(one)) for one in verdict.choices)
        if self._config.shown_stands:
            return audit_standing(self._released, shown, verdict.candidate, choices, self._may_replace)
        tokens = tuple(m.PathToken(one.id, self._rules.output_data(one)) for one in verdict.tokens)
        return audit_revisable(self._released, shown, verdict.candidate, choices, tokens)

    def _may_replace(self, before: int, own: m.PathToken) -> bool:
        """A token that reaches beyond what was shown must not exceed the byte budget: the cut comes before it."""
        at = self._rules.length + size_of(self._released[:before])
        limit = self._config.max_new_bytes
        return limit is None or at + len(own.data) <= limit

    def _steer(self, verdict: m.Verdict, audit: Audit, taken: Taken, wrong: tuple[int, ...]) -> list[m.Message]:
        """Control messages: a new epoch where something is void, and the frontier."""
        answer: list[m.Message] = []
        agreed = verdict.outcome is m.Outcome.AGREED and audit.fits
        stands = self._config.shown_stands and bool(self._released)
        if not agreed:
            keep = verdict.outcome is not m.Outcome.MISMATCH and audit.void is None and not (wrong or stands)
            self._epoch += 1
            answer.append(m.Invalidated(self._epoch, keep))
        answer.append(
            m.Committed(
                self._epoch,
                self._rules.length,
                taken.tokens,
                self._rules.more,
                standing=0 if agreed else size_of(self._released),
                released=self._released if stands and not agreed else (),
                doubt_until=self._trust.doubt_until,
                alone=self._trust.alone(len(self._rules.ids)),
                slips=wrong if self._config.shown_stands else (),
            )
        )
        return answer

    def _judge(self, audit: Audit, slips: Sequence[m.Slip], offset: int) -> None:
        """What the verdict means for the trust in the gate. What it has verified behind a slip is verified."""
        frontier, tokens = self._rules.length, len(self._rules.ids)
        for wrong in audit.wrong[: len(slips)]:
            self._trust.slipped(offset + sum(len(token.data) for token in audit.tokens[: wrong.place + 1]))
        if audit.corrected and not slips:
            self._trust.corrected(frontier, tokens)
        self._trust.advanced(frontier, tokens)

    def _slips(self, audit: Audit, first: int, offset: int) -> tuple[m.Slip, ...]:
        """Slips in what is output. The last one may lie behind the last id: in the head of a token that a stop
        string cut, or in what is taken back."""
        slips = tuple(
            m.Slip(first + one.place, offset + one.offset, one.data, one.chosen, one.confidence)
            for one in audit.wrong
            if offset + one.offset < self._rules.length or not self._config.shown_stands
        )
        retracted = 0
        if audit.void is not None and self._shown > offset + audit.void:
            retracted = self._shown - offset - audit.void
            self._shown = offset + audit.void
        self._counts = replace(
            self._counts,
            slips=(*self._counts.slips, *slips),
            retracted_bytes=self._counts.retracted_bytes + retracted,
        )
        return slips

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
            drafted_blocks=c.drafted_blocks + (verdict.drafted > 0),
            accepted_by_position=tally(c.accepted_by_position, accepted),
            drafted_tokens=c.drafted_tokens + verdict.drafted,
            drafted_bytes=c.drafted_bytes + verdict.drafted_bytes,
            accepted_tokens=c.accepted_tokens + accepted,
            accepted_bytes=c.accepted_bytes + accepted_bytes,
            mismatches=c.mismatches + (verdict.outcome is m.Outcome.MISMATCH),
            realignments=c.realignments + (verdict.outcome is m.Outcome.REALIGNED),
            ties_rechecked=c.ties_rechecked + verdict.ties,
        )

    def _count_audit(self, audit: Audit, taken: Taken, offset: int) -> None:
        """What of the shown tokens the verdict has checked, and in which state it came."""
        kept_to = self._shown if audit.void is None else min(self._shown, offset + audit.void)
        if self._config.shown_stands:  # also a token of which only the head was shown, before a stop string
            right = begun_before(kept_to, offset, audit.tokens)
        else:
            right = whole_before(kept_to, offset, taken.tokens)
        void = begun_before(self._shown, offset, self._released) - whole_before(kept_to, offset, self._released)
        audited = right if self._config.shown_stands else right + len(audit.wrong)
        trust, kept, c = self._trust.state, len(taken.tokens), self._counts
        self._counts = replace(
            c,
            released_tokens=c.released_tokens + right + (0 if audit.void is None else void),
            kept_tokens=c.kept_tokens + right,
            audited_tokens=c.audited_tokens + audited,
            doubt_tokens=c.doubt_tokens + kept * (trust in {Trust.DOUBT, Trust.REPAIR}),
            takeover_tokens=c.takeover_tokens + kept * (trust is Trust.TAKEOVER),
        )

    # ------------------------------------------------------------ endings

    def _end_unaudited(self) -> list[m.Message]:
        """The end is released; nobody waits for its audit."""
        offset = self._rules.length
        taken = self._rules.take([m.PathToken(span.id, span.data) for span in self._released])
        cut = self._rules.length
        self._count_unchecked(begun_before(cut, offset, self._released), max(0, cut - max(self._shown, offset)))
        return self._finish(taken.finish or m.FinishReason.LENGTH, taken.data, offset, certain_to=offset)

    def _break_off(self, reason: m.FinishReason, error: str | None = None) -> list[m.Message]:
        """Shown bytes that cannot be taken back stand, checked or not; the others go."""
        offset, data = self._rules.length, b""
        if self._config.shown_stands and self._shown > offset:
            data = bytes_of(self._released)[: self._shown - offset]
            self._rules.take(self._shown_tokens())
            self._count_unchecked(begun_before(self._shown, offset, self._released))
        return self._finish(reason, data, offset, error, certain_to=offset)

    def _count_unchecked(self, tokens: int, size: int = 0) -> None:
        """So many tokens, or heads of such, are shown, stand, and will never be checked; `size` bytes are new."""
        c = self._counts
        self._counts = replace(
            c,
            released_tokens=c.released_tokens + tokens,
            released_bytes=c.released_bytes + size,
            kept_tokens=c.kept_tokens + tokens,
        )

    def _shown_tokens(self) -> tuple[m.PathToken, ...]:
        """Released spans of which everything was shown, as tokens."""
        at, tokens = self._rules.length, list[m.PathToken]()
        for span in self._released:
            at += len(span.data)
            if at <= self._shown:
                tokens.append(m.PathToken(span.id, span.data))
        return tuple(tokens)

    def _finish(
        self,
        reason: m.FinishReason,
        data: bytes,
        offset: int,
        error: str | None = None,
        slips: tuple[m.Slip, ...] = (),
        certain_to: int | None = None,
    ) -> list[m.Message]:
        """`certain_to`: output offset from which on nothing will be checked; absent, all is."""
        self._state = State.FINISHED
        cut = self._rules.stop_now(reason)
        if self._config.shown_stands:
            cut = max(cut, min(self._shown, offset + len(data)))
        path = tuple(self._rules.ids)
        c = self._counts
        taken_back = max(0, self._shown - cut)
        self._counts = replace(
            c,
            new_tokens=len(path),
            new_bytes=cut,
            takeovers=self._trust.takeovers,
            retracted_bytes=c.retracted_bytes + taken_back,
        )
        # `ids` of the last commit is the whole path: a stop string may have taken back earlier ids
        certain = certain_to if data else None
        last = m.Commit(offset, data, cut, path, reason, self._counts, error, slips=slips, certain_to=certain)
        return [m.Finished(self._prompt_tokens + len(path), reason), last]
