"""Case H2, hard: recorded logs with entries dropped, doubled, swapped, renumbered; what matters is found in place.

Whether a change matters is decided here from the wiring's table and the messages alone: two inputs of different
stages may change places unless one follows from the other.
"""

import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from record_logs import LOGS

from grimboost import messages as m
from grimboost.errors import LogError
from grimboost.lineage import Broken, Lineage
from grimboost.log import MAGIC, Log, LogEntry, frame
from grimboost.replaying import Difference, replay
from grimboost.wiring import CLIENT

NAMES = sorted(path.stem for path in LOGS.glob("*.grimlog"))
encode = msgspec.msgpack.encode


@cache
def open_log(name: str) -> Log:
    return Log.open(LOGS / f"{name}.grimlog")


@cache
def traced(name: str) -> Lineage:
    lineage = Lineage()
    for entry in open_log(name):
        lineage.feed(entry)
    return lineage


def replayed(log: Log, entries: list[LogEntry]) -> Difference | None:
    """Replay of other entries, renumbered as a log's are."""
    numbered = [replace(entry, sequence=place) for place, entry in enumerate(entries)]
    return replay(Log(log.header, numbered, None))


def descends(lineage: Lineage, later: LogEntry, earlier: LogEntry) -> bool:
    origin = lineage.causes.get(later.sequence)
    return origin is not None and origin.sequence == earlier.sequence


# ---------------------------------------------------------------- swapped, dropped, doubled


@pytest.mark.parametrize("name", NAMES)
def test_neighbours_of_different_stages_may_change_places_unless_one_caused_the_other(name: str) -> None:
    log, lineage = open_log(name), traced(name)
    free = bound = 0
    for place in range(len(log.entries) - 1):
        first, second = log.entries[place : place + 2]
        entries = [*log.entries[:place], second, first, *log.entries[place + 2 :]]
        if first.stage == second.stage:
            continue
        found = replayed(log, entries)
        if descends(lineage, second, first):
            bound += 1
            assert found is not None
            assert found.entry.sequence == place
            assert found.error is not None
        else:
            free += 1
            assert found is None, found
    assert free
    assert bound


@pytest.mark.parametrize("name", NAMES)
def test_two_inputs_of_one_stage_change_places_only_where_nobody_can_tell(name: str) -> None:
    """Where the lanes differ and the stage answers the same, another order was possible; else it is found."""
    log = open_log(name)
    by_stage: dict[str, list[int]] = {}
    for place, entry in enumerate(log.entries):
        by_stage.setdefault(entry.stage, []).append(place)
    found_some = 0
    for places in by_stage.values():
        for first, second in pairwise(places):
            entries = log.entries.copy()
            entries[first], entries[second] = entries[second], entries[first]
            found = replayed(log, entries)
            if log.entries[first] == replace(
                log.entries[second], sequence=first, seconds=log.entries[first].seconds
            ):
                assert found is None
            elif same_lane(name, first, second):
                assert found is not None, (name, first, second)
                assert first <= found.entry.sequence <= second
                found_some += 1
    assert found_some


def same_lane(name: str, first: int, second: int) -> bool:
    """Whether both come from the same sender on the same lane, and are different messages."""
    from grimboost.lineage import sender_of

    one, other = open_log(name).entries[first], open_log(name).entries[second]
    if one.stage == CLIENT:
        return True
    edges = [sender_of(type(entry.message), entry.stage) for entry in (one, other)]
    if None in edges or edges[0].sender == "engine":  # type: ignore[union-attr]
        return False
    lanes = [(edge.sender, edge.blocks) for edge in edges if edge]
    return lanes[0] == lanes[1] and one.message != other.message


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_entry_is_found_where_its_absence_shows(name: str) -> None:
    """At the next message of its lane, or the first that follows from it; behind the last one nothing can show."""
    log, lineage = open_log(name), traced(name)
    silent = 0
    for place, entry in enumerate(log.entries):
        found = replayed(log, log.entries[:place] + log.entries[place + 1 :])
        effects = [
            sequence
            for answer in range(len(entry.answers))
            for sequence in lineage.effects.get(_origin(place, answer), ())
        ]
        if found is None:
            assert not effects, (place, entry)
            silent += 1
        else:
            assert found.entry.sequence >= place
            if effects:
                assert found.entry.sequence <= min(effects) - 1
    assert silent < 0.35 * len(log.entries)


