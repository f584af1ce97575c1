"""A log without its texts: structure, lengths, statistics and times stay, so that it still shows what was decided.

Every byte of a text becomes `*`, every token id and the seed 0, a free text (of an error) as many `*`. What
stays is listed here by name; a field that is not listed, such as one that a message gets later, is replaced. All
messages of a kind are treated alike, so that a message is the same at its sender and its receiver.

It is no encryption. Lengths of tokens and the target's margins stay: whoever has the same model and guesses a text
can check the guess. It knows messages only as types.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect
from msgspec.structs import replace

from grimboost.errors import MisuseError
from grimboost.log import Log, LogHeader
from grimboost.log_writer import Recorded, write_log
from grimboost.messages import Message
from grimboost.stages.gate_rule import FAILED

FILLER = "*"


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


KEPT = _words(
    # places and sizes
    "accepted accepted_bytes accepted_by_position acknowledged alone breaks certain_to delivered done doubt_until",
    "drafted drafted_bytes epoch event frontier keep length limit number offset position request reveal_to rows",
    "slips standing total",
    # counts
    "accepted_tokens audited_tokens batch_rows batch_slots blocks choose doubt_tokens drafted_blocks",
    "drafted_tokens kept_tokens mismatches more new_bytes new_tokens passes prompt_tokens realignments",
    "released_bytes released_tokens retracted_bytes takeover_tokens takeovers target_passes target_rows ties",
    "ties_rechecked",
    # configuration
    "anchor_bytes context_limit doubt_bytes enough_spans max_ahead_bytes max_new_bytes max_new_tokens max_repairs",
    "max_rows max_unverified_bytes max_unverified_tokens minimum_request_bytes mode most_request_bytes",
    "prefill_rows release request_bytes suppressed_until top_k",
    # the header
    "drafter first gate_rule model model_digest precision tokenizer_digest versions",
)
"""Fields of these names keep their numbers and words, in every message and configuration."""

REASONS = {FAILED} | _words(
    "anchor behind cap certificate confidence confident doubt incomplete never sampling standing strict"
)
"""What our own gate says of a span."""

RULE = "rule: "
"""What begins a reason that a plug-in gave; its words may hold text."""

Redactor = Callable[[Any], Any]


def redacted(message: Message) -> Message:
    """The message without its texts."""
    return _of_class(type(message))(message)  # type: ignore[no-any-return]


def redacted_header(header: LogHeader) -> LogHeader:
    """The header without texts: no stop strings, no ids, no seed."""
    shown: LogHeader = _of_class(LogHeader)(header)
    return replace(shown, redacted=True)


def redacted_entries(entries: Iterable[Recorded]) -> Iterator[Recorded]:
    """Entries of a log, without texts."""
    for seconds, stage, message, answers in entries:
        yield seconds, stage, redacted(message), [redacted(answer) for answer in answers]


def redact(source: Path, destination: Path) -> Log:
    """Write a redacted copy of a log and return the log that was read.

    Raises `LogError` for one that cannot be read, and `MisuseError` for a place that cannot be written.
    """
    log = Log.open(source)
    if destination.exists() and destination.samefile(source):
        raise MisuseError(f"{destination} is the log itself; name another file for its redacted copy")
    entries = ((entry.seconds, entry.stage, entry.message, entry.answers) for entry in log)
    write_log(destination, redacted_header(log.header), redacted_entries(entries))
    return log


# ---------------------------------------------------------------- by type


@cache
def _of_class(kind: type) -> Redactor:
    """What redacts a struct of this class."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    changes = {name: _of_field(kind, name, inspect.type_info(field.type)) for name, field in fields.items()}
    changing = {name: change for name, change in changes.items() if change is not _as_it_is}

    def redact_struct(value: Any) -> Any:
        return replace(value, **{name: change(getattr(value, name)) for name, change in changing.items()})

    return redact_struct if changing else _as_it_is


def _of_field(kind: type, name: str, info: inspect.Type) -> Redactor:
    if (kind.__name__, name) == ("GatedSpan", "reason"):
        return _reason
    return _of_type(info, name in KEPT)


def _of_type(info: inspect.Type, kept: bool) -> Redactor:
    """What redacts a value of this type; `kept`: numbers and words in it stay. Unknown types are an error."""
    match info:
        case (
            inspect.FloatType()
            | inspect.BoolType()
            | inspect.NoneType()
            | inspect.EnumType()
            | inspect.LiteralType()
        ):
            return _as_it_is
        case inspect.IntType():
            return _as_it_is if kept else _zero
        case inspect.StrType():
            return _as_it_is if kept else _stars
        case inspect.BytesType():
            return _bytes
        case inspect.StructType(cls=cls):
            return _of_class(cls)
        case inspect.VarTupleType(item_type=item):
            return _each(_of_type(item, kept))
        case inspect.DictType():
            return _as_it_is if kept else _nothing
        case inspect.UnionType(types=types):
            return _either([one for one in types if not isinstance(one, inspect.NoneType)], kept)
    raise TypeError(f"redaction knows no {info}")


def _either(types: list[inspect.Type], kept: bool) -> Redactor:
    """For a value that may be absent."""
    if len(types) != 1:
        raise TypeError(f"redaction knows no choice of {types}")
    change = _of_type(types[0], kept)
    return change if change is _as_it_is else lambda value: None if value is None else change(value)


def _each(change: Redactor) -> Redactor:
    return change if change is _as_it_is else lambda values: tuple(change(value) for value in values)


def _as_it_is(value: Any) -> Any:
    return value


def _zero(_: int) -> int:
    return 0


def _nothing(_: dict[Any, Any]) -> dict[Any, Any]:
    return {}


def _stars(text: str) -> str:
    return FILLER * len(text)


def _bytes(data: bytes) -> bytes:
    return FILLER.encode() * len(data)


def _reason(text: str) -> str:
    if text in REASONS:
        return text
    said = text.removeprefix(RULE)
    return RULE * (said != text) + _stars(said)
