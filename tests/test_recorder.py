"""The flight recorder, what a kill leaves of a log, what a client has of it, and disks that refuse."""

import errno
import logging
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import killed_recorder
import pytest
from scripted import (
    TEXTS,
    Gate,
    Target,
    assert_whole,
    both_loops,
    collect,
    make_engine,
    oracle,
    prompt,
    reached,
    run,
)

from grimboost import messages as m
from grimboost import recorder as recorder_module
from grimboost.errors import LogError, MisuseError, TargetError
from grimboost.generation import Generation
from grimboost.lineage import Lineage
from grimboost.log import Log
from grimboost.recording import Recording
from grimboost.replaying import replay
from grimboost.stages.gate import GateStage
from grimboost.wiring import CLIENT, GATE, REVEALER

LONG = b"".join(b" fox number %d jumps over the lazy dog" % number for number in range(40))


@pytest.fixture
def flights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for flights that nobody asked for."""
    monkeypatch.setenv("GRIMBOOST_FLIGHTS", str(tmp_path / "flights"))
    return tmp_path / "flights"


def failing(after: int = 3) -> Target:
    """A target that fails in its n-th step."""
    target, left = Target(), [after]

    def step(_: object) -> None:
        left[0] -= 1
        if not left[0]:
            raise TargetError("device lost")

    target.on_step = step
    return target


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def fail(backend: str = "asyncio", recording: Recording | None = None, **options: Any) -> Generation:
    """One generation whose target fails."""

    async def main() -> Generation:
        async with make_engine(failing(), "lookup", recording=recording) as engine:
            generation = engine.generate(prompt(), **options)
            await collect(generation)
        return generation

    generation: Generation = run(main, backend)
    assert generation.result.finish_reason == "error"
    return generation


# ---------------------------------------------------------------- a generation that failed


@both_loops
def test_a_failure_leaves_its_last_messages_without_their_text(
    backend: str, flights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fail(backend)
    [path] = flights.iterdir()
    log = Log.open(path)
    assert (log.header.redacted, log.header.first, log.torn_at) == (True, 0, None)
    assert any(isinstance(entry.message, m.PassFailed) for entry in log)
    assert path.stat().st_mode & 0o777 == 0o600
    assert flights.stat().st_mode & 0o777 == 0o700
    assert b" the" not in path.read_bytes()
    assert b"device lost" not in path.read_bytes()
    [warning] = warnings(caplog)
    assert f"grimboost log {path}" in warning


def test_a_stage_that_raises_leaves_the_message_that_broke_it(
    flights: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(stage: GateStage, message: Any) -> list[m.Message]:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(GateStage, "receive", faulty)

    async def main() -> None:
        async with make_engine(drafter="lookup") as engine:
            with pytest.raises(Exception, match="the generation failed"):
                await collect(engine.generate(prompt()))

    run(main)
    [path] = flights.iterdir()
    assert [entry.answers for entry in Log.open(path) if entry.stage == GATE] == [()]
    assert len(warnings(caplog)) == 1


def test_a_failure_whose_log_is_recorded_needs_no_flight(
    flights: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fail(record=tmp_path / "whole.grimlog")
    fail(recording=Recording(tmp_path / "logs"))
    assert not flights.exists()
    [path] = (tmp_path / "logs").iterdir()
    assert replay(path) is None
    assert [
        f"grimboost log {where}" in said
        for where, said in zip((tmp_path / "whole.grimlog", path), warnings(caplog), strict=True)
    ] == [True] * 2


def test_a_failure_whose_recording_had_ended_leaves_its_flight_where_logs_go(
    flights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = recorder_module.LogWriter.flush

    def flush(writer: Any) -> None:
        if writer.recording and writer.entries > 10 and "flight" not in writer.path.name:
            writer._file.close()
        write(writer)

    monkeypatch.setattr(recorder_module.LogWriter, "flush", flush)
    fail(recording=Recording(tmp_path / "logs"))
    torn, flight = sorted((tmp_path / "logs").iterdir())
    assert flight.name.endswith(".flight.grimlog")
    assert replay(flight) is None
    assert replay(torn) is None
    assert len(Log.open(torn).entries) < len(Log.open(flight).entries)
    assert ["recording ends" in said for said in warnings(caplog)] == [True, False]


def test_a_disk_that_refuses_a_flight_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRIMBOOST_FLIGHTS", str(tmp_path / "file" / "flights"))
    fail()
    [warning] = warnings(caplog)
    assert "its last messages are not kept" in warning
    assert "Not a directory" in warning


def test_writing_a_flight_delays_no_other_generation(flights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, write = Gate(), recorder_module.write_log

    def write_log(*arguments: Any, **options: Any) -> None:
        slow()
        write(*arguments, **options)

    monkeypatch.setattr(recorder_module, "write_log", write_log)

    async def main() -> None:
        async with make_engine(failing(1)) as engine:
            await collect(engine.generate(prompt()))
            await reached(slow.begun)
            generation = engine.generate(prompt())
            await collect(generation)
            assert_whole(generation)
            slow.go.set()

    run(main)
    assert len(list(flights.iterdir())) == 1  # the engine's end waited for it


def test_a_disk_that_hangs_does_not_keep_the_engine(
    flights: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hung = Gate()
    monkeypatch.setattr(recorder_module, "DISK_SECONDS", 0.05)
    monkeypatch.setattr(recorder_module, "write_log", hung)

    async def main() -> None:
        async with make_engine(failing(1)) as engine:
            await collect(engine.generate(prompt()))
        hung.go.set()

    run(main)
    [warning] = warnings(caplog)
    assert "the disk does not answer" in warning


def test_old_flights_are_removed(flights: Path) -> None:
    for _ in range(23):
        fail()
    assert len(list(flights.iterdir())) <= 21


# ---------------------------------------------------------------- on request


@both_loops
def test_a_flight_can_be_written_while_it_runs_and_after_its_end(backend: str, tmp_path: Path) -> None:
    early, late, hidden = (tmp_path / f"{name}.grimlog" for name in ("early", "late", "hidden"))

    async def main() -> None:
        async with make_engine(drafter=oracle(broken_at=7)) as engine:
            async with engine.generate(prompt()) as generation:
                async for event in generation:
                    if isinstance(event, m.Chunk):
                        break
                await generation.write_flight(early)
                [path] = await engine.write_flights(tmp_path / "all")
            await generation.write_flight(str(late))
            await generation.write_flight(hidden, redact=True)
            assert replay(path) is None

    run(main, backend)
    for path in (early, late):
        log = Log.open(path)
        assert (log.header.first, log.header.redacted) == (0, False)
        assert replay(log) is None
    assert len(Log.open(early).entries) < len(Log.open(late).entries) == len(Log.open(hidden).entries)
    assert Log.open(hidden).header.redacted


def test_only_the_last_messages_are_kept_and_they_cannot_replay(tmp_path: Path) -> None:
    path, whole = tmp_path / "flight.grimlog", tmp_path / "whole.grimlog"

    async def main() -> None:
        async with make_engine(drafter=oracle(broken_at=7), recording=Recording(flight_messages=25)) as engine:
            generation = engine.generate(prompt(), record=whole)
            await collect(generation)
            await generation.write_flight(path)

    run(main)
    flight, log = Log.open(path), Log.open(whole)
    assert flight.header.first == len(log.entries) - 25
    assert flight.entries == log.entries[-25:]
    lineage = Lineage(flight.header.first)
    for entry in flight:
        lineage.feed(entry)
    with pytest.raises(LogError, match="begins with entry"):
        replay(flight)


def test_nothing_is_kept_where_no_message_is(flights: Path) -> None:
    fail(recording=Recording(flight_messages=0))
    assert not flights.exists()


def test_a_place_that_cannot_be_written_is_the_callers_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    full = Path("/dev/full").exists()

    async def main() -> None:
        async with make_engine() as engine:
            async with engine.generate(prompt()) as generation:
                with pytest.raises(MisuseError, match="cannot record to"):
                    await generation.write_flight(tmp_path / "nowhere" / "a.grimlog")
                with pytest.raises(MisuseError, match="cannot record to"):
                    await engine.write_flights(tmp_path / "file")
                if full:
                    with pytest.raises(MisuseError, match="No space left"):
                        await generation.write_flight("/dev/full")
            assert await engine.write_flights(tmp_path / "none") == []

    run(main)


# ---------------------------------------------------------------- a kill


@pytest.fixture(scope="module")
def recorder() -> Iterator["subprocess.Popen[bytes]"]:
    if not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, killed_recorder.__file__], stdin=pipe, stdout=pipe, bufsize=0
    ) as process:
        yield process


def killed(recorder: "subprocess.Popen[bytes]", path: Path, reports: int, spin: int) -> int:
    """Kill a generation some turns of a loop after its n-th report. Returns what its client had dealt with."""
    assert recorder.stdin is not None
    assert recorder.stdout is not None
    recorder.stdin.write(f"{path}\n".encode())
    child = int(recorder.stdout.readline())
    assert recorder.stdout.readline() == b"begun\n"
    done, line = 0, b""
    for _ in range(reports):
        line = recorder.stdout.readline()
        done = int(line)
    for _ in range(spin):
        pass
    os.kill(child, signal.SIGKILL)
    while (line := recorder.stdout.readline()) != b"dead\n":
        done = int(line)
    return done


@pytest.mark.parametrize("seed", range(20))
def test_a_kill_loses_nothing_that_the_client_had(
    seed: int, recorder: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    chance, path = random.Random(seed), tmp_path / "killed.grimlog"
    done = killed(recorder, path, chance.randrange(1, 40), chance.randrange(200_000))
    log = Log.open(path)
    assert replay(log) is None
    assert not any(isinstance(answer, m.Done) for entry in log for answer in entry.answers)
    taken = [entry.message for entry in log if isinstance(entry.message, m.Taken)]
    assert taken[-1].delivered >= done > 0
    assert shown(log)[:done] == killed_recorder.TEXT[:done]


def shown(log: Log) -> bytes:
    """The text that the revealer sent."""
    return b"".join(
        answer.data
        for entry in log
        if entry.stage == REVEALER
        for answer in entry.answers
        if isinstance(answer, m.Chunk)
    )


@pytest.mark.parametrize("slow", [False, True])
def test_what_the_client_gets_is_with_the_system_before(
    slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is, a while after the last writing, what a worker gets: behind a kernel that crashes is its request."""
    if slow:
        monkeypatch.setattr(recorder_module, "WRITE_SECONDS", 0.0)
    path = tmp_path / "a.grimlog"
    requests: list[int] = []
    target = Target()

    def step(batch: Any) -> None:
        log = Log.open(path)
        asked = [a for entry in log for a in entry.answers if isinstance(a, m.PassRequested)]
        requests.append(len(asked))
        assert log.torn_at is None

    target.on_step = step

    async def main() -> None:
        async with make_engine(target, oracle(broken_at=7)) as engine:
            async with engine.generate(prompt(), record=path) as generation:
                async for event in generation:
                    log = Log.open(path)
                    last = [entry for entry in log if entry.stage == CLIENT][-1].message
                    assert isinstance(last, m.Taken)
                    if isinstance(event, m.Chunk):
                        assert last.delivered == event.offset + len(event.data)
            assert_whole(generation)

    run(main)
    assert not slow or requests == list(range(1, len(requests) + 1))


