"""Redaction: no text and no id of any message survives, everything else does, and a new field is not forgotten."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect
from test_recorded_logs import LOGS

from grimboost import messages as m
from grimboost.command_line import cli
from grimboost.errors import LogError, MisuseError
from grimboost.lineage import Lineage
from grimboost.log import Log, LogHeader
from grimboost.redaction import KEPT, REASONS, redact, redacted, redacted_header
from grimboost.replaying import replay

MESSAGES = get_args(m.AnyMessage)
NUMBER = 777_777_777
"""Every number in a generated value; where it is an id it may not survive."""
TEXT = "§secret§"
"""Every text, as it is or as bytes."""

REPLACED = {
    *(("Started", "prompt_ids"), ("Commit", "ids"), ("Done", "ids"), ("PassRequested", "tokens")),
    *(("PathToken", "id"), ("Choice", "id"), ("Span", "id"), ("GatedSpan", "reason")),
    *((kind, "error") for kind in ("DraftFailed", "PassFailed", "TargetFailed", "Commit", "Done")),
    *(("CascadeConfig", "end_ids"), ("SamplingRule", "suppressed"), ("SamplingRule", "seed")),
    ("LogHeader", "end_of_sequence"),
}
"""Fields of numbers and words that are replaced. All others are on redaction's list, by name."""


def leaves(kind: type, seen: set[type] | None = None) -> Iterator[tuple[type, str]]:
    """Struct and name of all fields that hold numbers or texts, in this struct and those inside."""
    seen = set() if seen is None else seen
    if kind not in seen:
        seen.add(kind)
        for field in msgspec.structs.fields(kind):
            for info in parts(inspect.type_info(field.type)):
                if isinstance(info, inspect.StructType):
                    yield from leaves(info.cls, seen)
                elif isinstance(info, inspect.IntType | inspect.StrType):
                    yield kind, field.name


def parts(info: inspect.Type) -> Iterator[inspect.Type]:
    """A type, and the types inside."""
    yield info
    inner = {
        inspect.VarTupleType: lambda: [info.item_type],  # type: ignore[attr-defined]
        inspect.UnionType: lambda: info.types,  # type: ignore[attr-defined]
        inspect.DictType: lambda: [info.key_type, info.value_type],  # type: ignore[attr-defined]
        inspect.ListType: lambda: [info.item_type],  # type: ignore[attr-defined]
    }.get(type(info), lambda: [])
    for part in inner():
        yield from parts(part)


@pytest.mark.parametrize("kind", [*MESSAGES, LogHeader], ids=lambda kind: kind.__name__)
def test_every_field_is_kept_or_replaced_on_purpose(kind: type) -> None:
    """A new field fails here until somebody has decided; until then it is replaced."""
    undecided = {
        f"{owner.__name__}.{name}"
        for owner, name in leaves(kind)
        if (name in KEPT) == ((owner.__name__, name) in REPLACED)
    }
    assert not undecided


def test_the_lists_hold_nothing_that_is_gone() -> None:
    found = {(owner.__name__, name) for kind in (*MESSAGES, LogHeader) for owner, name in leaves(kind)}
    assert {name for _, name in found} >= KEPT
    assert found >= REPLACED


# ---------------------------------------------------------------- generated values


SIMPLE: dict[type, st.SearchStrategy[Any]] = {
    inspect.IntType: st.just(NUMBER),
    inspect.StrType: st.just(TEXT),
    inspect.BytesType: st.integers(0, 3).map(lambda count: TEXT.encode() * count),
    inspect.FloatType: st.floats(0.0, 1.0),
    inspect.BoolType: st.booleans(),
    inspect.NoneType: st.none(),
}


def values(info: inspect.Type) -> st.SearchStrategy[Any]:
    """Values of a type: all numbers are `NUMBER`, all texts `TEXT`, sequences are not empty."""
    if type(info) in SIMPLE:
        return SIMPLE[type(info)]
    match info:
        case inspect.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case inspect.StructType(cls=cls) if cls.__name__ == "CalibrationCurve":
            return st.just(cls())
        case inspect.StructType(cls=cls):
            return structs(cls)
        case inspect.VarTupleType(item_type=item):
            return st.lists(values(item), min_size=1, max_size=3).map(tuple)
        case inspect.ListType(item_type=item):
            return st.lists(values(item), min_size=1, max_size=3)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(values(key), values(value), min_size=1, max_size=1)
        case inspect.UnionType(types=types):
            return st.one_of(*(values(one) for one in types))
    raise TypeError(info)


def structs(kind: type) -> st.SearchStrategy[Any]:
    fields = {field.name: values(inspect.type_info(field.type)) for field in msgspec.structs.fields(kind)}
    return st.builds(kind, **fields)


