"""Why an output byte is what it is: the chain from draft to reveal, in words and with times.

`explain(log, offset)` takes a byte of the output as the client has it. A byte that the target chose itself has no
draft, or one that was refused. A log that ends early, or lacks its beginning, gives the part of the chain that it
holds. What had to do with the byte `grimboost.provenance` finds out; here it is put into words.
"""

import os

from msgspec import Struct

from grimboost import messages as m
from grimboost.candidates import Standing
from grimboost.committed_token import CommittedToken, Source, committed_token
from grimboost.errors import LogError, MisuseError
from grimboost.log import Log, LogEntry
from grimboost.message_text import Words, counted, milliseconds, reach, slip_text, verdict_text
from grimboost.output_views import output_of, views
from grimboost.provenance import Provenance, Traced
from grimboost.stages.pieces import bytes_of


class Step(Struct, frozen=True):
    """One link: what happened (`kind`), the lineage of the message, when, in words, and which output bytes it was
    about."""

    kind: str
    name: str
    sequence: int
    seconds: float
    text: str
    start: int
    data: bytes


class Explanation(Struct, frozen=True):
    """The chain of one output byte in order of time. `token`: the bytes of its token, which begins at `start`."""

    offset: int
    data: bytes
    start: int
    token: bytes
    source: Source
    steps: tuple[Step, ...]
    output_bytes: int


def explain(
    log: Log | str | os.PathLike[str], offset: int, withdrawn_at: int | None = None, words: Words | None = None
) -> Explanation:
    """The chain of the output byte at `offset`; with `withdrawn_at`, of the one that this entry took back.

    Raises `MisuseError` where the output has no such byte.
    """
    log = log if isinstance(log, Log) else Log.open(log)
    return Explainer(log, words).explain(offset, withdrawn_at)


class Explainer:
    """Explains bytes of one log."""

    def __init__(self, log: Log, words: Words | None = None) -> None:
        self.log = log
        self.output = output_of(log)
        self._traced = Traced(log)
        self._words = words or Words(redacted=log.header.redacted)

    def explain(self, offset: int, withdrawn_at: int | None = None) -> Explanation:
        """See `explain`. A byte before those that were taken back stands."""
        if withdrawn_at is not None and offset < self._taken_back_from(withdrawn_at):
            withdrawn_at = None
        data = self.output if withdrawn_at is None else self._before(withdrawn_at)
        if not 0 <= offset < len(data):
            raise MisuseError(f"there is no output byte {offset}: the output has {counted(len(data), 'byte')}")
        chain = _Chain(self._traced, offset, withdrawn_at, self._words)
        found = chain.explanation(data[offset : offset + 1], len(self.output))
        if not found.steps:
            raise LogError(f"this log begins behind what led to output byte {offset}")
        return found

    def _taken_back_from(self, sequence: int) -> int:
        entry = self.log.entry(sequence)
        return next(event.offset for event in entry.answers if isinstance(event, m.Retracted))

    def _before(self, sequence: int) -> bytes:
        before = b""
        for data, entry in views(self.log):
            if entry.sequence >= sequence:
                break
            before = data
        return before


