"""Logs kept in `tests/logs/` replay byte for byte, through whatever the stages have become since (layer 3)."""

from pathlib import Path
from typing import get_args

import msgspec
import pytest
from client_view import view
from record_logs import EXPECTED, LOGS, MAKE, record
from scripted import TEXTS, VOCABULARY, run

from grimboost import messages as m
from grimboost.log import Log
from grimboost.replaying import fresh_stages, replay
from grimboost.wiring import CLIENT, DRAFTER, GATE, STAGES, VERIFIER

NAMES = sorted(path.stem for path in LOGS.glob("*.grimlog"))
encode = msgspec.msgpack.encode


def open_log(name: str) -> Log:
    return Log.open(LOGS / f"{name}.grimlog")


def events(log: Log) -> list[m.Message]:
    return [answer for entry in log for answer in entry.answers if isinstance(answer, m.ClientEvent)]


def messages(log: Log, kind: type[m.Message]) -> list[m.Message]:
    received = [entry.message for entry in log if isinstance(entry.message, kind)]
    return received + [answer for entry in log for answer in entry.answers if isinstance(answer, kind)]


def test_every_log_of_the_script_is_there_and_no_other() -> None:
    assert sorted(MAKE) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_log_replays_byte_for_byte(name: str) -> None:
    log = open_log(name)
    assert log.torn_at is None
    stages = fresh_stages(log.header.stages, log.header.rule)
    for entry in log:
        if entry.stage == CLIENT:
            continue
        assert encode(stages[entry.stage].receive(entry.message)) == encode(entry.answers), entry
    assert replay(log) is None
    assert all(stage.done for stage in stages.values())


@pytest.mark.parametrize("name", NAMES)
def test_H4_what_a_kept_log_shows_the_client_is_what_was_committed(name: str) -> None:
    shown = events(open_log(name))
    *chunks, done = shown
    assert isinstance(done, m.Done)
    client = view(chunks)
    data = client.text
    assert done.length == len(data)
    assert client.slips == list(done.counts.slips)
    if name == "stop-string":  # the cut falls inside a token here
        assert data.startswith(VOCABULARY.join(done.ids))
    else:
        assert data == VOCABULARY.join(done.ids)
    if name in EXPECTED:
        assert (data, done.reason) == EXPECTED[name]


SETTLED = ["no-drafter", "lookup", "drafter-failed", "near-ties", "sampled", "retracted", "certified"]
"""Logs whose end does not depend on the order in which things happened."""


@pytest.mark.parametrize("name", SETTLED)
def test_a_log_made_now_comes_to_the_same_end_as_the_one_kept(name: str, tmp_path: Path) -> None:
    path = tmp_path / "now.grimlog"
    run(lambda: record(name, path))
    now, kept = events(Log.open(path)), events(open_log(name))
    assert isinstance(now[-1], m.Done)
    assert isinstance(kept[-1], m.Done)
    assert (now[-1].ids, now[-1].length, now[-1].reason) == (kept[-1].ids, kept[-1].length, kept[-1].reason)


def test_a_log_made_now_on_trio_replays_too(tmp_path: Path) -> None:
    path = tmp_path / "trio.grimlog"
    run(lambda: record("realigned", path), "trio")
    assert replay(Log.open(path)) is None


def test_the_kept_logs_show_what_their_names_say() -> None:
    done = {name: events(open_log(name))[-1] for name in NAMES}
    assert done["cancelled"].reason == "cancelled"  # type: ignore[union-attr]
    assert 0 < done["cancelled"].length < len(TEXTS[2])  # type: ignore[union-attr]
    assert (done["target-failed"].reason, done["target-failed"].error) == ("error", "device lost")  # type: ignore[union-attr]
    assert done["near-ties"].counts.ties_rechecked > 0  # type: ignore[union-attr]
    assert done["realigned"].counts.realignments > 0  # type: ignore[union-attr]
    assert done["realigned"].counts.mismatches > 0  # type: ignore[union-attr]
    assert done["lookup"].counts.accepted_tokens > 0  # type: ignore[union-attr]
    assert messages(open_log("drafter-failed"), m.DraftFailed)
    assert not messages(open_log("no-drafter"), m.DraftRequested)
    assert open_log("sampled").header.rule.seed == 7
    assert done["slips"].counts.slips  # type: ignore[union-attr]
    assert done["slips"].counts.audited_tokens == done["slips"].counts.kept_tokens  # type: ignore[union-attr]
    assert done["retracted"].counts.retracted_bytes > 0  # type: ignore[union-attr]
    assert done["takeover"].counts.takeovers > 0  # type: ignore[union-attr]
    assert [message.threshold for message in messages(open_log("certified"), m.Certified)] == [0.5]
    assert not done["certified"].counts.slips  # type: ignore[union-attr]


def test_between_them_the_kept_logs_hold_every_message_but_a_chance_one() -> None:
    seen = {
        type(message) for name in NAMES for entry in open_log(name) for message in (entry.message, *entry.answers)
    }
    assert set(get_args(m.AnyMessage)) - seen <= {m.Elapsed}
    assert {entry.stage for name in NAMES for entry in open_log(name)} == {*STAGES, CLIENT}


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_log_tells_nothing_of_the_machine_it_was_made_on(name: str) -> None:
    data = (LOGS / f"{name}.grimlog").read_bytes()
    for trace in (b"/home", b"/root", b"/tmp", b"/work"):
        assert trace not in data
    assert len(data) < 120_000


@pytest.mark.parametrize("stage", [DRAFTER, GATE, VERIFIER])
def test_a_log_of_another_order_is_noticed(stage: str) -> None:
    """H2: order is recorded per stage and enforced; two inputs of one stage swapped are a difference."""
    log = open_log("realigned")
    places = [place for place, entry in enumerate(log.entries) if entry.stage == stage and entry.answers]
    first, second = places[2], places[3]
    entries = log.entries.copy()
    entries[first], entries[second] = entries[second], entries[first]
    assert replay(Log(log.header, entries, None)) is not None
