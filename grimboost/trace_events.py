"""What a trace says of one turn or batch: names, arguments and frontiers. Sizes only, never a text. Pure."""

from collections import Counter
from typing import Any

from grimboost import messages as m
from grimboost.instruments import Batch, Turn
from grimboost.stages.pieces import size_of

_FACTS = ("epoch", "frontier", "offset", "number", "outcome", "accepted", "drafted", "reveal_to", "done", "finish")


def turn_arguments(turn: Turn) -> dict[str, Any]:
    """What came in, what went out, and how long it had waited."""
    said = {"queued_ms": round(1000 * turn.queued, 3), **_facts(turn.message)}
    if turn.answers:
        said["answers"] = ", ".join(type(answer).__name__ for answer in turn.answers)
    for answer in turn.answers:
        if isinstance(answer, m.Spans):
            said["reasons"] = dict(Counter(one.reason for one in answer.spans))
        elif isinstance(answer, m.Verdict):
            said.update(_facts(answer))
        elif isinstance(answer, m.Commit) and answer.slips:
            said["slips"] = len(answer.slips)
    return said


def _facts(message: m.Message) -> dict[str, Any]:
    found = {name: getattr(message, name) for name in _FACTS if getattr(message, name, None) is not None}
    size = _size(message)
    return found if size is None else {**found, "bytes": size}


def _size(message: m.Message) -> int | None:
    match message:
        case m.Spans(spans=gated):
            return size_of(one.span for one in gated)
        case m.Draft(spans=spans) | m.DraftReturned(spans=spans) | m.Release(spans=spans):
            return size_of(spans)
        case m.Verdict(tokens=tokens) | m.Committed(tokens=tokens):
            return size_of(tokens)
        case m.Commit(data=data) | m.Reveal(data=data):
            return len(data)
    return None


def batch_name(batch: Batch) -> str:
    """What was asked, such as `pass, 12 rows`."""
    requests = [one.request for one in batch.work]
    rows = sum(len(request.tokens) for request in requests if isinstance(request, m.PassRequested))
    kinds = Counter(_kind(request) for request in requests)
    return ", ".join([*kinds, *([f"{rows} row{'s' if rows != 1 else ''}"] if rows else [])])


def _kind(request: Any) -> str:
    match request:
        case m.PassRequested(choose=choose):
            return "pass" if choose else "prefill"
        case m.DraftRequested():
            return "draft"
        case m.OpenRequested():
            return "open"
        case m.ReleaseRequested():
            return "give back"
    return type(request).__name__.lower()


def batch_arguments(batch: Batch) -> dict[str, Any]:
    """Whose requests, and how much."""
    said: dict[str, Any] = {
        "generations": sorted({one.run for one in batch.work}),
        "queued_ms": round(1000 * max((batch.begin - one.submitted for one in batch.work), default=0.0), 3),
    }
    passes = [one for one in batch.work if isinstance(one.answer, m.PassReturned)]
    if passes:
        said["rows"] = sum(len(one.request.tokens) for one in passes)
        said["context"] = [one.answer.length for one in passes]  # type: ignore[union-attr]
        said["numbers"] = [one.request.number for one in passes]
    drafts = [one.answer for one in batch.work if isinstance(one.answer, m.DraftReturned)]
    if drafts:
        said["epoch"] = drafts[0].epoch
        said["bytes"] = sum(_size(draft) or 0 for draft in drafts)
    return said


def frontiers(before: dict[str, int], turn: Turn) -> dict[str, int]:
    """Output offsets behind what is committed, released and revealed, after a turn of the cascade or the
    revealer."""
    found = dict(before)
    for answer in turn.answers:
        match answer:
            case m.Commit(offset=offset, data=data, standing=standing):
                found["committed"] = offset + len(data)
                found["released"] = found["committed"] + standing
            case m.Reveal(offset=offset, data=data):
                found["released"] = offset + len(data)
            case m.Chunk(offset=offset, data=data) | m.Provisional(offset=offset, data=data):
                found["revealed"] = offset + len(data)
            case m.Retracted(offset=offset):
                found["revealed"] = offset
    return found