class _Chain:
    """Puts into steps what was found out about a byte."""

    def __init__(self, traced: Traced, offset: int, withdrawn_at: int | None, words: Words) -> None:
        self._traced = traced
        self._withdrawn: LogEntry | None = None
        if withdrawn_at is not None:
            self._withdrawn = traced.log.entry(withdrawn_at)
        judge = traced.sender(self._withdrawn)
        self._found = Provenance(traced, offset, withdrawn_at, judge.sequence if judge else None)
        self._judge = self._found.commit if self._withdrawn is None else judge  # the cascade's entry that decided
        self._words = words
        self._config = traced.log.header.stages
        self._steps: list[tuple[tuple[int, int], Step]] = []

    def explanation(self, byte: bytes, size: int) -> Explanation:
        """The whole of it."""
        found, judge = self._found, self._judge
        verdict = judge.message if judge and isinstance(judge.message, m.Verdict) else None
        verifier = self._traced.sender(judge) if verdict else None
        standing = self._traced.candidates.at(verifier, found.offset)
        token = None
        if self._withdrawn is None and judge and verdict:
            token = committed_token(judge, verdict, found.offset, self._config.cascade)
        self._drafting(standing)
        self._showing()
        if judge and verdict:
            self._verifying(judge, verdict, verifier, token, standing)
        if judge:
            self._committing(judge)
        self._ending()
        source = Source.UNCHECKED if self._withdrawn is None else Source.WITHDRAWN
        if token is None:
            start, data = (standing.start, standing.gated.span.data) if standing else (found.offset, byte)
        else:
            start, data, source = token.start, token.data, token.source
        steps = tuple(step for _, step in sorted(self._steps, key=lambda one: one[0]))
        return Explanation(found.offset, byte, start, data, source, steps, size)

    # ------------------------------------------------------------ steps

    def _add(
        self, kind: str, entry: LogEntry, text: str, start: int, data: bytes, place: int | None = None
    ) -> None:
        name = self._traced.lineage.names[entry.sequence]
        name = name if place is None else f"{name}.{place}"
        step = Step(kind, name, entry.sequence, entry.seconds, text, start, data)
        self._steps.append(((entry.sequence, place or 0), step))

    def _drafting(self, standing: Standing | None) -> None:
        """Draft, span and decision."""
        gate = self._traced.sender(standing.entry) if standing else None
        if standing is None or gate is None:
            return
        span, start = standing.gated.span, standing.start
        draft = self._traced.sender(gate)
        if draft is not None:
            self._draft(draft)
        self._add("gate", gate, self._decision(gate, standing), start, span.data, _place(gate, m.Spans))

    def _draft(self, draft: LogEntry) -> None:
        drawn = self._found.drawn(draft)
        for entry in dict.fromkeys((drawn.entry.sequence if drawn else draft.sequence, draft.sequence)):
            source = self._traced.log.entry(entry)
            returned = source.message
            if not isinstance(returned, m.DraftReturned):
                continue
            origin, asker = self._traced.origin(source), self._traced.sender(source)
            if asker is not None and origin is not None:
                self._request(asker, origin.place)
            again = "" if source is draft and drawn and drawn.entry is source else ", cut anew"
            statistics = _statistics(drawn.token) if drawn and drawn.entry is source else ""
            text = f"{counted(len(returned.spans), 'span')} in {milliseconds(returned.seconds)}"
            data = bytes_of(returned.spans)
            self._add(
                "draft",
                source,
                f"{text}{again if source is draft else ''}{statistics}",
                returned.offset,
                data,
                _place(source, m.Draft),
            )

    def _request(self, asker: LogEntry, place: int) -> None:
        request = asker.answers[place]
        assert isinstance(request, m.DraftRequested)
        start = request.frontier + len(request.ahead)
        cut = ", and its spans anew" if request.realign else ""
        self._add("request", asker, f"at most {request.limit} bytes from {start}{cut}", start, b"", place)

    def _decision(self, gate: LogEntry, standing: Standing) -> str:
        gated = standing.gated
        where = reach(standing.start, standing.start + len(gated.span.data))
        text = f"{gated.decision} ({gated.reason}): span {where} {self._words.quote(gated.span.data)}"
        if self._config.gate.mode != "streaming":
            return f"{text}, confidence {gated.span.confidence:.3g}"
        threshold = self._found.thresholds[gate.sequence]
        return f"{text}, calibrated confidence {gated.confidence:.3g}, threshold {threshold:.3g}"

    def _showing(self) -> None:
        """Release, reveal, and when the client took it."""
        found, release = self._found, self._found.release
        if release is not None:
            gate = self._traced.sender(release)
            place = _place(release, m.Reveal)
            reveal = release.answers[place]
            assert isinstance(reveal, m.Reveal)
            where = reach(reveal.offset, reveal.offset + len(reveal.data))
            if gate is not None and not isinstance(gate.message, m.Draft):
                behind = self._words.describe(gate.message)
                text = f"{where} after {behind}"
                self._add("late release", gate, text, reveal.offset, reveal.data, _place(gate, m.Release))
            self._add("release", release, f"{where} unchecked", reveal.offset, reveal.data, place)
        if found.shown is not None:
            self._reveal(found.shown.entry, found.shown.place)

    def _reveal(self, entry: LogEntry, place: int) -> None:
        event = entry.answers[place]
        assert isinstance(event, m.Chunk | m.Provisional)
        self._add("reveal", entry, self._words.describe(event), event.offset, event.data, place)
        for taken in self._traced.receivers(entry, place):
            self._add("taken", taken, "the client has it", event.offset, event.data)

    def _verifying(
        self,
        judge: LogEntry,
        verdict: m.Verdict,
        verifier: LogEntry | None,
        token: CommittedToken | None,
        standing: Standing | None,
    ) -> None:
        """The passes and the verdict."""
        data = bytes_of(verdict.tokens)
        if verifier is None:
            self._add("verdict", judge, verdict_text(verdict), verdict.frontier, data)
            return
        for asked, place, returned in self._traced.passes(verifier):
            request, answer = asked.answers[place], returned.message
            assert isinstance(request, m.PassRequested)
            assert isinstance(answer, m.PassReturned)
            text = f"pass {request.number}: {counted(len(request.tokens), 'row')}, {milliseconds(answer.seconds)}"
            batch = f", with {counted(answer.batch_slots, 'slot')} and {answer.batch_rows} rows in the batch"
            alone = answer.batch_slots <= 1
            self._add("pass", asked, text + ("" if alone else batch), verdict.frontier, data, place)
        about = self._about(verdict, verifier, token, standing)
        place = _place(verifier, m.Verdict)
        self._add("verdict", verifier, f"{verdict_text(verdict)}{about}", verdict.frontier, data, place)

    def _about(
        self, verdict: m.Verdict, verifier: LogEntry, token: CommittedToken | None, standing: Standing | None
    ) -> str:
        """What the verdict means for this byte's token."""
        if token is None:
            return ""
        own = self._words.quote(token.data)
        choices = verifier.message.choices if isinstance(verifier.message, m.PassReturned) else ()
        plain = len(choices) == verdict.drafted + 1 and token.place < len(choices)
        margin = f", margin {choices[token.place].margin:.3g}" if plain else ""
        if token.source is Source.DRAFTED:
            return f"; {own} is drafted token {token.place + 1} of {verdict.drafted}: accepted{margin}"
        if token.source is Source.SLIP:
            return f"; {own} was shown, and is not the target's choice{margin}"
        if standing is None:
            return f"; {own} is the target's own token, nothing was drafted there{margin}"
        drafted = self._words.quote(standing.gated.span.data)
        return f"; {own} is the target's own token, drafted was {drafted}{margin}"

    def _committing(self, commit: LogEntry) -> None:
        place = _place(commit, m.Commit)
        message = commit.answers[place]
        assert isinstance(message, m.Commit)
        where = f"{reach(message.offset, message.offset + len(message.data))} {self._words.quote(message.data)}"
        unchecked = "" if isinstance(commit.message, m.Verdict) else ", never checked by the target"
        self._add("commit", commit, f"{where} is final{unchecked}", message.offset, message.data, place)

    def _ending(self) -> None:
        """Slips, what was taken back, and when the client knew that it was final."""
        found = self._found
        if found.slipped is not None and isinstance(found.slipped.event, m.Slipped):
            slip = found.slipped.event.slip
            text = slip_text(slip, self._words)
            self._add("slip", found.slipped.entry, text, slip.offset, slip.data, found.slipped.place)
        if found.final is not None and isinstance(found.final.event, m.CommittedTo):
            text = f"everything before {found.final.event.offset} is final"
            self._add("final", found.final.entry, text, found.offset, b"", found.final.place)
        for one in found.withdrawn:
            event = one.shown.event
            assert isinstance(event, m.Chunk | m.Provisional)
            was = self._words.quote(event.data[found.offset - event.offset :])
            text = f"{was} had been shown here at {one.shown.entry.seconds:.4f} s"
            self._add("taken back", one.back.entry, text, found.offset, b"", one.back.place)
        if self._withdrawn is not None:
            place = _place(self._withdrawn, m.Retracted)
            text = self._words.describe(self._withdrawn.answers[place])
            self._add("taken back", self._withdrawn, text, found.offset, b"", place)


def _place(entry: LogEntry, kind: type[m.Message]) -> int:
    """Which of its answers is of that kind."""
    return next(place for place, answer in enumerate(entry.answers) if isinstance(answer, kind))


def _statistics(token: m.DraftToken) -> str:
    known = (("top1", token.top1), ("margin", token.margin), ("entropy", token.entropy))
    more = "".join(f", {name} {value:.3g}" for name, value in known if value is not None)
    return f"; token of {counted(token.length, 'byte')}, confidence {token.confidence:.3g}{more}"