def _origin(sequence: int, place: int) -> Any:
    from grimboost.lineage import Origin

    return Origin(sequence, place)


@pytest.mark.parametrize("name", NAMES)
def test_a_doubled_entry_is_found_at_the_next_input_of_its_lane_at_the_latest(name: str) -> None:
    """Where the next one is the same, the doubled one passes for it, and one too many is found behind."""
    log, lineage = open_log(name), traced(name)
    at_once = 0
    for place, entry in enumerate(log.entries):
        if entry.sequence not in lineage.causes and entry.stage != CLIENT:
            continue  # from outside, or the clock: it may have come twice
        found = replayed(log, log.entries[: place + 1] + log.entries[place:])
        assert found is not None, (place, entry)
        own = [later.sequence for later in log.entries[place + 1 :] if later.stage == entry.stage]
        same = [sequence for sequence in own if type(log.entries[sequence].message) is type(entry.message)]
        assert place < found.entry.sequence <= max(same, default=place) + 1
        at_once += found.entry.sequence == place + 1
    assert at_once > 0.9 * len(lineage.causes)


@pytest.mark.parametrize("name", NAMES)
def test_an_altered_answer_is_found_in_its_place(name: str) -> None:
    log = open_log(name)
    for place, entry in enumerate(log.entries):
        answers = entry.answers[:-1] if entry.answers else (m.Elapsed(),)
        entries = log.entries.copy()
        entries[place] = replace(entry, answers=answers)
        found = replayed(log, entries)
        assert found is not None
        assert found.entry.sequence == place


@pytest.mark.parametrize("name", NAMES)
def test_an_altered_input_is_found_in_its_place(name: str) -> None:
    """Every input that a stage sent, changed in one field, was not sent so; and a worker says what it answers."""
    log, lineage = open_log(name), traced(name)
    for place, entry in enumerate(log.entries):
        if entry.stage == CLIENT or entry.sequence not in lineage.causes:
            continue
        changed = _changed(entry.message)
        if changed is None:
            continue
        entries = log.entries.copy()
        entries[place] = replace(entry, message=changed)
        found = replayed(log, entries)
        assert found is not None, entry
        assert found.entry.sequence == place
        assert found.error is not None or isinstance(entry.message, m.PassReturned)


def _changed(message: m.Message) -> m.Message | None:
    """One number of the message is another; None for what has none that counts."""
    for field in ("offset", "frontier", "epoch", "done", "number"):
        if hasattr(message, field) and not isinstance(message, m.DraftReturned):
            return replace(message, **{field: getattr(message, field) + 1000})
    return None


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("name", NAMES)
def test_names_do_not_depend_on_turns_of_concurrent_stages(name: str) -> None:
    """A stage's inputs keep their names when entries of other stages move."""
    log, lineage = open_log(name), traced(name)
    entries = sorted(log.entries, key=lambda entry: lineage.names[entry.sequence].split("#")[0])
    other = Lineage()
    for entry in entries:
        other.follow(entry)
    assert other.names == lineage.names


def test_a_lineage_that_is_followed_tells_the_first_fault_and_goes_on_naming() -> None:
    log = open_log("slips")
    lineage = Lineage()
    for entry in (*log.entries[:9], *log.entries[10:]):
        lineage.follow(entry)
    assert lineage.broken is not None
    assert lineage.broken.split(":")[0] in lineage.names.values()
    assert len(lineage.names) == len(log.entries) - 1


@pytest.mark.parametrize("name", NAMES)
def test_any_end_of_a_log_has_a_lineage_of_its_own(name: str) -> None:
    log = open_log(name)
    for first in range(1, len(log.entries)):
        lineage = Lineage(first)
        for entry in log.entries[first:]:
            lineage.feed(entry)
        whole = traced(name)
        assert all(whole.causes[sequence] == origin for sequence, origin in lineage.causes.items()) or _guessed(
            lineage, whole
        )


