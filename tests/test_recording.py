"""The folder of logs: one file for each generation, and rotation that removes the oldest and nothing else."""

import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner
from scripted import TEXTS, assert_whole, both_loops, collect, make_engine, prompt, run
from test_log import HEADER
from test_recorder import warnings

from grimboost import recording as recording_module
from grimboost.command_line import cli, generate
from grimboost.engine import Engine
from grimboost.errors import MisuseError
from grimboost.log import MAGIC, Log
from grimboost.log_writer import LogWriter, lock
from grimboost.messages import Chunk
from grimboost.recording import FLIGHTS, LOOK_AGAIN, Limits, LogFolder, Recording, flights_folder
from grimboost.replaying import replay

NOW = datetime.now(UTC)


def put(folder: Path, days: float, size: int = 100, kind: str = "", content: bytes = MAGIC) -> Path:
    """A log that was begun so many days ago."""
    begun = NOW - timedelta(days=days)
    path = folder / f"{begun:%Y%m%dT%H%M%S.%f}Z-1-1{kind}.grimlog"
    path.write_bytes(content + bytes(size - len(content)))
    return path


def left(folder: Path) -> set[Path]:
    return set(folder.iterdir())


# ---------------------------------------------------------------- rotation


def test_the_oldest_go_until_the_rest_fits(tmp_path: Path) -> None:
    logs = [put(tmp_path, days) for days in (5, 4, 3, 2, 1)]
    LogFolder(tmp_path, Limits(size=250)).rotate()
    assert left(tmp_path) == set(logs[3:])


def test_what_is_too_old_goes_however_small(tmp_path: Path) -> None:
    logs = [put(tmp_path, days, kind=kind) for days, kind in ((31, ""), (30.1, ".flight"), (29.9, ""), (1, ""))]
    LogFolder(tmp_path, Limits(age=30 * 86400.0)).rotate()
    assert left(tmp_path) == set(logs[2:])


def test_a_limit_on_their_number(tmp_path: Path) -> None:
    logs = [put(tmp_path, days) for days in range(25, 0, -1)]
    LogFolder(tmp_path, FLIGHTS).rotate()
    assert left(tmp_path) == set(logs[-20:])


@pytest.mark.parametrize("limits", [Limits(size=10), Limits(count=0), Limits(age=1.0)])
def test_the_newest_stays(limits: Limits, tmp_path: Path) -> None:
    """A limit that is smaller than one log keeps that log."""
    put(tmp_path, 3)
    newest = put(tmp_path, 2)
    LogFolder(tmp_path, limits).rotate()
    assert left(tmp_path) == {newest}


def test_what_is_not_ours_is_never_removed(tmp_path: Path) -> None:
    aged = f"{NOW - timedelta(days=99):%Y%m%dT%H%M%S.%f}Z"
    ours = put(tmp_path, 99)
    empty = tmp_path / f"{aged}-1-2.grimlog"  # of a process that was killed at once
    empty.write_bytes(b"")
    foreign = [
        put(tmp_path, 98, content=b"dear diary"),
        tmp_path / "notes.grimlog",
        tmp_path / f"{aged}.grimlog",
        tmp_path / f"{aged}-1-1.grimlog.bak",
        tmp_path / f"x{aged}-1-1.grimlog",
        tmp_path / "99999999T999999.999999Z-1-1.grimlog",
    ]
    for path in foreign[1:]:
        path.write_bytes(MAGIC)
    inside = tmp_path / f"{aged}-1-3.grimlog"
    inside.mkdir()
    put(inside, 99)
    (tmp_path / "elsewhere").mkdir()
    target = put(tmp_path / "elsewhere", 99)
    link = tmp_path / f"{aged}-1-4.grimlog"
    link.symlink_to(target)
    put(tmp_path, 1)
    LogFolder(tmp_path, Limits(size=1, age=86400.0, count=1)).rotate()
    assert not ours.exists()
    assert not empty.exists()
    assert all(path.exists() for path in (*foreign, target, link))
    assert len(left(inside)) == 1


