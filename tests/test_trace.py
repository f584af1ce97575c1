"""The trace: what the published Trace Event Format asks of its events, and that they say what happened."""

import errno
import io
import json
import logging
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import anyio
import pytest
from draw_trace import picture
from scripted import (
    TEXTS,
    Target,
    assert_clean,
    assert_whole,
    both_loops,
    collect,
    make_engine,
    oracle,
    prompt,
    run,
)

from grimboost import messages as m
from grimboost.adapters.script_drafter import ScriptDrafter
from grimboost.errors import MisuseError
from grimboost.trace import TraceWriter

Event = dict[str, Any]
STREAMING: Any = {"mode": "streaming", "release": "always", "threshold": 0.0}

REQUIRED = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"name", "pid", "tid", "ts", "args"},
    "M": {"name", "pid", "tid", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "t": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
}
"""Fields per phase."""

METADATA = {"process_name": ("name", str), "thread_name": ("name", str), "thread_sort_index": ("sort_index", int)}


def check(events: list[Event]) -> None:
    """Raise where the events are not what the format, Perfetto and chrome://tracing want."""
    for event in events:
        check_fields(event)
    tracks = {event["tid"] for event in events if event["name"] == "thread_name"}
    slices: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["tid"] in tracks
            slices[event["tid"]].append(event)
    for own in slices.values():
        check_track(own)
    check_counters(events)
    check_flows(events, slices)


def check_fields(event: Event) -> None:
    assert set(event) == {"ph"} | REQUIRED[event["ph"]], event
    assert isinstance(event["pid"], int)
    assert isinstance(event["tid"], int)
    if event["ph"] == "M":
        field, kind = METADATA[event["name"]]
        assert set(event["args"]) == {field}
        assert isinstance(event["args"][field], kind)
    else:
        assert 0 <= event["ts"] < 60e6, "microseconds since the trace began"
    assert event.get("dur", 0.0) >= 0
    assert event.get("bp", "e") == "e"
    if event["ph"] == "C":
        assert event["args"]
        assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())


def check_track(own: list[Event]) -> None:
    """In order, and one inside the other or beside it."""
    starts = [event["ts"] for event in own]
    assert starts == sorted(starts)
    open_: list[float] = []
    for event in own:
        begin, end = event["ts"], event["ts"] + event["dur"]
        while open_ and open_[-1] <= begin + 1e-3:
            open_.pop()
        assert not open_ or end <= open_[-1] + 2e-3, event
        open_.append(end)


def check_counters(events: list[Event]) -> None:
    latest: dict[str, float] = {}
    for event in events:
        if event["ph"] == "C":
            assert event["ts"] >= latest.get(event["name"], 0.0)
            latest[event["name"]] = event["ts"]


def check_flows(events: list[Event], slices: dict[int, list[Event]]) -> None:
    """Each has one start and one end, and every point lies in an event of its track."""
    flows: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in {"s", "t", "f"}:
            flows[event["id"]].append(event)
            assert any(
                one["ts"] - 1e-3 <= event["ts"] <= one["ts"] + one["dur"] + 1e-3 for one in slices[event["tid"]]
            ), event
    for points in flows.values():
        assert [event["ph"] for event in points] == ["s", *["t"] * (len(points) - 2), "f"]
        assert len(points) >= 3
        times = [event["ts"] for event in points]
        assert times == sorted(times)


