"""Messages in words: one short piece of text for each kind, for people who read logs.

Output ranges are written `14:25`, as `--bytes` takes them; bytes as quoted text, shortened in the middle. A
redacted log has no texts, so only lengths are shown. It knows neither lineage nor times of entries.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct

from grimboost import messages as m
from grimboost.stages.pieces import bytes_of, size_of

TEXT = 40
"""Characters of a quoted text that are shown, unless told otherwise."""


class Words(Struct, frozen=True):
    """How to write: `most` characters of each text; with `redacted` none."""

    most: int = TEXT
    redacted: bool = False

    def quote(self, data: bytes) -> str:
        """Bytes as one printable piece of text, valid UTF-8 as it is and other bytes as `\\xff`."""
        if self.redacted:
            return f"[{counted(len(data), 'byte')}]"
        if len(data) <= 4 * self.most and len(whole := _printable(data)) <= self.most:
            return f'"{"".join(whole)}"'
        head = (2 * self.most) // 3
        tail = self.most - 1 - head
        begin, end = _printable(data[: 4 * self.most])[:head], _printable(data[-4 * self.most :])[-tail:]
        return f'"{"".join(begin)}…{"".join(end)}"'

    def describe(self, message: m.Message) -> str:
        """The message's kind and what it says."""
        kind = type(message)
        text = _TEXTS[kind](message, self)
        return f"{kind.__name__} {text}".rstrip()