# ---------------------------------------------------------------- H4: what the client has of it


def deliveries(path: Path) -> tuple[bytes, list[m.Taken]]:
    """The text of a log's chunks, and what its client took. The log has to replay."""
    log = Log.open(path)
    assert replay(log) is None
    return shown(log), [entry.message for entry in log if isinstance(entry.message, m.Taken)]


@both_loops
def test_H4_a_client_that_reads_all_has_acknowledged_all(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "all.grimlog"

    async def main() -> None:
        async with make_engine() as engine:
            await collect(engine.generate(prompt(), record=path))

    run(main, backend)
    text, taken = deliveries(path)
    assert text == TEXTS[0]
    assert taken[-1] == m.Taken(None, len(text), len(text))
    assert [one.event for one in taken[:-1]] == list(range(len(taken) - 1))
    assert [one.acknowledged for one in taken[1:]] == [one.delivered for one in taken[:-1]]


@both_loops
@pytest.mark.parametrize("how", ["stops reading and leaves", "cancels"])
def test_H4_what_the_client_never_saw_is_not_said_to_be_delivered(backend: str, how: str, tmp_path: Path) -> None:
    path, seen = tmp_path / "partly.grimlog", bytearray()
    target = Target((LONG,))

    async def main() -> None:
        async with make_engine(target, capacity=3) as engine, engine.generate(prompt(), record=path) as generation:
            async for event in generation:
                if not isinstance(event, m.Chunk):
                    continue
                seen.extend(event.data)
                if len(seen) > 100:
                    break
            while len(generation.lane.data) < len(seen) + 8:  # what fits into the mailbox is sent
                await anyio.lowlevel.checkpoint()
            if how == "cancels":
                generation.cancel()
                await generation.finished.wait()

    run(main, backend)
    text, taken = deliveries(path)
    log = Log.open(path)
    committed = sum(len(e.message.data) for e in log if isinstance(e.message, m.Commit))
    assert text.startswith(seen)
    assert taken[-1].delivered == len(seen)
    assert taken[-1].acknowledged < len(seen)
    assert committed >= len(text) > len(seen)


# ---------------------------------------------------------------- disks


@both_loops
def test_a_limit_on_file_sizes_ends_the_recording(
    backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "small.grimlog"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def main() -> None:
        async with make_engine(drafter="lookup") as engine:
            generation = engine.generate(prompt(), record=path)
            await collect(generation)
            assert_whole(generation)

    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, limits[1]))
    try:
        run(main, backend)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    [warning] = warnings(caplog)
    assert os.strerror(errno.EFBIG) in warning
    assert path.stat().st_size == 6000
    assert Log.open(path).entries
    assert replay(path) is None


@pytest.mark.parametrize("how", ["file", "descriptor"])
def test_a_log_that_somebody_closes_ends_the_recording(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "closed.grimlog"

    async def main() -> None:
        async with make_engine(drafter="lookup") as engine:
            generation = engine.generate(prompt(), record=path)
            writer: Any = generation.recorder._writer
            async with generation:
                async for event in generation:
                    if isinstance(event, m.Chunk) and event.offset == 0 and how == "file":
                        writer._file.close()
                    elif isinstance(event, m.Chunk) and event.offset == 0:
                        spare = os.open(os.devnull, os.O_RDONLY)  # what writing to it says: bad file descriptor
                        os.dup2(spare, writer._file.fileno())
                        os.close(spare)
            assert_whole(generation)

    run(main)
    [warning] = warnings(caplog)
    assert "recording ends" in warning
    assert replay(path) is None
