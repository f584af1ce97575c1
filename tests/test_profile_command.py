"""`grimboost profile`, `--profile` and `--trace`, as a person or a pipe meets them."""

import json
import os
import signal
from pathlib import Path

import msgspec
import pytest
import test_command_line
from test_command_line import run, start
from test_trace import check, names

from grimboost.profile import Profile

environment, model = test_command_line.environment, test_command_line.model

MORE = ("--max-new-tokens", "30", "--ignore-eos")
STREAMING = ("--mode", "streaming", "--release", "always", "--threshold", "0")


def test_profile_shows_tables_and_names_the_slow_one_and_no_text(
    model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    command = ("profile", "Some words.", "--target", str(model), *MORE, *STREAMING)
    status, out, err = run(environment, *command, "--trace", str(trace))
    assert status == 0, err
    tables = out.decode().split("\n\n")
    assert [table.split()[0] for table in tables] == ["stage", "worker", "passes", "wall"]
    for name in ("drafter", "gate", "verifier", "cascade", "revealer"):
        assert f"\n{name} " in tables[0]
    assert out.decode().splitlines()[-1].startswith("limited by ")
    assert "30 tokens" in err
    events = json.loads(trace.read_bytes())
    check(events)
    assert "generation 1: gate" in names(events).values()

    status, out, err = run(environment, *command, "--json", "--quiet")
    assert (status, err) == (0, "")
    profile = msgspec.json.decode(out, type=Profile)
    assert profile.generations == 1
    assert sum(one.count for one in profile.passes) > 0


def test_generate_shows_its_text_and_the_profile_apart(model: Path, environment: dict[str, str]) -> None:
    command = ("generate", "Some words.", "--target", str(model), *MORE)
    _, plain, _ = run(environment, *command, "--quiet")
    status, out, err = run(environment, *command, "--profile", "--quiet")
    assert status == 0, err
    assert out == plain
    assert err.splitlines()[0].startswith("stage ")
    assert err.splitlines()[-1].startswith("limited by ")

    status, out, err = run(environment, *command, "--profile", "--json")
    report = json.loads(out)
    assert "limited by" not in err
    assert msgspec.convert(report["profile"], Profile).wall_seconds > 0
    assert report["text"] == plain.decode(errors="replace")
    status, out, err = run(environment, *command, "--json")
    assert "profile" not in json.loads(out)


def test_ctrl_c_still_shows_what_ran(model: Path, environment: dict[str, str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    command = ("profile", "Some words.", "--target", str(model), "--max-new-tokens", "1900", "--ignore-eos")
    process = start(environment, *command, "--trace", str(trace), "--drafter", "none")
    while not trace.exists() or trace.stat().st_size < 1 << 16:
        assert process.poll() is None
        os.sched_yield()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "cancelled" in err.decode()
    assert "Traceback" not in err.decode()
    assert out.decode().splitlines()[-1].startswith("limited by ")
    check(json.loads(trace.read_bytes()))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere/trace.json", "cannot trace to nowhere/trace.json: its folder does not exist"),
        (".", "cannot trace to .: it is no file"),
        ("one.grimlog", "one.grimlog cannot be both trace and log; give two files"),
    ],
)
def test_a_bad_trace_path_is_refused_before_anything_is_loaded(
    path: str, words: str, environment: dict[str, str], tmp_path: Path
) -> None:
    for command in ("profile", "generate"):
        arguments = (command, "x", "--target", "no-such-model", "--trace", path, "--record", "one.grimlog")
        process = start(environment, *arguments, cwd=tmp_path)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err.decode()) == (2, b"", f"grimboost: {words}\n")


def test_a_reader_that_goes_away_ends_it_quietly(model: Path, environment: dict[str, str]) -> None:
    process = start(environment, "profile", "Some words.", "--target", str(model), *MORE, "--quiet")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(60) == 0
    for stream in (process.stdin, process.stderr):
        assert stream is not None
        stream.close()
