"""The commands that read logs, as a person or a pipe meets them: in this process, whole where a pipe matters."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from record_logs import LOGS

from grimboost import messages as m
from grimboost.command_line import cli
from grimboost.errors import LogError, MisuseError
from grimboost.log import MAGIC, Log, LogEntry, LogHeader, frame
from grimboost.log_following import LogParser, follow
from grimboost.message_text import KINDS, TEXT, Words
from grimboost.redaction import redact
from grimboost.timeline import Filter, Timeline, extent, fitting_lines

NAMES = sorted(path.stem for path in LOGS.glob("*.grimlog"))
SLIPS = str(LOGS / "slips.grimlog")


@cache
def open_log(name: str) -> Log:
    return Log.open(LOGS / f"{name}.grimlog")


def run(*arguments: str) -> Result:
    """The command in this process; errors that `main` turns into statuses arrive as exceptions."""
    return CliRunner().invoke(cli, list(arguments))


def ok(*arguments: str, status: int = 0) -> list[str]:
    result = run(*arguments)
    assert result.exit_code == status, (result.output, result.exception)
    return result.stdout.splitlines()


def error(*arguments: str) -> BaseException:
    result = run(*arguments)
    assert result.exception is not None
    assert not result.stdout
    assert "\n" not in str(result.exception)
    return result.exception


def write(path: Path, log: Log, entries: list[LogEntry] | None = None) -> Path:
    chosen = log.entries if entries is None else entries
    frames = [frame(msgspec.msgpack.encode(one)) for one in (log.header, *chosen)]
    path.write_bytes(MAGIC + b"".join(frames))
    return path


# ---------------------------------------------------------------- replay


@pytest.mark.parametrize("name", NAMES)
def test_replay_says_in_one_line_that_a_log_is_identical(name: str) -> None:
    log = open_log(name)
    [line] = ok("replay", str(LOGS / f"{name}.grimlog"))
    assert line.startswith(f"identical: {len(log.entries)} messages, ")
    done = next(answer for entry in log for answer in entry.answers if isinstance(answer, m.Done))
    assert f" {len(done.ids)} tokens, {done.length} bytes; recorded in 0.0" in line
    assert line.endswith(" x)")


def test_replay_of_several_has_a_line_for_each_and_fails_if_one_does(tmp_path: Path) -> None:
    log = open_log("slips")
    entries = log.entries.copy()
    entries[40] = replace(entries[40], answers=(m.Elapsed(),))
    bad = write(tmp_path / "bad.grimlog", log, entries)
    foreign = tmp_path / "foreign.grimlog"
    foreign.write_bytes(b"dear diary")
    lines = ok("replay", SLIPS, str(bad), str(foreign), SLIPS, status=1)
    heads = [line for line in lines if line.startswith(str(LOGS)) or line.startswith(str(tmp_path))]
    assert [line.split(": ")[1] for line in heads] == [
        "identical",
        "different",
        heads[2].split(": ")[1],
        "identical",
    ]
    assert "not a grimboost message log" in heads[2]


def test_replay_shows_the_first_difference_field_by_field_with_what_is_around_it(tmp_path: Path) -> None:
    log = open_log("slips")
    place = next(place for place, entry in enumerate(log.entries) if isinstance(entry.message, m.Verdict))
    verdict = log.entries[place]
    commit = verdict.answers[-1]
    assert isinstance(commit, m.Commit)
    changed = replace(commit, data=b"\xffother", ids=(1, 2))
    entries = log.entries.copy()
    entries[place] = replace(verdict, answers=(*verdict.answers[:-1], changed))
    path = write(tmp_path / "a.grimlog", log, entries)
    lines = ok("replay", str(path), status=1)
    assert lines[0] == f"different: cascade#5, message {place} of 130, at 0.0099 s"
    text = "\n".join(lines)
    assert "received  Verdict 0:14" in text
    assert '  differs   3.data: recorded "\\xffother", now " the quick fox"' in lines
    assert "  differs   3.ids.0: recorded 1, now 256" in lines
    assert "  differs   3.ids.2: recorded nothing, now 258" in lines
    around = lines[lines.index("around it") + 1 :]
    assert len(around) == 7
    assert [line[0] for line in around] == [" ", " ", " ", ">", " ", " ", " "]
    assert "cascade#5" in around[3]
    assert "b'" not in text


def test_replay_names_a_message_that_nobody_sent(tmp_path: Path) -> None:
    log = open_log("slips")
    entries = [replace(entry, sequence=place) for place, entry in enumerate(log.entries[:30] + log.entries[31:])]
    lines = ok("replay", str(write(tmp_path / "a.grimlog", log, entries)), status=1)
    assert lines[0].startswith("different: ")
    assert any(line.startswith("  error     ") for line in lines)


def test_replay_uses_what_precedes_a_torn_tail_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "torn.grimlog"
    data = Path(SLIPS).read_bytes()
    path.write_bytes(data[:-5])
    torn_at = Log.open(path).torn_at
    [line] = ok("replay", str(path))
    assert line.startswith("identical: 129 messages")
    assert line.endswith(f"; torn at byte {torn_at}, what precedes it was used")


def test_replay_says_that_a_log_ends_before_its_generation(tmp_path: Path) -> None:
    log = open_log("slips")
    path = write(tmp_path / "short.grimlog", log, log.entries[:50])
    [line] = ok("replay", str(path))
    assert line.endswith("; it ends before the generation did")
    [line] = ok("replay", str(write(tmp_path / "none.grimlog", log, [])))
    assert line.startswith("identical: 0 messages, 0 tokens, 0 bytes")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"redacted": True}, "redacted"),
        ({"first": 5}, "begins with entry 5"),
        ({"gate_rule": "careful"}, "gate rule 'careful'"),
    ],
)
def test_replay_of_a_log_that_holds_too_little_is_one_line(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    log = open_log("slips")
    header = replace(log.header, **change)
    entries = [replace(entry, sequence=entry.sequence + header.first) for entry in log]
    path = write(tmp_path / "less.grimlog", Log(header, entries, None))
    found = error("replay", str(path))
    assert isinstance(found, LogError)
    assert message in str(found)
    assert str(path) in str(found)


def test_replay_names_the_byte_of_damage_and_the_file(tmp_path: Path) -> None:
    data = bytearray(Path(SLIPS).read_bytes())
    data[5000] ^= 4
    path = tmp_path / "damaged.grimlog"
    path.write_bytes(data)
    found = error("replay", str(path))
    assert isinstance(found, LogError)
    assert str(path) in str(found)
    assert "byte" in str(found)
    assert "damaged" in str(found)


def test_replay_for_machines(tmp_path: Path) -> None:
    log = open_log("slips")
    entries = log.entries.copy()
    entries[40] = replace(entries[40], answers=(m.Elapsed(),))
    bad, absent = write(tmp_path / "bad.grimlog", log, entries), tmp_path / "absent.grimlog"
    good, different, unread = map(json.loads, ok("replay", "--json", SLIPS, str(bad), str(absent), status=1))
    assert (good["identical"], good["difference"], good["messages"], good["bytes"]) == (True, None, 130, 73)
    assert good["ended"] is True
    assert good["replayed_seconds"] > 0
    assert different["identical"] is False
    assert different["difference"]["sequence"] == 40
    assert different["difference"]["recorded"] == [{"type": "Elapsed"}]
    assert different["difference"]["fields"]
    assert (unread["identical"], "cannot read" in unread["error"]) == (False, True)


# ---------------------------------------------------------------- log


def entries_of(lines: list[str]) -> list[str]:
    return lines[lines.index("") + 1 :]


@pytest.mark.parametrize("name", NAMES)
def test_log_has_a_header_and_one_line_for_each_entry(name: str) -> None:
    log = open_log(name)
    lines = ok("log", str(LOGS / f"{name}.grimlog"))
    head = dict(line.split(maxsplit=1) for line in lines[: lines.index("")])
    assert head["model"] == f"scripted in exact, drafter {log.header.drafter}"
    assert head["mode"].startswith(log.header.stages.gate.mode)
    assert head["started"].endswith(f"numba {log.header.versions['numba']}")
    assert ("trust" in head) == (log.header.stages.gate.mode == "streaming")
    shown = entries_of(lines)
    assert len(shown) == len(log.entries)
    for line, entry in zip(shown, log.entries, strict=True):
        assert line.startswith(f"{entry.seconds:>9.4f}  {entry.stage}#")
        assert type(entry.message).__name__ in line
        assert line.isprintable()


def test_log_filters_by_stage_kind_epoch_time_and_bytes() -> None:
    log = open_log("slips")
    assert len(entries_of(ok("log", SLIPS, "--stage", "gate", "--stage", "client"))) == sum(
        entry.stage in {"gate", "client"} for entry in log
    )
    verdicts = entries_of(ok("log", SLIPS, "--kind", "Verdict", "--stage", "cascade"))
    assert len(verdicts) == sum(isinstance(entry.message, m.Verdict) for entry in log)
    late = entries_of(ok("log", SLIPS, "--since", "0.02", "--until", "0.03"))
    assert len(late) == sum(0.02 <= entry.seconds <= 0.03 for entry in log)
    second = entries_of(ok("log", SLIPS, "--epoch", "2", "--stage", "verifier"))
    assert second
    assert all("epoch 1 " not in line for line in second)
    some = entries_of(ok("log", SLIPS, "--bytes", "14:18", "--kind", "Chunk"))
    assert len(some) == 1
    assert "Chunk 12:24" in some[0]
    assert len(entries_of(ok("log", SLIPS, "--bytes", "72:", "--kind", "Chunk"))) == 1
    assert not entries_of(ok("log", SLIPS, "--bytes", "73", "--kind", "Chunk"))


@pytest.mark.parametrize("name", NAMES)
def test_each_epoch_has_its_rows_and_every_row_an_epoch(name: str) -> None:
    log = open_log(name)
    timeline = Timeline(log.header)
    rows = [timeline.row(entry) for entry in log]
    for row in rows:
        stated = getattr(row.entry.message, "epoch", row.epoch)
        assert row.epoch == stated
    epochs = {row.epoch for row in rows}
    assert epochs == set(range(max(epochs) + 1))
    assert sum(Filter(epoch=epoch).holds(row) for epoch in epochs for row in rows) >= len(rows)


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_of_a_message_are_those_that_it_speaks_of(name: str) -> None:
    """What has bytes at an offset covers just these; nothing reaches behind what was ever drafted."""
    log = open_log(name)
    for entry in log:
        for message in (entry.message, *entry.answers):
            found = extent(message)
            if isinstance(message, m.Chunk | m.Provisional | m.Commit | m.Reveal):
                assert found == (message.offset, message.offset + len(message.data))
            if found is not None:
                assert 0 <= found[0] <= found[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--stage", "conductor"), "there is no stage 'conductor'; there are drafter, gate,"),
        (("--kind", "Verdikt"), "there is no kind of message 'Verdikt'; there are Audited,"),
        (("--bytes", "5:2"), "give a range of output bytes"),
        (("--bytes", "x"), "give a range of output bytes"),
        (("--bytes", ":"), "give a range of output bytes"),
        (("--bytes", "-3:"), "give a range of output bytes"),
        (("--cascades", "--follow"), "--cascades needs the whole log"),
    ],
)
def test_log_refuses_what_cannot_be_before_it_reads(arguments: tuple[str, ...], message: str) -> None:
    found = error("log", "absent.grimlog", *arguments)
    assert isinstance(found, MisuseError)
    assert message in str(found)


def test_log_for_machines_has_bytes_as_base64_and_lineage() -> None:
    log = open_log("slips")
    first, *lines = map(json.loads, ok("log", SLIPS, "--json"))
    assert first["header"]["drafter"] == "script"
    assert len(lines) == len(log.entries)
    for line, entry in zip(lines, log.entries, strict=True):
        assert line["message"]["type"] == type(entry.message).__name__
        if not isinstance(entry.message, m.PassReturned | m.Verdict):  # JSON has no infinite margins
            assert msgspec.convert(line["message"], type(entry.message)) == entry.message
        assert line["sequence"] == entry.sequence
    verdict = next(line for line in lines if line["message"]["type"] == "Verdict")
    assert (verdict["name"], verdict["cause"], verdict["epoch"]) == ("cascade#5", "verifier#7.0", 0)


def test_cascades_group_what_led_to_each_mismatch_and_what_followed() -> None:
    lines = ok("log", SLIPS, "--cascades")
    heads = [line for line in lines if line.startswith("slip at ")]
    assert heads[0] == (
        'slip at 14, shown was " ", the target chose " jumps": 1 more in the same verdict, doubt until 51, '
        "not trusted again"
    )
    assert len(heads) == 3
    first = lines[lines.index(heads[0]) + 1 : lines.index(heads[1]) - 1]
    names = [line.split()[1] for line in first]
    assert {"drafter#2", "gate#1", "cascade#4", "revealer#3", "verifier#16", "cascade#9", "revealer#8"} <= set(
        names
    )
    assert [float(line.split()[0]) for line in first] == sorted(float(line.split()[0]) for line in first)
    assert any("Slipped 14:15" in line for line in first)


def test_cascades_say_what_was_taken_back_taken_over_and_trusted_again() -> None:
    retracted = ok("log", str(LOGS / "retracted.grimlog"), "--cascades")
    slip = r'slip at 18, .* the target chose " jumps": [1-9]\d* bytes taken back, doubt until 52, trusted again'
    assert any(re.match(slip, line) for line in retracted)
    assert any('mismatch at 35, drafted was " fnx", the target chose " fox"' in line for line in retracted)
    takeover = ok("log", str(LOGS / "takeover.grimlog"), "--cascades")
    assert any("takeover of 5 tokens, trusted again at" in line for line in takeover)
    strict = ok("log", str(LOGS / "lookup.grimlog"), "--cascades")
    assert any("the target chose a token without bytes: the generation ended" in line for line in strict)
    assert ok("log", str(LOGS / "no-drafter.grimlog"), "--cascades")[-1] == "no mismatch"


@pytest.mark.parametrize("name", NAMES)
def test_there_is_a_cascade_for_each_mismatch_that_was_counted(name: str) -> None:
    log = open_log(name)
    groups = [json.loads(line) for line in ok("log", str(LOGS / f"{name}.grimlog"), "--cascades", "--json")]
    counts = next(answer.counts for entry in log for answer in entry.answers if isinstance(answer, m.Done))
    verdicts = {
        entry.sequence
        for entry in log
        if isinstance(entry.message, m.Verdict)
        and entry.answers
        and (
            entry.message.outcome is m.Outcome.MISMATCH or any(getattr(one, "slips", ()) for one in entry.answers)
        )
    }
    assert len(groups) == len(verdicts) >= counts.mismatches
    for group in groups:
        sequences = [entry["sequence"] for entry in group["entries"]]
        assert sequences == sorted(set(sequences))
        assert verdicts & set(sequences)
        kinds = {entry["message"]["type"] for entry in group["entries"]}
        assert {"Verdict", "PassReturned", "Commit"} <= kinds


def test_lines_fit_the_terminal_and_keep_their_columns() -> None:
    log = open_log("slips")
    timeline = Timeline(log.header)
    for entry in log:
        row = timeline.row(entry)
        [whole] = fitting_lines(row, False, None)
        for width in (40, 80, 120, 200):
            first, *others = fitting_lines(row, False, width)
            assert all(_cells(line) <= width for line in (first, *others))
            assert first[:27] == whole[:27]
            assert first.endswith("…") or type(entry.message).__name__ in first
            if others:  # too long for one line: each answer has its own
                assert len(others) == len(entry.answers)
                for answer, line in zip(entry.answers, others, strict=True):
                    assert line.startswith(" " * 20 + "   ->  ")
                    assert line.endswith("…") or type(answer).__name__ in line


def _cells(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def test_every_kind_of_message_has_words() -> None:
    seen = {type(message).__name__ for name in NAMES for entry in open_log(name) for message in _all(entry)}
    assert seen <= set(KINDS)
    assert {kind.__name__ for kind in m.AnyMessage.__args__} == set(KINDS)  # type: ignore[attr-defined]


def _all(entry: LogEntry) -> Iterator[m.Message]:
    yield entry.message
    yield from entry.answers


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"", '""'),
        (b"plain", '"plain"'),
        (b'a"b\\c', '"a\\"b\\\\c"'),
        (b"\xff\xfe\x00\n\x1b[31m", '"\\xff\\xfe\\x00\\n\\x1b[31m"'),
        ("中🍂".encode(), '"中🍂"'),
        (b"0123456789" * 5_000_00, None),
    ],
)
def test_bytes_are_quoted_in_one_printable_line_of_bounded_length(data: bytes, shown: str | None) -> None:
    text = Words().quote(data)
    assert text.isprintable()
    assert len(text) <= 4 * TEXT + 3
    if shown is not None:
        assert text == shown
    else:
        assert text.startswith('"0123')
        assert text.endswith('789"')
        assert "…" in text


def test_a_redacted_log_shows_lengths_and_no_text() -> None:
    log = open_log("slips")
    timeline = Timeline(log.header)
    for entry in log:
        [line] = fitting_lines(timeline.row(entry), True, None)
        assert '"' not in line
    assert Words(redacted=True).quote(b"secret") == "[6 bytes]"


def test_partial_and_torn_logs_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    log = open_log("slips")
    part = Log(replace(log.header, first=60), log.entries[60:], None)
    path = write(tmp_path / "part.grimlog", part)
    lines = ok("log", str(path))
    assert any(line.startswith("partial") for line in lines)
    assert len(entries_of(lines)) == len(log.entries) - 60
    assert not run("log", str(path)).stderr
    assert run("log", str(path), "--cascades").exit_code == 0
    path.write_bytes(Path(SLIPS).read_bytes()[:-5])
    result = run("log", str(path))
    assert result.exit_code == 0
    assert "is torn at byte" in result.stderr
    assert len(entries_of(result.stdout.splitlines())) == 129


def test_a_log_whose_entries_do_not_follow_is_shown_with_a_note(tmp_path: Path) -> None:
    log = open_log("slips")
    entries = [replace(entry, sequence=place) for place, entry in enumerate(log.entries[:30] + log.entries[31:])]
    path = write(tmp_path / "odd.grimlog", log, entries)
    for arguments in ((), ("--cascades",)):
        result = run("log", str(path), *arguments)
        assert result.exit_code == 0
        assert "entries do not follow from each other, first at" in result.stderr


# ---------------------------------------------------------------- log --follow


def test_a_log_is_read_in_parts_of_any_size() -> None:
    data = Path(SLIPS).read_bytes()
    whole = [open_log("slips").header, *open_log("slips").entries]
    for size in (1, 7, 100, 5000, len(data)):
        parser = LogParser()
        found = [item for at in range(0, len(data), size) for item in parser.feed(data[at : at + size])]
        assert found == whole


@pytest.mark.parametrize("data", [b"x", b"grimlob", b"grimlog 2\n"])
def test_what_is_no_log_is_refused_as_soon_as_that_is_known(data: bytes) -> None:
    with pytest.raises(LogError):
        LogParser().feed(data)


def test_following_waits_for_the_file_for_its_header_and_for_what_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "growing.grimlog"
    data = Path(SLIPS).read_bytes()
    steps = iter([b"", data[:4], data[4:60], data[60:7000], data[7000:7003], data[7003:]])
    waits = 0

    def wait(seconds: float) -> None:
        nonlocal waits
        waits += 1
        assert waits < 50
        more = next(steps, None)
        if more is not None:
            with path.open("ab") as file:
                file.write(more)

    found = list(follow(path, wait))
    assert found == [open_log("slips").header, *open_log("slips").entries]
    assert waits < 15


def test_following_does_not_end_before_the_generation_does(tmp_path: Path) -> None:
    log = open_log("slips")
    path = write(tmp_path / "early.grimlog", log, log.entries[:60])
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(follow(path, wait))
    assert len(waits) == 20


@pytest.mark.parametrize("change", ["shorter", "gone", "damaged"])
def test_following_says_what_became_of_a_file(change: str, tmp_path: Path) -> None:
    log = open_log("slips")
    path = write(tmp_path / "x.grimlog", log, log.entries[:60])

    def wait(seconds: float) -> None:
        if change == "shorter":
            path.write_bytes(path.read_bytes()[:50])
        elif change == "gone":
            path.unlink()
        else:
            with path.open("ab") as file:
                file.write(b"\x01\x00\x00\x00\x01\x02\x03\x04damage")

    message = {"shorter": "became shorter", "gone": "was removed", "damaged": "frame at byte"}[change]
    with pytest.raises(LogError, match=message):
        list(follow(path, wait))


def test_follow_shows_a_finished_log_and_ends() -> None:
    assert ok("log", SLIPS, "--follow") == ok("log", SLIPS)


def test_follow_in_a_process_of_its_own_shows_lines_as_they_are_written(tmp_path: Path) -> None:
    """Also with a filter, and for a file that comes later."""
    path = tmp_path / "late.grimlog"
    command = [sys.executable, "-m", "grimboost", "log", str(path), "--follow", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    timer = threading.Timer(30, process.kill)
    timer.start()
    try:
        log = open_log("slips")
        write(path, log, log.entries[:10])
        assert process.stdout is not None
        first = [json.loads(process.stdout.readline()) for _ in range(11)]
        assert "header" in first[0]
        with path.open("ab") as file:
            for entry in log.entries[10:]:
                file.write(frame(msgspec.msgpack.encode(entry)))
        rest, err = process.communicate()
        assert process.returncode == 0, err
        assert len(rest.splitlines()) == len(log.entries) - 10
    finally:
        timer.cancel()


def test_ctrl_c_ends_following_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log("slips")
    path = write(tmp_path / "x.grimlog", log, log.entries[:60])

    def interrupted(path: Path) -> Iterator[LogHeader | LogEntry]:
        yield log.header
        yield log.entries[0]
        raise KeyboardInterrupt

    monkeypatch.setattr("grimboost.log_command.follow", interrupted)
    result = run("log", str(path), "--follow")
    assert (result.exit_code, result.stderr) == (0, "")
    assert len(entries_of(result.stdout.splitlines())) == 1


# ---------------------------------------------------------------- explain


def test_explain_shows_a_line_for_each_link_with_the_time_between() -> None:
    lines = ok("explain", SLIPS, "--byte", "18")
    assert lines[0] == ('byte 18 of 73, in "q" (18:19): a slip: shown, and not what the target would have chosen')
    assert " ".join(lines[1].split()) == "0.0056 drafter#1.1 request: at most 32 bytes from 12"
    assert any("+" in line and "gate#1.1" in line and "release (confident)" in line for line in lines)
    times = [float(line.split()[0]) for line in lines[1:]]
    assert times == sorted(times)


def test_explain_finds_text_and_says_how_often_it_is_there() -> None:
    path = str(LOGS / "lookup.grimlog")
    result = run("explain", path, "--text", "abX", "--occurrence", "2")
    assert result.exit_code == 0
    assert result.stdout.startswith("byte 16 of 23")
    assert "the text is there 2 times; this is number 2" in result.stderr
    found = json.loads(ok("explain", path, "--text", "abX", "--json")[0])
    assert (found["occurrences"], found["output_bytes"]) == (2, 23)
    assert [one["offset"] for one in found["tokens"]] == [6, 7, 8]
    assert {step["kind"] for step in found["tokens"][0]["steps"]} >= {"verdict", "commit", "reveal"}


def test_explain_says_that_text_was_taken_back() -> None:
    lines = ok("explain", str(LOGS / "retracted.grimlog"), "--text", "qs")
    assert "shown, and taken back" in lines[0]
    assert any("taken back: Retracted from 18 on" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --byte or --text"),
        (("--byte", "1", "--text", "x"), "give --byte or --text"),
        (("--text", ""), "--text is empty"),
        (("--byte", "73"), "there is no output byte 73: the output has 73 bytes"),
        (("--byte", "-1"), "there is no output byte -1"),
        (("--text", "nowhere"), '"nowhere" is neither in the output of 73 bytes nor in what was taken back'),
        (("--text", "quick", "--occurrence", "4"), "the text is there 3 times; --occurrence 4 is not"),
        (("--text", "quick", "--occurrence", "0"), "the text is there 3 times; --occurrence 0 is not"),
    ],
)
def test_explain_refuses_what_is_not_there(arguments: tuple[str, ...], message: str) -> None:
    found = error("explain", SLIPS, *arguments)
    assert isinstance(found, MisuseError)
    assert message in str(found)


def test_explain_of_a_redacted_log_needs_a_byte(tmp_path: Path) -> None:
    log = open_log("slips")
    path = write(tmp_path / "r.grimlog", Log(replace(log.header, redacted=True), log.entries, None))
    found = error("explain", str(path), "--text", "quick")
    assert isinstance(found, LogError)
    assert "use --byte" in str(found)
    assert '"' not in "".join(ok("explain", str(path), "--byte", "18"))


# ---------------------------------------------------------------- diff


def test_diff_says_where_logs_part_and_what_followed() -> None:
    lines = ok("diff", SLIPS, str(LOGS / "retracted.grimlog"), status=1)
    assert lines[0] == "configuration"
    assert "  stages.cascade.shown_stands: True | False" in lines
    assert "first divergent message: number 0 from the cascade to the gate" in lines
    assert any(line.startswith("  sent by cascade#5, which received the same in both") for line in lines)
    assert "  outputs: differ from byte 18 on" in lines
    assert any(line.split() == ["tokens", "31", "20"] for line in lines)


def test_diff_of_the_same_is_zero_and_says_what_is_not_a_difference(tmp_path: Path) -> None:
    assert ok("diff", SLIPS, SLIPS) == ["the same"]
    log = open_log("slips")
    later = [replace(entry, seconds=entry.seconds + 1) for entry in log]
    path = str(write(tmp_path / "later.grimlog", log, later))
    assert ok("diff", SLIPS, path) == ["the same, with other times"]


def test_diff_for_machines_and_of_a_torn_log(tmp_path: Path) -> None:
    path = tmp_path / "torn.grimlog"
    path.write_bytes(Path(SLIPS).read_bytes()[:9000])
    result = run("diff", SLIPS, str(path), "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["identical"] is False
    assert found["divergence"]["ended"] is True
    assert found["divergence"]["other"] is None
    assert "torn at byte" in result.stderr
    lines = ok("diff", SLIPS, str(path), status=1)
    assert "  B  ends before it" in lines


def test_diff_of_a_log_with_its_redacted_copy_compares_without_texts(tmp_path: Path) -> None:
    path = tmp_path / "redacted.grimlog"
    redact(Path(SLIPS), path)
    for arguments in ((SLIPS, str(path)), (str(path), SLIPS)):
        result = run("diff", *arguments)
        assert (result.exit_code, result.stdout) == (0, "the same\n")
        assert "compared without texts" in result.stderr


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize(
    "arguments",
    [
        ("replay", "{}"),
        ("log", "{}"),
        ("explain", "{}", "--byte", "0"),
        ("diff", "{}", SLIPS),
        ("log", "{}", "--cascades"),
    ],
)
@pytest.mark.parametrize("content", [None, b"", b"\x89PNG", b"grimlog 2\nxxxx", MAGIC, MAGIC + bytes(40)])
def test_what_is_no_log_is_one_line_that_names_the_file(
    arguments: tuple[str, ...], content: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "foreign.grimlog"
    if content is not None:
        path.write_bytes(content)
    found = error(*(argument.format(path) for argument in arguments))
    assert isinstance(found, LogError)
    assert str(path) in str(found)


COMMANDS = (
    ("replay", SLIPS),
    ("log", SLIPS),
    ("log", SLIPS, "--cascades"),
    ("log", SLIPS, "--json"),
    ("explain", SLIPS, "--text", "fnx"),
    ("diff", SLIPS, str(LOGS / "retracted.grimlog")),
)


def test_nothing_heavy_is_imported() -> None:
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from grimboost.command_line import cli\n"
        f"for arguments in {COMMANDS!r}:\n"
        "    assert CliRunner().invoke(cli, list(arguments)).stdout, arguments\n"
        "assert not {'torch', 'numba', 'transformers', 'llvmlite'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_reader_that_closes_the_pipe_ends_a_command_quietly(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "grimboost", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(timeout=30) in {0, 1}
    process.stderr.close()


def test_output_that_the_terminal_cannot_encode_is_escaped() -> None:
    command = [sys.executable, "-m", "grimboost", "log", SLIPS]
    environment = {"PYTHONIOENCODING": "ascii", "PATH": "", "HOME": "/nonexistent"}
    result = subprocess.run(command, capture_output=True, env=environment, timeout=60, check=True)
    assert b"\\U0001f342" in result.stdout
    assert result.stdout.isascii()
