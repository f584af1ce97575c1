"""The message log: what was written comes back, damage is found wherever it is, recording never stops anyone."""

import errno
import logging
import math
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scripted import END, TEXTS, assert_whole, both_loops, collect, make_engine, oracle, prompt, run

from grimboost import log as log_module
from grimboost import messages as m
from grimboost.errors import LogError, MisuseError
from grimboost.log import Log, LogEntry, LogHeader
from grimboost.log_writer import LogWriter
from grimboost.replaying import replay
from grimboost.stages.configuration import CascadeConfig, StageConfigs
from grimboost.stages.gate import GateStage
from grimboost.stages.sampling_rule import SamplingRule
from grimboost.wiring import CASCADE, CLIENT, GATE, REVEALER, STAGES, VERIFIER

HEADER = LogHeader(
    versions={"grimboost": "0"},
    model="scripted",
    model_digest="",
    tokenizer_digest="",
    precision="exact",
    drafter="none",
    stages=StageConfigs(CascadeConfig(context_limit=64)),
    rule=SamplingRule(seed=2**64 - 1),
    end_of_sequence={END: ["x"]},
    started=1.0,
)
COMMIT = m.Commit(0, b"\xff\xfe\x00", 3, (1, 2, 3))
CHUNK = m.Chunk(0, b"\xff\xfe\x00")


def write(path: Path, entries: list[tuple[str, Any, list[Any]]], header: LogHeader = HEADER) -> bytes:
    writer = LogWriter(path, header)
    for place, (stage, message, answers) in enumerate(entries):
        writer.write(0.5 * place, stage, message, answers)
    writer.close()
    return path.read_bytes()


@pytest.fixture
def short(tmp_path: Path) -> tuple[Path, bytes]:
    """A log of about 2 KB."""
    path = tmp_path / "short.grimlog"
    entries: list[tuple[str, Any, list[Any]]] = [
        (
            REVEALER,
            m.Commit(3 * place, b"\xff\xfe\x00", 3 * place, (place,)),
            [m.Chunk(3 * place, b"\xff\xfe\x00")],
        )
        for place in range(11)
    ]
    return path, write(path, entries)