def shape(value: Any, name: str = "") -> Any:
    """What has to survive: kinds, lengths, kept numbers and words, confidences, decisions."""
    if isinstance(value, msgspec.Struct):
        return type(value), [shape(getattr(value, field), field) for field in value.__struct_fields__]
    if isinstance(value, tuple):
        return [shape(item, name) for item in value]
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, bool | float) or value is None or isinstance(value, m.Decision | m.Outcome):
        return value
    if isinstance(value, str | int):
        return value if name in KEPT else type(value)
    return value


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_no_text_and_no_id_of_a_message_survives_and_the_rest_does(kind: type) -> None:
    @given(structs(kind))
    @settings(max_examples=20, deadline=None, database=None)
    def check(message: m.Message) -> None:
        hidden = redacted(message)
        packed = msgspec.msgpack.encode(hidden)
        assert TEXT.encode() not in packed
        assert b"secret" not in packed
        assert shape(hidden) == shape(message)
        assert_ids_gone(hidden)
        assert redacted(hidden) == hidden
        assert msgspec.msgpack.decode(packed, type=m.AnyMessage) == hidden

    check()


def assert_ids_gone(value: Any, name: str = "") -> None:
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            assert_ids_gone(getattr(value, field), field)
    elif isinstance(value, tuple):
        for item in value:
            assert_ids_gone(item, name)
    elif isinstance(value, int) and not isinstance(value, bool):
        assert value == 0 or name in KEPT
    elif isinstance(value, bytes):
        assert not value.strip(b"*")


@given(structs(LogHeader))
@settings(max_examples=20, deadline=None, database=None)
def test_the_header_keeps_what_was_run_and_no_text(header: LogHeader) -> None:
    hidden = redacted_header(header)
    assert hidden.redacted
    assert (hidden.model, hidden.versions, hidden.drafter) == (header.model, header.versions, header.drafter)
    assert (hidden.end_of_sequence, hidden.rule.seed) == ({}, 0)
    assert [len(stop) for stop in hidden.stages.cascade.stop] == [len(s) for s in header.stages.cascade.stop]
    assert not b"".join(hidden.stages.cascade.stop).strip(b"*")
    assert not any(hidden.stages.cascade.end_ids)
    assert shape(hidden.stages.gate) == shape(header.stages.gate)
    assert redacted_header(hidden) == hidden


def test_reasons_of_our_own_gate_stay_and_those_of_others_do_not() -> None:
    span = m.GatedSpan(m.Span(5, b"abc", 0.5), m.Decision.VERIFY, "it says abc", 0.5)
    [hidden] = redacted(m.Spans(0, 0, 0, (span,))).spans  # type: ignore[attr-defined]
    assert hidden == m.GatedSpan(m.Span(0, b"***", 0.5), m.Decision.VERIFY, "***********", 0.5)
    own = [msgspec.structs.replace(span, reason=reason) for reason in ("rule: it says abc", "rule failed", "cap")]
    hidden = redacted(m.Spans(0, 0, 0, tuple(own)))
    assert [one.reason for one in hidden.spans] == ["rule: ***********", "rule failed", "cap"]  # type: ignore[attr-defined]
    said = {
        span.reason
        for path in LOGS.glob("*.grimlog")
        for entry in Log.open(path)
        for answer in entry.answers
        if isinstance(answer, m.Spans)
        for span in answer.spans
    }
    assert said
    assert said <= REASONS


# ---------------------------------------------------------------- whole logs


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.grimlog")), ids=lambda path: path.stem)
def test_a_redacted_log_tells_the_same_story_without_its_text(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "redacted.grimlog"
    log = redact(path, out)
    hidden = Log.open(out)
    assert out.stat().st_mode & 0o777 == 0o600
    assert [(e.sequence, e.seconds, e.stage) for e in hidden] == [(e.sequence, e.seconds, e.stage) for e in log]
    assert [shape(e.message) for e in hidden] == [shape(e.message) for e in log]
    assert [shape(e.answers) for e in hidden] == [shape(e.answers) for e in log]
    before, after = Lineage(), Lineage()
    for old, new in zip(log, hidden, strict=True):
        before.feed(old)
        after.feed(new)
    assert (before.causes, before.names) == (after.causes, after.names)
    with pytest.raises(LogError, match="redacted"):
        replay(hidden)


def test_the_command_copies_and_says_where_a_log_is_torn(tmp_path: Path) -> None:
    source, out = tmp_path / "a.grimlog", tmp_path / "b.grimlog"
    data = (LOGS / "slips.grimlog").read_bytes()
    source.write_bytes(data[:-1])
    result = CliRunner().invoke(cli, ["redact", str(source), str(out)])
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"is torn at byte {Log.open(source).torn_at}" in result.stderr
    assert len(Log.open(out).entries) == len(Log.open(source).entries)
    assert b" fox" in data
    assert b" fox" not in out.read_bytes()


def test_a_log_is_not_redacted_onto_itself_nor_to_nowhere(tmp_path: Path) -> None:
    source = tmp_path / "a.grimlog"
    data = (LOGS / "slips.grimlog").read_bytes()
    source.write_bytes(data)
    (tmp_path / "link").symlink_to(source)
    for destination in (source, tmp_path / "link"):
        with pytest.raises(MisuseError, match="is the log itself"):
            redact(source, destination)
    with pytest.raises(MisuseError, match="cannot record to"):
        redact(source, tmp_path / "nowhere" / "b.grimlog")
    with pytest.raises(LogError, match="cannot read"):
        redact(tmp_path / "absent", tmp_path / "b.grimlog")
    assert source.read_bytes() == data
    assert not (tmp_path / "b.grimlog").exists()
