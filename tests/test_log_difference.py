"""Where two logs part: the first message that differs, by lineage, and not what only times or turns decided."""

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace
from record_logs import LOGS, record
from scripted import run

from grimboost import messages as m
from grimboost.lineage import Lineage, sender_of
from grimboost.log import Log, LogEntry
from grimboost.log_difference import compare
from grimboost.message_difference import differing
from grimboost.message_text import Words
from grimboost.replaying import replay
from grimboost.wiring import CASCADE, CLIENT, VERIFIER

NAMES = sorted(path.stem for path in LOGS.glob("*.grimlog"))


@cache
def open_log(name: str) -> Log:
    return Log.open(LOGS / f"{name}.grimlog")


def renumbered(log: Log, entries: list[LogEntry]) -> Log:
    return Log(log.header, [replace(entry, sequence=place) for place, entry in enumerate(entries)], None)


@pytest.mark.parametrize("name", NAMES)
def test_a_log_is_the_same_as_itself(name: str) -> None:
    found = compare(open_log(name), open_log(name))
    assert found.identical
    assert not found.order
    assert not found.timing
    assert found.one == found.other


@pytest.mark.parametrize("name", NAMES)
def test_other_times_are_no_difference(name: str) -> None:
    log = open_log(name)
    entries = [replace(entry, seconds=2 * entry.seconds) for entry in log]
    for place, entry in enumerate(entries):
        if isinstance(entry.message, m.PassReturned):
            other = replace(entry.message, seconds=1.0, batch_rows=99, batch_slots=7)
            entries[place] = replace(entry, message=other)
    found = compare(log, Log(replace(log.header, started=1.0), entries, None))
    assert found.identical
    assert found.timing


@pytest.mark.parametrize("name", NAMES)
def test_turns_of_stages_that_do_not_depend_on_each_other_are_no_difference(name: str) -> None:
    log = open_log(name)
    lineage = Lineage()
    for entry in log:
        lineage.feed(entry)
    entries = log.entries.copy()
    for place in range(0, len(entries) - 1, 2):
        first, second = entries[place : place + 2]
        origin = lineage.causes.get(second.sequence)
        if first.stage != second.stage and (origin is None or origin.sequence != first.sequence):
            entries[place : place + 2] = second, first
    found = compare(log, renumbered(log, entries))
    assert found.identical
    assert not found.order  # each stage received the same in the same order


def test_where_a_stage_received_the_same_in_another_order_that_is_all_that_is_said() -> None:
    """The verifier was released spans and given an answer; which came first made no difference here."""
    log = open_log("slips")
    places = [place for place, entry in enumerate(log.entries) if entry.stage == VERIFIER]
    said = 0
    for first, second in pairwise(places):
        entries = log.entries.copy()
        entries[first], entries[second] = entries[second], entries[first]
        other = renumbered(log, entries)
        if _lane(log.entries[first]) != _lane(log.entries[second]) and replay(other) is None:
            found = compare(log, other)
            assert found.identical
            assert found.order
            said += 1
    assert said


def _lane(entry: LogEntry) -> tuple[str, bool] | None:
    edge = sender_of(type(entry.message), entry.stage)
    return (edge.sender, edge.blocks) if edge else None


@pytest.mark.parametrize("name", NAMES)
def test_one_altered_message_is_the_first_divergent_one_in_either_direction(name: str) -> None:
    log = open_log(name)
    tried = 0
    for place, entry in enumerate(log.entries):
        if not isinstance(entry.message, m.PassReturned | m.DraftReturned | m.Verdict | m.Commit):
            continue
        if isinstance(entry.message, m.PassReturned):
            changed: m.Message = replace(entry.message, length=entry.message.length + 1)
        elif isinstance(entry.message, m.Commit):
            changed = replace(entry.message, reveal_to=entry.message.reveal_to + 1)
        else:
            changed = replace(entry.message, frontier=entry.message.frontier + 1)
        entries = log.entries.copy()
        entries[place] = replace(entry, message=changed)
        for one, other in ((log, Log(log.header, entries, None)), (Log(log.header, entries, None), log)):
            divergence = compare(one, other).divergence
            assert divergence is not None
            assert divergence.one is not None
            assert divergence.other is not None
            assert divergence.one.entry.sequence == divergence.other.entry.sequence == place
            assert divergence.fields[0].name in {"length", "reveal_to", "frontier"}
        tried += 1
    assert tried


def test_the_message_that_something_follows_from_comes_before_what_follows() -> None:
    """The drafter of both is the same; the first difference is what the cascade made of the same verdict."""
    found = compare(open_log("slips"), open_log("retracted"))
    assert not found.identical
    names = {field.name for field in found.configuration}
    assert "stages.cascade.shown_stands" in names
    assert "stages.revealer.revisable" in names
    assert found.divergence is not None
    assert found.divergence.cause == "cascade#5"
    one = found.divergence.one
    assert one is not None
    assert isinstance(one.entry.message, m.Invalidated)
    assert found.output_differs_at == 18
    assert found.one.slips == 6
    assert (found.one.tokens, found.other.tokens) == (31, 20)


def test_a_log_that_ends_early_is_a_difference_that_says_so() -> None:
    log = open_log("slips")
    for size in range(1, len(log.entries), 9):
        torn = Log(log.header, log.entries[:size], None)
        for one, other in ((log, torn), (torn, log)):
            found = compare(one, other)
            if size < 100:
                assert found.divergence is not None
                assert found.divergence.ended
                assert (found.divergence.one is None) == (one is torn)
                assert found.one.tokens == (None if one is torn else 31)


def test_an_additional_message_of_the_second_log_is_found() -> None:
    log = open_log("lookup")
    place = next(place for place, entry in enumerate(log.entries) if isinstance(entry.message, m.Released))
    shorter = log.entries[:place] + log.entries[place + 1 :]
    found = compare(renumbered(log, shorter), log)
    assert found.divergence is not None
    assert found.divergence.one is None
    assert found.divergence.other is not None
    assert isinstance(found.divergence.other.entry.message, m.Released)
    assert not found.divergence.ended


def test_a_run_recorded_anew_has_the_same_output_and_where_it_parts_is_a_root(tmp_path: Path) -> None:
    path = tmp_path / "now.grimlog"
    run(lambda: record("retracted", path))
    found = compare(open_log("retracted"), Log.open(path))
    assert found.output_differs_at is None
    if found.divergence is not None and found.divergence.one is not None:
        assert found.divergence.one.entry.stage in {CASCADE, CLIENT, VERIFIER, "gate", "drafter", "revealer"}


def test_fields_are_named_by_where_they_are() -> None:
    one = m.Commit(0, b"abc", 3, (1, 2), slips=(m.Slip(0, 0, b"a", b"b", 0.5),))
    other = m.Commit(0, b"abd", 3, (1, 2, 3), slips=(m.Slip(0, 0, b"a", b"c", float("nan")),))
    fields = {field.name: (field.one, field.other) for field in differing(one, other, Words())}
    assert fields == {
        "data": ('"abc"', '"abd"'),
        "ids.2": (None, "3"),
        "slips.0.chosen": ('"b"', '"c"'),
        "slips.0.confidence": ("0.5", "nan"),
    }
    assert not list(differing(other, other, Words()))
    assert [field.name for field in differing((one,), (m.Elapsed(),), Words())] == ["0"]