def starts(data: bytes) -> list[int]:
    """Byte offsets of the frames, the header's first, and the end."""
    at = [data.index(b"\n") + 1]
    while at[-1] < len(data):
        at.append(at[-1] + 8 + struct.unpack_from("<I", data, at[-1])[0])
    return at


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A generation with lookup drafting, a realignment and a mismatch or two."""
    path = tmp_path / "recorded.grimlog"

    async def main() -> None:
        async with make_engine(drafter=oracle(broken_at=7)) as engine:
            generation = engine.generate(prompt(), record=path)
            await collect(generation)
            assert_whole(generation)

    run(main)
    return path


# ---------------------------------------------------------------- what goes in comes out


@both_loops
def test_a_generation_is_recorded_and_read_back(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "a.grimlog"

    async def main() -> None:
        async with make_engine(drafter="lookup") as engine:
            generation = engine.generate(prompt(), record=path, temperature=0.0)
            await collect(generation)
            assert_whole(generation)

    run(main, backend)
    log = Log.open(path)
    assert log.torn_at is None
    assert (log.header.model, log.header.drafter) == ("scripted", "lookup")
    assert log.header.end_of_sequence == {END: ["x"]}
    assert {entry.stage for entry in log} == {*STAGES, CLIENT}
    assert [entry.sequence for entry in log] == list(range(len(log.entries)))
    assert [entry.seconds for entry in log] == sorted(entry.seconds for entry in log)
    chunks = [answer for entry in log for answer in entry.answers if isinstance(answer, m.Chunk)]
    assert b"".join(chunk.data for chunk in chunks) == TEXTS[0]
    assert replay(log) is None


def test_H4_every_kind_of_value_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "values.grimlog"
    margins = (math.inf, -math.inf, 0.1, -0.0, 5e-324, 1.7976931348623157e308)
    choices = tuple(m.Choice(id, b"\xff\xfe\x00", margin) for id, margin in enumerate(margins))
    message = m.PassReturned(1, choices, 7)
    write(path, [(VERIFIER, message, []), (REVEALER, COMMIT, [CHUNK, CHUNK])])
    log = Log.open(path)
    assert log.header == HEADER
    assert log.entries == [
        LogEntry(0, 0.0, VERIFIER, message, ()),
        LogEntry(1, 0.5, REVEALER, COMMIT, (CHUNK, CHUNK)),
    ]
    assert math.copysign(1.0, log.entries[0].message.choices[3].margin) == -1.0  # type: ignore[union-attr]


def test_H4_nan_round_trips_and_is_no_difference_in_replay(tmp_path: Path) -> None:
    """A target whose margins are not numbers: odd, but the same odd thing live and in replay."""
    path = tmp_path / "nan.grimlog"

    async def main() -> None:
        engine = make_engine()
        follow = engine.loaded.target._feed  # type: ignore[attr-defined]

        def feed(rows: Any) -> list[Any]:
            return [msgspec.structs.replace(chosen, margin=math.nan) for chosen in follow(rows)]

        engine.loaded.target._feed = feed  # type: ignore[attr-defined]
        async with engine:
            generation = engine.generate(prompt(), record=path)
            await collect(generation)
            assert_whole(generation)

    run(main)
    log = Log.open(path)
    verdicts = [entry.message for entry in log if isinstance(entry.message, m.Verdict)]
    assert verdicts
    assert all(math.isnan(verdict.margin) for verdict in verdicts)
    assert replay(log) is None


def test_H4_a_prompt_of_5_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "large.grimlog"
    started = m.Started(tuple(range(100_000)), bytes(range(256)) * 20_000)
    write(path, [(CASCADE, started, [])])
    assert Log.open(path).entries[0].message == started


def test_H4_an_absent_seed_is_drawn_once_and_is_in_the_header(tmp_path: Path) -> None:
    seeds = []

    async def main() -> None:
        async with make_engine() as engine:
            for place, options in enumerate(({}, {}, {"seed": 7})):
                path = tmp_path / f"{place}.grimlog"
                async with engine.generate(prompt(), record=path, temperature=0.8, **options) as generation:
                    pass
                assert Log.open(path).header.rule.seed == generation.request.parameters.seed
                seeds.append(Log.open(path).header.rule.seed)

    run(main)
    assert seeds[0] != seeds[1]
    assert seeds[2] == 7


def test_header_only_is_a_log_without_entries(tmp_path: Path) -> None:
    path = tmp_path / "empty.grimlog"
    write(path, [])
    log = Log.open(path)
    assert (log.header, log.entries, log.torn_at) == (HEADER, [], None)
    assert replay(log) is None


def test_a_log_holds_no_path_of_the_machine(recorded: Path) -> None:
    data = recorded.read_bytes()
    for secret in (str(Path.home()), str(recorded.parent), str(Path.cwd()), "/tmp"):
        assert secret.encode() not in data


# ---------------------------------------------------------------- damage


def test_a_torn_tail_is_reported_at_every_byte(short: tuple[Path, bytes]) -> None:
    _, data = short
    whole = Log.parse(data).entries
    frames = starts(data)
    for size in range(len(data)):
        if size < frames[1]:  # in the first line or the header: nothing precedes that could be used
            with pytest.raises(LogError):
                Log.parse(data[:size])
            continue
        log = Log.parse(data[:size])
        complete = sum(at <= size for at in frames[1:]) - 1
        assert log.entries == whole[:complete]
        assert log.torn_at == (None if size in frames else frames[complete + 1])


def test_every_flipped_bit_is_an_error(short: tuple[Path, bytes]) -> None:
    _, data = short
    assert 1500 < len(data) < 3000
    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            with pytest.raises(LogError):
                Log.parse(bytes(damaged))


def test_a_flipped_bit_before_a_torn_tail_is_an_error_too(short: tuple[Path, bytes]) -> None:
    _, data = short
    frames = starts(data)
    for bit in range(32):
        damaged = bytearray(data[:-5])
        damaged[frames[3] + bit // 8] ^= 1 << bit % 8
        with pytest.raises(LogError, match=f"frame at byte {frames[3]}"):
            Log.parse(bytes(damaged))


def test_a_tail_of_zeros_is_torn(short: tuple[Path, bytes]) -> None:
    """What a crash of the machine leaves on some file systems."""
    _, data = short
    for zeros in (1, 8, 4096):
        log = Log.parse(data + bytes(zeros))
        assert (len(log.entries), log.torn_at) == (11, len(data))


def test_an_error_names_the_place(short: tuple[Path, bytes]) -> None:
    path, data = short
    frames = starts(data)
    damaged = bytearray(data)
    damaged[frames[2] + 12] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(LogError, match=f"frame at byte {frames[2]} is damaged: its checksum"):
        Log.open(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a grimboost message log"),
        (b"\x89PNG\r\n\x1a\n", "not a grimboost message log"),
        (b"grimlog", "not a grimboost message log"),
        (b"grimlog 2\n" + b"x" * 50, "log format 2; this version reads format 1"),
        (b"grimlog 11\n" + b"x" * 50, "log format 11; this version reads format 1"),
        (b"grimlog \xff\n", "log format"),
        (b"grimlog 1\n", "ends in its header, at byte 10"),
    ],
)
def test_what_is_not_a_log_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(LogError, match=message):
        Log.open(path)


def test_a_frame_that_is_whole_but_no_entry_is_refused(short: tuple[Path, bytes]) -> None:
    path, data = short
    for payload in (b"\xc0", msgspec.msgpack.encode([11, 0.0, "gate", {"type": "FromTheFuture"}, []])):
        path.write_bytes(data + log_module.frame(payload))
        with pytest.raises(LogError, match=f"frame at byte {len(data)} is not of this version"):
            Log.open(path)


def test_entries_out_of_order_or_missing_are_refused(short: tuple[Path, bytes]) -> None:
    path, data = short
    frames = starts(data)
    path.write_bytes(data[: frames[4]] + data[frames[5] :])
    with pytest.raises(LogError, match=f"entry 4 stands at place 3, byte {frames[4]}"):
        Log.open(path)


@pytest.mark.parametrize("name", ["absent.grimlog", ".", "nul\0byte"])
def test_a_file_that_cannot_be_read_is_a_log_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(LogError, match="cannot read"):
        Log.open(f"{tmp_path}/{name}")


# ---------------------------------------------------------------- disks


class Disk:
    """A file on a disk that takes `room` bytes, at most `most` of them at a time; closing may fail as well."""

    def __init__(self, path: Path, room: int, most: int = 1 << 30, close_fails: bool = False) -> None:
        self._file = path.open("wb", buffering=0)
        self._room, self._most, self._close_fails = room, most, close_fails

    def write(self, data: memoryview) -> int:
        size = min(len(data), self._room, self._most)
        if not size:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._room -= size
        return self._file.write(data[:size])

    def close(self) -> None:
        self._file.close()
        if self._close_fails:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")


def record_to(disk: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One generation recorded to `disk`; it has to come out whole."""
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *args, **rest: disk)

    async def main() -> None:
        async with make_engine(drafter="lookup") as engine:
            generation = engine.generate(prompt(), record=path)
            monkeypatch.setattr(Path, "open", real)
            await collect(generation)
            assert_whole(generation)

    run(main)