def test_a_log_that_somebody_writes_stays(tmp_path: Path) -> None:
    """Here the lock of another process is one of another open file: to the system that is the same."""
    folder = LogFolder(tmp_path, Limits(size=1))
    own = folder.begin(1, lambda path: LogWriter(path, HEADER))
    other = put(tmp_path, 5)
    with other.open("r+b") as file:
        assert lock(file.fileno(), exclusive=True)
        newest = put(tmp_path, -1)
        folder.end(tmp_path / "absent")  # looks again
        folder._looked = None
        folder.rotate()
        assert left(tmp_path) == {own.path, other, newest}
    folder._looked = None
    folder.rotate()
    assert left(tmp_path) == {own.path, newest}
    own.close()
    folder.end(own.path)
    assert left(tmp_path) == {newest}


def test_a_folder_is_read_again_when_it_may_be_too_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hundred thousand logs reading it takes long; what this process adds is counted."""
    clock = [0.0]
    monkeypatch.setattr(recording_module.time, "monotonic", lambda: clock[0])
    folder = LogFolder(tmp_path, Limits(size=1000))
    folder.rotate()
    reads: list[int] = []
    logs = folder._logs
    monkeypatch.setattr(folder, "_logs", lambda: reads.append(1) or logs())
    for _ in range(11):
        folder.end(folder.begin(1, lambda path: path.write_bytes(MAGIC + bytes(90)) and path))
    assert len(reads) == 1
    clock[0] += LOOK_AGAIN + 1
    folder.rotate()
    assert len(reads) == 2
    assert sum(path.stat().st_size for path in left(tmp_path)) <= 1000


def begun(folder: LogFolder, number: int) -> Path:
    """A log that was begun and left."""
    writer = folder.begin(number, lambda path: LogWriter(path, HEADER, private=True, new=True))
    writer.close()
    return writer.path


def test_names_sort_by_time_and_never_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = LogFolder(tmp_path, Limits())
    made: list[str] = []

    def begin() -> None:
        for run_ in range(50):
            made.append(begun(folder, run_).name)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == len(left(tmp_path)) == 200
    made.clear()
    begin()
    assert made == sorted(made)
    for path in left(tmp_path):
        assert path.stat().st_mode & 0o777 == 0o600

    times = iter([NOW, NOW, NOW, NOW + timedelta(seconds=1)])

    class Clock:
        @staticmethod
        def now(_: Any) -> datetime:
            return next(times)

    monkeypatch.setattr(recording_module, "datetime", Clock)
    assert begun(folder, 9) < begun(folder, 9)  # the second met a file of its name, and took another
    assert not list(times)


# ---------------------------------------------------------------- an engine that records


@both_loops
def test_every_generation_has_a_log_of_its_own(backend: str, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "logs"

    async def main() -> None:
        async with make_engine(drafter="lookup", recording=Recording(folder)) as engine:
            async with anyio.create_task_group() as tasks:
                for which in range(3):
                    tasks.start_soon(collect, engine.generate(prompt(which)))
            engine.generate(prompt())  # never entered: no log
            await collect(engine.generate(prompt(), record=tmp_path / "named.grimlog"))

    run(main, backend)
    paths = sorted(folder.iterdir())
    texts = {b"".join(a.data for e in Log.open(p) for a in e.answers if isinstance(a, Chunk)) for p in paths}
    assert texts == set(TEXTS[:3])
    assert [replay(path) for path in (*paths, tmp_path / "named.grimlog")] == [None] * 4
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(f"Z-{os.getpid()}-" in path.name and path.stat().st_mode & 0o777 == 0o600 for path in paths)


def test_an_engine_keeps_its_folder_within_bounds(tmp_path: Path) -> None:
    old = put(tmp_path, 400)

    async def main() -> None:
        async with make_engine(recording=Recording(tmp_path, keep_bytes=60_000)) as engine:
            for _ in range(6):
                await collect(engine.generate(prompt()))

    run(main)
    sizes = [path.stat().st_size for path in left(tmp_path)]
    assert not old.exists()
    assert 1 <= len(sizes) < 6
    assert sum(sizes) <= 60_000


def test_a_redacted_log_holds_no_text(tmp_path: Path) -> None:
    async def main() -> None:
        recording = Recording(tmp_path / "logs", redact=True)
        async with make_engine(drafter="lookup", recording=recording) as engine:
            await collect(engine.generate(prompt(), stop=["the very end"]))
            generation = engine.generate(prompt(), record=tmp_path / "named.grimlog")
            await collect(generation)
            await generation.write_flight(tmp_path / "flight.grimlog")
            assert_whole(generation)

    run(main)
    [path] = (tmp_path / "logs").iterdir()
    for log in (path, tmp_path / "named.grimlog", tmp_path / "flight.grimlog"):
        assert Log.open(log).header.redacted
        data = log.read_bytes()
        assert not [word for word in (b" quick", b" fox", b"A>>", b"very end") if word in data]


@both_loops
def test_a_folder_that_goes_away_costs_a_warning(
    backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"

    async def main() -> None:
        async with make_engine(recording=Recording(folder)) as engine:
            folder.rmdir()
            folder.write_text("")
            generation = engine.generate(prompt())
            await collect(generation)
            assert_whole(generation)

    run(main, backend)
    [warning] = warnings(caplog)
    assert "a generation is not recorded" in warning
    assert str(folder) in warning


@pytest.mark.parametrize(
    ("recording", "message"),
    [
        ({"directory": "/dev/null/logs"}, "cannot record to /dev/null/logs: Not a directory"),
        ({"directory": "nul\0byte"}, "cannot record to"),
        ({"keep_bytes": 0}, "keep_bytes is 0; it has to be above 0"),
        ({"keep_days": float("nan")}, "keep_days is nan"),
        ({"keep_days": -1.0}, "keep_days is -1.0"),
        ({"flight_messages": -1}, "flight_messages is -1"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_loaded(recording: dict[str, Any], message: str) -> None:
    async def main() -> None:
        await Engine.load("no such model", recording=Recording(**recording))

    with pytest.raises(MisuseError, match=message):
        run(main)
    with pytest.raises(MisuseError, match=message):
        make_engine(recording=Recording(**recording))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(MisuseError, match="Permission denied"):
            Recording(tmp_path).folder()
    finally:
        tmp_path.chmod(0o700)


def test_flights_lie_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIMBOOST_FLIGHTS", str(tmp_path / "flights"))
    assert flights_folder().path == tmp_path / "flights"
    monkeypatch.delenv("GRIMBOOST_FLIGHTS")
    monkeypatch.setattr(recording_module, "user_state_dir", lambda name: str(tmp_path / name))
    assert flights_folder().path == tmp_path / "grimboost" / "flights"


# ---------------------------------------------------------------- the command's options


def test_the_commands_defaults_are_those_of_the_library() -> None:
    defaults = {option.name: option.default for option in generate.params}
    assert defaults["record_keep_bytes"] == Recording().keep_bytes
    assert defaults["record_keep_days"] == Recording().keep_days


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--record", "a", "--record-dir", "b"], "give --record or --record-dir, and only one"),
        (["--redact"], "it needs --record or --record-dir"),
        (["--record-keep-days", "3"], "need --record-dir"),
        (["--record-keep-bytes", "3", "--record", "a"], "need --record-dir"),
        (["--record-keep-days", "nan", "--record-dir", "b"], "keep_days is nan"),
        (["--record-dir", "/dev/null/b"], "cannot record to /dev/null/b"),
    ],
)
def test_options_that_do_not_go_together(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["generate", "Words.", "--target", "no such model", *options])
    assert isinstance(result.exception, MisuseError)
    assert message in str(result.exception)
    assert not left(tmp_path)