def counted(number: int, noun: str) -> str:
    """`1 token`, `2 tokens`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def reach(start: int, end: int) -> str:
    """A range of output bytes."""
    return f"{start}:{end}"


def milliseconds(seconds: float) -> str:
    """A duration with three digits that count, or so."""
    ms = 1000 * seconds
    digits = 0 if abs(ms) >= 100 else 1 if abs(ms) >= 10 else 2
    return f"{ms:.{digits}f} ms"


def _printable(data: bytes) -> list[str]:
    """One string for each character."""
    return [_escaped(char) for char in data.decode(errors="surrogateescape")]


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() else char.encode("unicode_escape").decode()


# ---------------------------------------------------------------- values


def spans_text(offset: int, spans: Sequence[m.Span], words: Words) -> str:
    """Spans with their range, bytes and confidences."""
    if not spans:
        return f"nothing at {offset}"
    where = reach(offset, offset + size_of(spans))
    sure = _range([span.confidence for span in spans])
    return f"{where} {words.quote(bytes_of(spans))} {counted(len(spans), 'span')}, confidence {sure}"


def decisions_text(spans: Sequence[m.GatedSpan]) -> str:
    """Decisions in a row, with their reasons."""
    runs = groupby(spans, key=lambda gated: (gated.decision, gated.reason))
    return ", ".join(f"{decision} {len(list(run))} ({reason})" for (decision, reason), run in runs)


def verdict_text(verdict: m.Verdict) -> str:
    """Outcome, what was accepted, margin and cost."""
    ties = f", {counted(verdict.ties, 'near-tie')} re-checked" if verdict.ties else ""
    accepted = f"{verdict.accepted} of {verdict.drafted} accepted, " if verdict.drafted else "nothing drafted, "
    cost = f"{verdict.passes} pass{'' if verdict.passes == 1 else 'es'} of {counted(verdict.rows, 'row')}"
    return f"{verdict.outcome}: {accepted}margin {verdict.margin:.3g}, {cost}{ties}"


def slip_text(slip: m.Slip, words: Words) -> str:
    """What was shown and what the target would have chosen."""
    instead = words.quote(slip.chosen) if slip.chosen else "a token without bytes"
    end = slip.offset + len(slip.data)
    shown = f"{reach(slip.offset, end)} {words.quote(slip.data)}"
    return f"{shown}, the target would have chosen {instead}; confidence {slip.confidence:.3g}"


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def _notes(*notes: str | None) -> str:
    return "".join(f", {note}" for note in notes if note)


# ---------------------------------------------------------------- messages


def _started(x: m.Started, words: Words) -> str:
    return f"{counted(len(x.prompt_ids), 'prompt token')} {words.quote(x.prompt)}"


def _certified(x: m.Certified, words: Words) -> str:
    return "closed" if x.threshold is None else f"open at threshold {x.threshold:g}"


def _draft_requested(x: m.DraftRequested, words: Words) -> str:
    start = x.frontier + len(x.ahead)
    cut = f"to cut {reach(x.frontier, start)} anew" if x.realign else None
    told = f"committed {words.quote(x.committed)}" if x.committed else None
    slips = counted(len(x.slips), "slip") if x.slips else None
    return f"{x.request}: at most {x.limit} bytes from {start}{_notes(cut, told, slips)}"


def _draft_returned(x: m.DraftReturned, words: Words) -> str:
    return f"{x.request}: {spans_text(x.offset, x.spans, words)}{_notes(milliseconds(x.seconds))}"


def _draft_failed(x: m.DraftFailed, words: Words) -> str:
    return f"{x.request}: {x.error}"


def _draft(x: m.Draft, words: Words) -> str:
    notes = _notes("the drafter is dropped" if x.retired else None, "more comes" if x.more else None)
    return f"{spans_text(x.offset, x.spans, words)}{notes}"


def _spans(x: m.Spans, words: Words) -> str:
    notes = _notes("the drafter is dropped" if x.retired else None, "more comes" if x.more else None)
    if not x.spans:
        return f"nothing at {x.offset}{notes}"
    data = bytes_of(gated.span for gated in x.spans)
    where = reach(x.offset, x.offset + len(data))
    return f"{where} {words.quote(data)} {decisions_text(x.spans)}{notes}"


def _release(x: m.Release, words: Words) -> str:
    return spans_text(x.offset, x.spans, words)


def _prefilled(x: m.Prefilled | m.Progress, words: Words) -> str:
    return f"{x.done} of {x.total} prompt tokens"


def _verdict(x: m.Verdict, words: Words) -> str:
    end = x.frontier + size_of(x.tokens)
    return f"{reach(x.frontier, end)} {words.quote(bytes_of(x.tokens))} {verdict_text(x)}"


def _audited(x: m.Audited, words: Words) -> str:
    shown, slips = sum(one.released for one in x.spans), sum(one.slip for one in x.spans)
    return f"{counted(len(x.spans), 'span')}, {shown} shown, {slips} wrong"


def _error(x: m.TargetFailed | m.PassFailed, words: Words) -> str:
    return x.error


def _commit(x: m.Commit, words: Words) -> str:
    where = reach(x.offset, x.offset + len(x.data))
    show = f"show to {x.reveal_to}"
    standing = f"{x.standing} more stand" if x.standing else None
    slips = counted(len(x.slips), "slip") if x.slips else None
    certain = f"certain to {x.certain_to}" if x.certain_to not in (None, x.offset + len(x.data)) else None
    finish = f"the end: {x.finish}" if x.finish else None
    return f"{where} {words.quote(x.data)} {show}{_notes(standing, certain, slips, finish, x.error)}"


def _reveal(x: m.Reveal, words: Words) -> str:
    end = x.offset + len(x.data)
    return f"{reach(x.offset, end)} {words.quote(x.data)} show to {x.reveal_to}"


def _committed(x: m.Committed, words: Words) -> str:
    data = bytes_of(x.tokens)
    standing = f"{x.standing} released bytes stand" if x.standing else None
    doubt = f"doubt until {x.doubt_until}" if x.doubt_until > x.frontier else None
    alone = f"takeover: {counted(x.alone, 'token')} left" if x.alone else None
    slips = counted(len(x.slips), "slip") if x.slips else None
    notes = _notes(slips, standing, doubt, alone)
    return (
        f"{reach(x.frontier - len(data), x.frontier)} {words.quote(data)} {counted(len(x.tokens), 'token')}{notes}"
    )


def _invalidated(x: m.Invalidated, words: Words) -> str:
    return f"epoch {x.epoch} begins{', drafted bytes stand' if x.keep else ''}"


def _finished(x: m.Finished, words: Words) -> str:
    return f"{x.reason}, {counted(x.length, 'token')} with the prompt"


def _open_requested(x: m.OpenRequested, words: Words) -> str:
    return f"temperature {x.rule.temperature:g}, seed {x.rule.seed}" if x.rule.temperature else "greedy"


def _pass_requested(x: m.PassRequested, words: Words) -> str:
    return f"{x.number}: {counted(len(x.tokens), 'row')} behind {x.keep} tokens, {counted(x.choose, 'choice')}"


def _pass_returned(x: m.PassReturned, words: Words) -> str:
    batch = (
        f"batch of {counted(x.batch_rows, 'row')}, {counted(x.batch_slots, 'slot')}" if x.batch_slots > 1 else None
    )
    return f"{x.number}: {counted(len(x.choices), 'choice')}, {milliseconds(x.seconds)}{_notes(batch)}"


def _length(x: m.Released, words: Words) -> str:
    return f"at {counted(x.length, 'token')}"


def _release_requested(x: m.ReleaseRequested, words: Words) -> str:
    return f"cut to {counted(x.keep, 'token')}"


def _shown(x: m.Chunk | m.Provisional, words: Words) -> str:
    notes = ", unchecked" if isinstance(x, m.Chunk) and x.released else ""
    return f"{reach(x.offset, x.offset + len(x.data))} {words.quote(x.data)}{notes}"


def _offset(x: m.CommittedTo | m.Retracted, words: Words) -> str:
    return str(x.offset) if isinstance(x, m.CommittedTo) else f"from {x.offset} on"


def _done(x: m.Done, words: Words) -> str:
    return f"{x.reason}: {counted(len(x.ids), 'token')}, {counted(x.length, 'byte')}{_notes(x.error)}"


def _taken(x: m.Taken, words: Words) -> str:
    event = "no further event" if x.event is None else f"event {x.event}"
    return f"{event}, delivered to {x.delivered}, acknowledged to {x.acknowledged}"


def _nothing(x: m.Message, words: Words) -> str:
    return ""


_TEXTS: dict[type[m.Message], Callable[[Any, Words], str]] = {
    m.Started: _started,
    m.Elapsed: _nothing,
    m.CancelRequested: _nothing,
    m.Certified: _certified,
    m.DraftRequested: _draft_requested,
    m.DraftReturned: _draft_returned,
    m.DraftFailed: _draft_failed,
    m.Draft: _draft,
    m.Spans: _spans,
    m.Release: _release,
    m.Prefilled: _prefilled,
    m.Verdict: _verdict,
    m.Audited: _audited,
    m.TargetFailed: _error,
    m.Commit: _commit,
    m.Reveal: _reveal,
    m.Committed: _committed,
    m.Invalidated: _invalidated,
    m.Finished: _finished,
    m.OpenRequested: _open_requested,
    m.Opened: _nothing,
    m.PassRequested: _pass_requested,
    m.PassReturned: _pass_returned,
    m.PassFailed: _error,
    m.ReleaseRequested: _release_requested,
    m.Released: _length,
    m.Progress: _prefilled,
    m.Chunk: _shown,
    m.Provisional: _shown,
    m.CommittedTo: _offset,
    m.Retracted: _offset,
    m.Slipped: lambda x, words: slip_text(x.slip, words),
    m.Done: _done,
    m.Taken: _taken,
}

KINDS: dict[str, type[m.Message]] = {kind.__name__: kind for kind in _TEXTS}
"""Every kind of message by its name."""