@pytest.mark.parametrize("room", [0, 5, 700, 1500, 4000])
def test_a_full_disk_ends_the_recording_with_one_warning(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "full.grimlog"
    record_to(Disk(path, room), path, monkeypatch)
    [warning] = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert "recording ends" in warning.getMessage()
    assert "No space left on device" in warning.getMessage()
    assert path.stat().st_size == room
    if room >= 1500:
        log = Log.open(path)
        assert log.entries
        assert replay(log) is None


def test_a_disk_that_writes_in_small_parts_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "short writes.grimlog"
    record_to(Disk(path, 1 << 30, most=7), path, monkeypatch)
    assert not caplog.records
    log = Log.open(path)
    assert log.torn_at is None
    assert any(isinstance(answer, m.Done) for entry in log for answer in entry.answers)
    assert replay(log) is None


def test_a_disk_that_reports_its_fault_on_closing_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "quota.grimlog"
    record_to(Disk(path, 1 << 30, close_fails=True), path, monkeypatch)
    assert "Disk quota exceeded" in caplog.text


def test_a_disk_that_takes_nothing_and_says_nothing_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Mute(Disk):
        def write(self, data: memoryview) -> int:
            return 0

    path = tmp_path / "mute.grimlog"
    record_to(Mute(path, 0), path, monkeypatch)
    assert "nothing was written" in caplog.text


def test_dev_full(caplog: pytest.LogCaptureFixture) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")

    async def main() -> None:
        async with make_engine() as engine:
            generation = engine.generate(prompt(), record="/dev/full")
            await collect(generation)
            assert_whole(generation)

    run(main)
    assert caplog.text.count("recording ends") == 1


@pytest.mark.parametrize("name", ["no such folder/x.grimlog", ".", "nul\0byte"])
def test_a_path_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with make_engine() as engine:
            with pytest.raises(MisuseError, match="cannot record to"):
                engine.generate(prompt(), record=f"{tmp_path}/{name}")
            assert engine.statistics().target.jobs == 0

    run(main)


def test_a_writer_that_is_closed_writes_no_more(tmp_path: Path) -> None:
    path = tmp_path / "closed.grimlog"
    writer = LogWriter(path, HEADER)
    assert writer.recording
    writer.close()
    writer.close()
    assert not writer.recording
    writer.write(0.0, GATE, COMMIT, [])
    assert Log.open(path).entries == []


# ---------------------------------------------------------------- replay


def altered(log: Log, entries: list[LogEntry]) -> Log:
    return Log(log.header, entries, None)


def place_of(log: Log, stage: str, message: type, nth: int = 0) -> int:
    places = [
        place
        for place, entry in enumerate(log.entries)
        if entry.stage == stage and isinstance(entry.message, message)
    ]
    return places[nth]


def test_replay_of_what_was_recorded_gives_no_difference(recorded: Path) -> None:
    log = Log.open(recorded)
    outcomes = {entry.message.outcome for entry in log if isinstance(entry.message, m.Verdict)}
    assert m.Outcome.MISMATCH in outcomes
    assert replay(log) is None


def test_replay_finds_every_altered_answer_at_its_place(recorded: Path) -> None:
    log = Log.open(recorded)
    for place, entry in enumerate(log.entries):
        answers = entry.answers[:-1] if entry.answers else (m.Elapsed(),)
        entries = log.entries.copy()
        entries[place] = msgspec.structs.replace(entry, answers=answers)
        difference = replay(altered(log, entries))
        assert difference is not None
        assert difference.entry.sequence == place
        if entry.stage == CLIENT:
            assert difference.error == "a client answers nothing"
        else:
            assert (difference.got, difference.error) == (entry.answers, None)


def test_replay_finds_one_altered_byte_in_an_answer(recorded: Path) -> None:
    log = Log.open(recorded)
    place = place_of(log, REVEALER, m.Commit, 2)
    entry = log.entries[place]
    [chunk] = entry.answers
    assert isinstance(chunk, m.Chunk)
    entries = log.entries.copy()
    changed = msgspec.structs.replace(chunk, data=chunk.data[:-1] + b"?")
    entries[place] = msgspec.structs.replace(entry, answers=(changed,))
    difference = replay(altered(log, entries))
    assert difference is not None
    assert (difference.entry.sequence, difference.got) == (place, (chunk,))


def test_replay_finds_a_missing_entry_where_its_stage_goes_on(recorded: Path) -> None:
    log = Log.open(recorded)
    place = place_of(log, VERIFIER, m.PassReturned, 3)
    entries = log.entries.copy()
    del entries[place]
    difference = replay(altered(log, entries))
    later = next(entry for entry in entries[place:] if entry.stage == VERIFIER and entry.answers)
    assert difference is not None
    assert place < difference.entry.sequence <= later.sequence


def test_replay_finds_an_extra_entry_at_its_place(recorded: Path) -> None:
    log = Log.open(recorded)
    place = place_of(log, VERIFIER, m.PassReturned, 3)
    entries = log.entries.copy()
    entries.insert(place + 1, msgspec.structs.replace(log.entries[place], sequence=10_000))
    difference = replay(altered(log, entries))
    assert difference is not None
    assert difference.entry.sequence == 10_000
    assert difference.error is not None
    assert difference.error == "no PassRequested of the verifier waits for an answer"


def test_replay_reports_a_message_that_breaks_a_stage(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that meets what no stage sent may fail in any way: that is a finding, not a crash."""
    log = Log.open(recorded)

    def faulty(stage: GateStage, message: Any) -> list[m.Message]:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(GateStage, "receive", faulty)
    difference = replay(log)
    assert difference is not None
    assert difference.entry == next(entry for entry in log if entry.stage == GATE)
    assert difference.error == "IndexError('tuple index out of range')"


def test_replay_refuses_an_unknown_stage(recorded: Path) -> None:
    log = Log.open(recorded)
    entries = [msgspec.structs.replace(log.entries[0], stage="conductor")]
    difference = replay(altered(log, entries))
    assert difference is not None
    assert difference.error == "there is no stage 'conductor'"
