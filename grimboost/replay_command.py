"""`grimboost replay`: whether logs replay identically, and the first difference where one does not.

It knows nothing of click.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from grimboost import messages as m
from grimboost.errors import LogError
from grimboost.lineage import Lineage
from grimboost.log import Log
from grimboost.log_output import emit_json, emit_lines, located, open_log, terminal_width
from grimboost.message_difference import FieldDifference, differing, side
from grimboost.message_text import Words, counted
from grimboost.output_views import output_of
from grimboost.replaying import Difference, replay
from grimboost.stages.gate_rule import GateRule
from grimboost.timeline import Row, fitting_lines

AROUND = 3
"""Entries that are shown before and behind the first difference."""
MOST_FIELDS = 12


class Outcome(Struct, frozen=True):
    """What became of one log. `difference` is None where it is identical, or could not be read (`error`)."""

    path: Path
    error: str | None = None
    log: Log | None = None
    difference: Difference | None = None
    seconds: float = 0.0

    @property
    def identical(self) -> bool:
        """Whether everything was as recorded."""
        return self.error is None and self.difference is None


def run_replay(paths: Sequence[Path], gate: str | None, as_json: bool) -> int:
    """Returns the exit status: 0 if all are identical."""
    rule = _rule(gate)
    same = True
    for path in paths:
        outcome = _outcome(path, rule)
        same = same and outcome.identical
        if as_json:
            emit_json(_as_object(outcome))
        elif outcome.error is not None and len(paths) == 1:
            raise LogError(outcome.error)
        else:
            emit_lines(_lines(outcome, named=len(paths) > 1))
    return 0 if same else 1


def _rule(gate: str | None) -> GateRule | None:
    """A plug-in by name; only what the caller names is ever imported."""
    if gate is None:
        return None
    from grimboost.plugins import load_plugin

    rule: GateRule = load_plugin("gate", gate)
    return rule


def _outcome(path: Path, rule: GateRule | None) -> Outcome:
    begin = time.perf_counter()
    try:
        log = open_log(path)
        difference = replay(log, rule)
    except LogError as error:
        return Outcome(path, str(located(path, error)))
    return Outcome(path, None, log, difference, time.perf_counter() - begin)


# ---------------------------------------------------------------- one line


def _lines(outcome: Outcome, named: bool) -> Iterator[str]:
    if outcome.log is None:
        yield str(outcome.error)
        return
    name = f"{outcome.path}: " if named else ""
    if outcome.difference is None:
        yield name + _identical(outcome, outcome.log)
    else:
        yield from _different(name, outcome.log, outcome.difference)


def _identical(outcome: Outcome, log: Log) -> str:
    recorded, seconds = _recorded(log), outcome.seconds
    faster = f" ({recorded / seconds:.0f} x)" if seconds > 0 else ""
    return (
        f"identical: {counted(len(log.entries), 'message')}, {counted(_tokens(log), 'token')}, "
        f"{counted(len(output_of(log)), 'byte')}; recorded in {_seconds(recorded)}, "
        f"replayed in {_seconds(seconds)}{faster}{_end(log)}"
    )


def _end(log: Log) -> str:
    """What is missing at the end."""
    if log.torn_at is not None:
        return f"; torn at byte {log.torn_at}, what precedes it was used"
    return "" if log.ended else "; it ends before the generation did"


def _recorded(log: Log) -> float:
    return log.entries[-1].seconds if log.entries else 0.0


def _tokens(log: Log) -> int:
    """Output tokens that were committed."""
    tokens = 0
    for entry in log:
        for answer in entry.answers:
            if isinstance(answer, m.Commit):
                tokens = len(answer.ids) if answer.finish else tokens + len(answer.ids)
    return tokens


def _seconds(seconds: float) -> str:
    digits = 1 if seconds >= 1 else 2 if seconds >= 0.1 else 4
    return f"{seconds:.{digits}f} s"


# ---------------------------------------------------------------- a difference


def _different(name: str, log: Log, difference: Difference) -> Iterator[str]:
    words, entry = Words(), difference.entry
    place = next(place for place, one in enumerate(log.entries) if one is entry)
    where = f"{difference.name}, message {place} of {len(log.entries)}, at {entry.seconds:.4f} s"
    yield f"{name}different: {where}{_end(log)}"
    yield f"  received  {words.describe(entry.message)}"
    if difference.error is not None:
        yield f"  error     {difference.error}"
    else:
        yield f"  recorded  {_answers(entry.answers, words)}"
        yield f"  now       {_answers(difference.got, words)}"
        yield from _fields(entry.answers, difference.got, words)
    yield "around it"
    yield from _around(log, place)


def _answers(answers: Sequence[Any], words: Words) -> str:
    return "; ".join(map(words.describe, answers)) or "nothing"


def _fields(recorded: Sequence[Any], now: Sequence[Any], words: Words) -> Iterator[str]:
    found = list(differing(tuple(recorded), tuple(now), words))
    for one in found[:MOST_FIELDS]:
        yield f"  differs   {one.name}: recorded {side(one.one)}, now {side(one.other)}"
    if len(found) > MOST_FIELDS:
        yield f"  differs   {len(found) - MOST_FIELDS} more"


def _around(log: Log, place: int) -> Iterator[str]:
    lineage, width = Lineage(log.header.first), terminal_width()
    for at, entry in enumerate(log.entries[: place + AROUND + 1]):
        lineage.follow(entry)
        if at >= place - AROUND:
            row = Row(entry, lineage.names[entry.sequence], None, 0)
            mark = "> " if at == place else "  "
            for line in fitting_lines(row, log.header.redacted, width and width - len(mark)):
                yield mark + line


# ---------------------------------------------------------------- for machines


class _Differing(Struct, frozen=True):
    """The first difference as `--json` prints it."""

    name: str
    sequence: int
    seconds: float
    stage: str
    received: Any
    recorded: Any
    now: Any
    error: str | None
    fields: list[FieldDifference]


def _as_object(outcome: Outcome) -> dict[str, Any]:
    log = outcome.log
    if log is None:
        return {"log": str(outcome.path), "identical": False, "error": outcome.error}
    one = outcome.difference
    return {
        "log": str(outcome.path),
        "identical": outcome.identical,
        "error": None,
        "messages": len(log.entries),
        "tokens": _tokens(log),
        "bytes": len(output_of(log)),
        "recorded_seconds": _recorded(log),
        "replayed_seconds": outcome.seconds,
        "torn_at": log.torn_at,
        "ended": log.ended,
        "difference": _differing(one) if one else None,
    }


def _differing(one: Difference) -> _Differing:
    entry = one.entry
    fields = [] if one.error else list(differing(entry.answers, one.got, Words()))
    return _Differing(
        one.name,
        entry.sequence,
        entry.seconds,
        entry.stage,
        entry.message,
        entry.answers,
        one.got,
        one.error,
        fields,
    )