def _guessed(lineage: Lineage, whole: Lineage) -> bool:
    """In a partial log an equal message that came earlier may be taken for the cause, never another sender's."""
    return all(
        lineage.names[origin.sequence].split("#")[0] == whole.names[whole.causes[sequence].sequence].split("#")[0]
        for sequence, origin in lineage.causes.items()
    )


# ---------------------------------------------------------------- logs made by hand


def hand_made(change: Any, place: int = 20) -> bytes:
    """The log `slips` with one entry changed as plain values."""
    log = open_log("slips")
    data = MAGIC + frame(encode(log.header))
    for entry in log:
        plain = msgspec.msgpack.decode(encode(entry))
        if entry.sequence == place:
            change(plain)
        data += frame(encode(plain))
    return data


def _rename(plain: Any) -> None:
    plain[3]["type"] = "Verdikt"


def _retype(plain: Any) -> None:
    plain[3] = msgspec.to_builtins(m.Reveal(1, b"x", 2)) | {"offset": "one", "data": b"x"}


def _without(plain: Any) -> None:
    plain[3] = {"type": "Reveal", "data": b"x", "reveal_to": 2}


def _renumber(plain: Any) -> None:
    plain[0] = 77


def _move(plain: Any) -> None:
    plain[2] = "conductor"


def _misroute(plain: Any) -> None:
    plain[2] = "revealer"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_rename, r"the frame at byte \d+ is not of this version: Invalid value 'Verdikt'"),
        (
            _retype,
            r"the frame at byte \d+ is not of this version: Expected `int`, got `str` - at `\$\[3\].offset`",
        ),
        (_without, r"the frame at byte \d+ is not of this version: .*missing required field `offset`"),
        (_renumber, r"entry 77 stands at place 20, byte \d+"),
    ],
)
def test_what_no_version_writes_is_refused_with_its_place(change: Any, message: str) -> None:
    with pytest.raises(LogError, match=message):
        Log.parse(hand_made(change))


def test_an_entry_of_no_stage_or_of_the_wrong_one_is_a_difference() -> None:
    nobody, wrong = (replay(Log.parse(hand_made(change))) for change in (_move, _misroute))
    assert nobody is not None
    assert (nobody.entry.sequence, nobody.error) == (20, "there is no stage 'conductor'")
    assert wrong is not None
    assert wrong.entry.sequence == 20
    assert "to the revealer" in str(wrong.error)


def test_a_client_that_says_what_is_not_a_clients_is_found() -> None:
    log = open_log("slips")
    place = next(place for place, entry in enumerate(log.entries) if entry.stage == CLIENT)
    entries = log.entries.copy()
    entries[place] = replace(entries[place], message=m.Elapsed())
    found = replayed(log, entries)
    assert found is not None
    assert found.error == "a client sends no Elapsed"
    with pytest.raises(Broken):
        lineage = Lineage()
        for entry in entries:
            lineage.feed(entry)


# ---------------------------------------------------------------- the library's names


@pytest.mark.parametrize(
    "imports",
    [
        "import grimboost",
        "import grimboost.replaying, grimboost",
        "import grimboost.generation, grimboost.replay_command, grimboost",
        "import grimboost; from grimboost import replay; import grimboost.replaying, grimboost.explanation",
    ],
)
def test_replay_and_explain_are_functions_whatever_was_imported_before(imports: str) -> None:
    log = Path(LOGS / "slips.grimlog")
    script = (
        f"{imports}\n"
        f"assert callable(grimboost.replay) and callable(grimboost.explain)\n"
        f"assert grimboost.replay({str(log)!r}) is None\n"
        f"assert grimboost.explain({str(log)!r}, 18).source == 'slip'\n"
        f"assert len([entry.message for entry in grimboost.Log.open({str(log)!r})]) == 130\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
