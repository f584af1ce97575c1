"""The gate: for each span, release it unseen or have the target verify it.

In strict mode the answer is always *verify*. In streaming mode the first of these reasons that holds decides:

    never         the caller allows no release
    sampling      the target samples; a draft is no sample
    certificate   the certificate is closed: what the gate would do is recorded and audited, nothing is shown
    doubt         less than the doubt interval is verified behind a slip, or the target has taken over
    anchor        so many bytes were shown since everything shown was last verified
    cap           too much would be shown and unverified, in bytes or in tokens
    incomplete    the span ends inside a character, or perhaps inside a token
    confidence    the drafter is not sure enough
    rule: ...     a plug-in's rule holds it back (`gate_rule.py`); `rule failed` where that gave no answer
    behind        a span before it waits for the target: output is contiguous
    standing      its bytes were shown already, and come again because the target sees other borders
    confident     none of these: it is released

A span that waits is looked at again with each commit, and may be released then. Confidence is calibrated before it
is compared. The gate knows neither the target nor the client; what it releases the cascade shows, or drops if
a mismatch overtook it.
"""

from collections import deque
from typing import NamedTuple

from msgspec.structs import replace

from grimboost import messages as m
from grimboost.stages.configuration import GateConfig
from grimboost.stages.gate_rule import TAIL_BYTES, GateRule, reason_to_hold
from grimboost.stages.pieces import bytes_of
from grimboost.stages.stage import undefined


class _Waiting(NamedTuple):
    """A span at its output offset, with its calibrated confidence, and why a rule holds it, if one does."""

    offset: int
    span: m.Span
    confidence: float
    held: str | None = None

    @property
    def end(self) -> int:
        return self.offset + len(self.span.data)