def names(events: list[Event]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def traced(path: Path, count: int = 1, backend: str = "asyncio", **params: Any) -> list[Event]:
    """Of so many generations side by side."""
    target = Target()

    async def main() -> None:
        trace = TraceWriter(path)
        async with (
            make_engine(target, oracle(broken_at=9), instruments=[trace]) as engine,
            anyio.create_task_group() as tasks,
        ):
            for which in range(count):
                tasks.start_soon(collect, engine.generate(prompt(which), **params))
        trace.close()
        trace.close()

    run(main, backend)
    assert_clean(target)
    events: list[Event] = json.loads(path.read_bytes())
    check(events)
    return events


@both_loops
@pytest.mark.parametrize("params", [{}, STREAMING, {**STREAMING, "on_slip": "retract"}], ids=repr)
@pytest.mark.parametrize("count", [1, 4])
def test_a_trace_passes_the_schema(tmp_path: Path, params: Any, count: int, backend: str) -> None:
    events = traced(tmp_path / "trace.json", count, backend, **params)
    tracks = set(names(events).values())
    stages = ("drafter", "gate", "verifier", "cascade", "revealer", "client")
    own = {f"generation {run}: {stage}" for run in range(1, count + 1) for stage in stages}
    assert tracks == {"drafter worker", "target worker"} | own
    assert {event["tid"] for event in events if event["ph"] == "X"} == set(names(events))
    assert [event["ph"] for event in events].count("s") >= count


def test_arrows_lead_from_the_draft_through_its_pass_to_what_is_shown(tmp_path: Path) -> None:
    events = traced(tmp_path / "trace.json")
    tracks = names(events)
    flows: dict[int, list[str]] = defaultdict(list)
    for event in events:
        if event["ph"] in {"s", "t", "f"}:
            flows[event["id"]].append(tracks[event["tid"]].removeprefix("generation 1: "))
    assert flows
    assert all(way == ["drafter", "target worker", "verifier", "revealer"] for way in flows.values())


def test_arrows_of_released_drafts_show_that_they_were_shown_first(tmp_path: Path) -> None:
    events = traced(tmp_path / "trace.json", **STREAMING)
    tracks = names(events)
    ways = defaultdict(list)
    for event in events:
        if event["ph"] in {"s", "t", "f"}:
            ways[event["id"]].append(tracks[event["tid"]].removeprefix("generation 1: "))
    assert any(way.count("revealer") == 2 for way in ways.values())
    assert all(way[0] == "drafter" and way[-1] == "revealer" for way in ways.values())


def test_counters_follow_the_frontiers(tmp_path: Path) -> None:
    events = traced(tmp_path / "trace.json", **STREAMING)
    found = [event["args"] for event in events if event["name"] == "generation 1: frontiers"]
    lags = [event["args"]["bytes"] for event in events if event["name"] == "generation 1: unverified bytes"]
    assert max(lags) > 0
    assert lags[-1] == 0
    assert found[-1]["committed"] == found[-1]["revealed"] == found[-1]["released"]
    committed = [one["committed"] for one in found]
    assert committed == sorted(committed)
    assert any(event["name"].startswith("generation 1: queue of the ") for event in events)


def test_no_text_is_in_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    traced(path, **STREAMING)
    text = path.read_text()
    assert not [word for word in TEXTS[0].decode(errors="ignore").split() if len(word) > 3 and word in text]


def test_a_trace_is_written_while_it_runs_and_opens_when_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grimboost.trace.CHUNK", 8)
    path = tmp_path / "trace.json"
    sizes: list[int] = []

    async def main() -> None:
        trace = TraceWriter(path)
        async with make_engine(drafter=oracle(broken_at=5), instruments=[trace]) as engine:
            for which in range(40):
                await collect(engine.generate(prompt(which % 4)))
                sizes.append(path.stat().st_size)
                assert len(trace._runs) <= 40
        trace.close()

    run(main)
    assert len(set(sizes)) > 3
    whole = path.read_text()
    check(json.loads(whole))
    lines = whole.splitlines()[: len(whole.splitlines()) // 2]
    json.loads("\n".join(lines).rstrip(",") + "]")  # which is what both viewers take a missing end for


def test_generations_that_ended_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grimboost.trace.MOST_ENDED", 2)

    async def main() -> None:
        trace = TraceWriter(tmp_path / "trace.json")
        async with make_engine(instruments=[trace]) as engine:
            for _ in range(6):
                await collect(engine.generate(prompt()))
            assert len(trace._runs) == 2
        trace.close()

    run(main)
    check(json.loads((tmp_path / "trace.json").read_text()))


class FullDisk(io.RawIOBase):
    """Takes so many bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(data)


@pytest.mark.parametrize("room", [0, 100_000], ids=["at the end", "in the middle"])
def test_a_full_disk_ends_the_trace_with_one_warning_and_no_generation(
    room: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, generations = Target(), 12 if room else 1

    async def main() -> None:
        trace = TraceWriter(tmp_path / "trace.json")
        assert trace._file is not None
        trace._file.close()
        trace._file = io.BufferedWriter(FullDisk(room), 1 << 16)
        async with make_engine(target, oracle(broken_at=5), instruments=[trace]) as engine:
            for which in range(generations):
                generation = engine.generate(prompt(which % 4))
                await collect(generation)
                assert_whole(generation, which % 4)
        trace.close()

    with caplog.at_level(logging.WARNING):
        run(main)
    [warning] = [record.message for record in caplog.records]
    assert warning.startswith("grimboost: the trace ends, the generation goes on (path=")
    assert warning.endswith("trace.json, error=No space left on device)")
    assert_clean(target)


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match=r"cannot trace to .*: Is a directory"):
        TraceWriter(tmp_path)


def test_a_client_that_leaves_and_a_drafter_that_fails_are_traced_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    def script(context: bytes, most: int) -> bytes:
        raise ValueError("no")

    async def main() -> None:
        trace = TraceWriter(path)
        drafter = ScriptDrafter(script)
        async with (
            make_engine(drafter=drafter, instruments=[trace]) as engine,
            engine.generate(prompt()) as generation,
        ):
            async for event in generation:
                if isinstance(event, m.Chunk):
                    break
        trace.close()

    run(main)
    events = json.loads(path.read_text())
    check(events)
    assert "DraftFailed" in {event["name"] for event in events}


def test_the_check_can_fail() -> None:
    """Each thing that it looks for, once broken."""
    track = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "one"}},
        {"ph": "X", "name": "a", "cat": "c", "pid": 1, "tid": 1, "ts": 1.0, "dur": 5.0, "args": {}},
        {"ph": "X", "name": "b", "cat": "c", "pid": 1, "tid": 1, "ts": 2.0, "dur": 2.0, "args": {}},
    ]
    start = {"ph": "s", "name": "d", "cat": "d", "id": 1, "pid": 1, "tid": 1, "ts": 1.5}
    step = {**start, "ph": "t", "ts": 2.0, "bp": "e"}
    check([*track, start, step, {**step, "ph": "f"}])
    for wrong in (
        [*track, {**track[1], "ts": 5.0, "dur": 9.0}],
        [*track, {**track[1], "ts": 0.5}],
        [*track, {**track[1], "tid": 2}],
        [*track, {key: field for key, field in track[1].items() if key != "dur"}],
        [*track, start],
        [*track, start, step],
        [*track, start, {**step, "ts": 1.2}, {**step, "ph": "f"}],
        [*track, start, step, {**step, "ph": "f", "ts": 8.0}],
    ):
        with pytest.raises(AssertionError):
            check(wrong)


def test_the_picture_shows_tracks_arrows_and_the_counter(tmp_path: Path) -> None:
    root = ElementTree.fromstring(picture(traced(tmp_path / "trace.json", **STREAMING)))
    space = "{http://www.w3.org/2000/svg}"
    words = {text.text for text in root.iter(f"{space}text")}
    assert {"client", "gate", "target worker", "unverified bytes"} <= words
    assert len([path for path in root.iter(f"{space}path") if path.get("marker-end")]) > 1