class GateStage:
    """Turns drafts into decided spans; drops those of an older epoch."""

    patience = None

    def __init__(self, config: GateConfig, rule: GateRule | None = None) -> None:
        self._config = config
        self._rule = rule
        # what is released and not committed, and before it what a character, or a rule, may need
        self._keeps = config.max_unverified_bytes + (TAIL if rule is None else TAIL_BYTES)
        self._epoch = 0
        self._done = False
        self._streaming = config.mode == "streaming"
        self._certified = config.certified
        self._threshold = config.threshold
        self._frontier = 0  # committed output bytes
        self._released_to = 0  # output offset up to which spans were released
        self._ends: deque[int] = deque()  # offsets at which released spans end, behind the frontier
        self._waiting: deque[_Waiting] = deque()
        self._committed_tail = b""  # last committed bytes
        self._tail = b""  # last bytes before `_position`: a character may go on behind them
        self._overtaken = 0  # drafts that know of no commit up to here go on behind contradicted ones
        self._void = False  # the epoch is new, and what still stands has not been said yet
        self._anchor = config.anchor_bytes
        self._doubt_until = 0
        self._alone = False

    @property
    def done(self) -> bool:
        return self._done

    def receive(self, message: m.GateInput) -> list[m.Message]:
        """One `Spans` for each draft of the current epoch; that a drafter retired is news in any epoch."""
        if self._done:
            return []  # a draft that was under way when the generation ended
        match message:
            case m.Draft(epoch=epoch, retired=retired):
                return self._decide(message) if epoch == self._epoch or retired else []
            case m.Invalidated(epoch=epoch):
                self._epoch, self._void = epoch, True
                self._waiting.clear()
                return []
            case m.Committed():
                return self._advance(message) if self._streaming else []
            case m.Certified(threshold=threshold):
                self._certified = threshold is not None
                if self._config.release == "certified":
                    self._threshold = max(self._config.floor, threshold or 0.0)
                return self._release(self._next()) if self._streaming else []
            case m.Finished():
                self._done = True
                return []
        raise undefined("gate", "open", message)

    def _decide(self, draft: m.Draft) -> list[m.Message]:
        if not self._streaming or draft.epoch != self._epoch:
            spans = tuple(m.GatedSpan(span, m.Decision.VERIFY, self._config.mode) for span in draft.spans)
            return [m.Spans(draft.epoch, draft.frontier, draft.offset, spans, draft.retired, draft.more)]
        while self._waiting and self._waiting[-1].offset >= draft.offset:
            self._waiting.pop()  # the drafter has begun anew
        graded = self._graded(draft)
        if self._stands_on(draft):
            self._waiting.extend(graded)
        else:  # a verdict said otherwise while it was under way: it comes again, and what goes on behind it
            self._overtaken = max(self._overtaken, self._frontier)
        before = self._released_to
        released = self._release(self._next())
        spans = self._explained(graded, before)
        answer = m.Spans(draft.epoch, draft.frontier, draft.offset, spans, draft.retired, draft.more)
        return [*released, answer]

    def _graded(self, draft: m.Draft) -> list[_Waiting]:
        at, graded = draft.offset, list[_Waiting]()
        for span in draft.spans:
            graded.append(_Waiting(at, span, self._config.calibration.of(span.confidence)))
            at += len(span.data)
        return graded if self._rule is None else self._ruled(self._rule, draft.offset, graded)

    def _ruled(self, rule: GateRule, offset: int, graded: list[_Waiting]) -> list[_Waiting]:
        """The same, with what the rule says of those that may yet be shown."""
        text, ruled = self._before(offset), list[_Waiting]()
        for one in graded:
            if one.end > self._position:
                text = self._tail if one.offset == self._position else text  # what is shown, whatever is drafted
                held = reason_to_hold(rule, one.offset, one.span, one.confidence, text)
                ruled.append(one._replace(span=replace(one.span, held=True), held=held) if held else one)
            else:
                ruled.append(one)
            text = (text + one.span.data)[-self._keeps :]
        return ruled

    def _stands_on(self, draft: m.Draft) -> bool:
        """Whether what of the draft lies before the frontier is what was committed there, and so for those before
        it: whoever had not heard of a commit that contradicted one goes on behind it."""
        if draft.frontier < self._overtaken:
            return False
        past = max(0, self._frontier - draft.offset)
        data = bytes_of(draft.spans)[:past] if past else b""
        known = self._committed_tail[-past:][: len(data)] if past <= len(self._committed_tail) else None
        return known == data

    def _before(self, offset: int) -> bytes:
        """The last output bytes before that offset: shown ones, and behind them those that wait."""
        past = self._position - offset
        if past > 0:
            return self._tail[: max(0, len(self._tail) - past)]
        waiting = (one.span.data[max(0, self._position - one.offset) :] for one in self._waiting)
        return self._tail + b"".join(waiting)

    def _explained(self, graded: list[_Waiting], before: int) -> tuple[m.GatedSpan, ...]:
        """A draft's spans, each with what was decided of it and why."""
        spans, blocked = [], False
        for one in graded:
            at, span, end = one.offset, one.span, one.end
            if end <= self._released_to:
                decision, reason = m.Decision.RELEASE, "confident" if end > before else "standing"
            else:
                waits = "behind" if blocked or at != self._position else "incomplete"
                decision, reason = m.Decision.VERIFY, self._reason(one) or waits
                blocked = True
            spans.append(m.GatedSpan(span, decision, reason, one.confidence))
        return tuple(spans)

    # ------------------------------------------------------------ what may be shown

    @property
    def _position(self) -> int:
        return max(self._released_to, self._frontier)

    def _next(self) -> list[m.Span]:
        """Waiting spans from the released frontier on that nothing forbids, to the end of a whole character."""
        found: list[m.Span] = []
        at = self._position
        while self._waiting and self._waiting[0].end <= at:
            self._waiting.popleft()  # one that is committed in part stays: the rest may yet be contradicted
        for one in self._waiting:
            if one.offset != at or self._reason(one, len(found)) is not None:
                break
            found.append(one.span)
            at += len(one.span.data)
        while found and inside_character(self._tail + bytes_of(found)):
            found.pop()
        return found

    def _reason(self, one: _Waiting, more: int = 0) -> str | None:
        """Why a span has to be verified, if `more` others are released before it."""
        if shut := self._shut():
            return shut
        config, end = self._config, one.end
        if end > self._anchor:
            return "anchor"
        if end - self._frontier > config.max_unverified_bytes:
            return "cap"
        if len(self._ends) + more + 1 > config.max_unverified_tokens:
            return "cap"
        if not one.span.whole:
            return "incomplete"
        return "confidence" if one.confidence < self._threshold else one.held

    def _shut(self) -> str | None:
        """Why nothing may be shown now, whatever it is."""
        config = self._config
        if config.release == "never":
            return "never"
        if not config.greedy:
            return "sampling"
        if config.release == "certified" and not self._certified:
            return "certificate"
        return "doubt" if self._frontier < self._doubt_until or self._alone else None

    def _release(self, spans: list[m.Span]) -> list[m.Message]:
        if not spans:
            return []
        offset = self._position
        for span in spans:
            self._waiting.popleft()
            self._released_to = self._position + len(span.data)
            self._ends.append(self._released_to)
            self._tail = (self._tail + span.data)[-self._keeps :]
        return [m.Release(self._epoch, offset, tuple(spans))]

    # ------------------------------------------------------------ what the cascade says

    def _advance(self, message: m.Committed) -> list[m.Message]:
        data = bytes_of(message.tokens)
        overtaken = not self._void and self._contradicted(message.frontier - len(data), data)
        self._frontier = message.frontier
        self._committed_tail = (self._committed_tail + data)[-OVERTAKEN:]
        if self._void:
            self._restart(message)
        if overtaken:  # drafted behind bytes that are not the output's; it comes again
            self._waiting.clear()
            self._overtaken = self._frontier
            self._released_to = min(self._released_to, self._frontier)  # what was not shown yet is dropped
            self._ends.clear()
        while self._ends and self._ends[0] <= self._frontier:
            self._ends.popleft()
        if self._released_to <= self._frontier:
            self._tail = self._committed_tail[-self._keeps :]
            self._anchor = self._frontier + self._config.anchor_bytes
        self._doubt_until, self._alone = message.doubt_until, message.alone > 0
        return self._release(self._next())

    def _contradicted(self, start: int, data: bytes) -> bool:
        """Whether released or waiting spans say otherwise than `data` at that offset: a verdict overtook them."""
        released = max(0, self._released_to - start)
        known = self._tail[-released:] if 0 < released <= len(self._tail) else b""
        if known[: len(data)] != data[: len(known)]:
            return True
        for one in self._waiting:
            low, high = max(one.offset, start), min(one.end, start + len(data))
            if one.offset >= start + len(data):
                return False
            if (
                low < high
                and one.span.data[low - one.offset : high - one.offset] != data[low - start : high - start]
            ):
                return True
        return False

    def _restart(self, message: m.Committed) -> None:
        """Of what was released, `standing` bytes stand."""
        self._void = False
        self._released_to = self._frontier + message.standing
        if message.released:
            self._ends.clear()
            at = self._frontier
            for span in message.released:
                at += len(span.data)
                self._ends.append(at)
            text = self._committed_tail + bytes_of(message.released)
            self._tail = text[-self._keeps :]
        while self._ends and self._ends[-1] > self._released_to:
            self._ends.pop()


OVERTAKEN = 1024
"""Bytes: of a draft that verdicts have overtaken by more, nothing is shown."""

TAIL = 3
"""Bytes of a character that may be there while it is not whole."""


def inside_character(data: bytes) -> bool:
    """Whether `data` ends inside a UTF-8 character. What can be no character any more is not inside one."""
    for back in range(1, min(TAIL, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 2 if 0xC2 <= byte < 0xE0 else 3 if 0xE0 <= byte < 0xF0 else 4 if 0xF0 <= byte < 0xF5 else 1
        return back < length
    return False
