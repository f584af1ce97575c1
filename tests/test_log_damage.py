"""Damage of a message log: any changed byte, any cut, anything added is reported and never silently used."""

import random
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from test_log import HEADER, starts, write

from grimboost import messages as m
from grimboost.errors import LogError
from grimboost.log import MAGIC, Log
from grimboost.wiring import CASCADE, CLIENT, GATE, REVEALER, VERIFIER

TOKEN = m.PathToken(511, b" fox")
SPAN = m.Span(511, b" fox", 0.75)
VERDICT = m.Verdict(1, 4, (TOKEN, TOKEN), m.Outcome.MISMATCH, 5, 9, 1, 4, 2, 6, margin=0.25)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A log of about 3 KB with frames of many lengths."""
    entries: list[tuple[str, Any, list[Any]]] = [
        (CASCADE, m.Started((1, 2, 3), b"A>>"), []),
        (VERIFIER, m.PassReturned(1, (m.Choice(511, b" fox", 0.5),) * 7, 9), [VERDICT]),
        (GATE, m.Draft(1, 4, 8, (SPAN,) * 9), [m.Spans(1, 4, 8, (m.GatedSpan(SPAN, m.Decision.VERIFY, "cap"),))]),
        (CASCADE, VERDICT, [m.Commit(4, b" fox fox", 12, (511, 511))]),
        (REVEALER, m.Commit(4, b" fox fox", 12, (511, 511)), [m.Chunk(4, b" fox fox")]),
        (CLIENT, m.Taken(0, 12, 4), []),
    ]
    return write(tmp_path_factory.mktemp("log") / "a.grimlog", entries + entries[3:])


def never_used(damaged: bytes, whole: Log, frame: int, before: int) -> bool:
    """Whether a change in the frame at byte `frame`, behind `before` entries, is reported."""
    try:
        log = Log.parse(damaged)
    except LogError:
        return True
    return log.torn_at is not None and log.torn_at <= frame and log.entries == whole.entries[:before]


def places(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Each byte behind the first line, with its frame's and how many entries precede it."""
    frames = starts(data)
    for number, (begin, end) in enumerate(pairwise(frames)):
        for place in range(begin, end):
            yield place, begin, max(0, number - 1)


def changed(data: bytes, place: int, value: int) -> bytes:
    damaged = bytearray(data)
    damaged[place] = value
    return bytes(damaged)


def test_any_changed_byte_is_reported(data: bytes) -> None:
    whole, chance = Log.parse(data), random.Random(5)
    assert 2500 < len(data) < 3500
    for place, frame, before in places(data):
        for value in {0, 0xFF, 0x80 ^ data[place], *chance.sample(range(256), 3)} - {data[place]}:
            assert never_used(changed(data, place, value), whole, frame, before), (place, value)


def test_any_changed_byte_of_a_length_is_an_error_and_no_torn_tail(data: bytes) -> None:
    """A torn tail would hide everything behind it."""
    for frame in starts(data)[:-1]:
        for place in range(frame, frame + 4):
            for value in set(range(256)) - {data[place]}:
                with pytest.raises(LogError, match=f"frame at byte {frame} "):
                    Log.parse(changed(data, place, value))


def test_any_changed_byte_of_the_first_line_is_an_error(data: bytes) -> None:
    for place in range(len(MAGIC)):
        for value in set(range(256)) - {data[place]}:
            with pytest.raises(LogError):
                Log.parse(changed(data, place, value))


def test_a_length_that_is_damaged_before_a_torn_tail_is_an_error(data: bytes) -> None:
    frames = starts(data)
    for value in range(1, 256):
        with pytest.raises(LogError, match=f"frame at byte {frames[4]} "):
            Log.parse(changed(data[:-3], frames[4] + 2, value))


def test_a_cut_at_every_byte_leaves_what_precedes_it(data: bytes) -> None:
    whole, frames = Log.parse(data), starts(data)
    for size in range(frames[1], len(data)):
        log = Log.parse(data[:size])
        last = max(frame for frame in frames if frame <= size)
        assert log.torn_at == (None if size == last else last)
        assert log.entries == whole.entries[: frames.index(last) - 1]


@pytest.mark.parametrize("zeros", [1, 7, 8, 9, 4096])
def test_zeros_are_torn_at_the_end_and_damage_before_it(data: bytes, zeros: int) -> None:
    assert Log.parse(data + bytes(zeros)).torn_at == len(data)
    frames = starts(data)
    if zeros >= 8:  # shorter ones are part of a frame's own length and checksum
        with pytest.raises(LogError, match=f"zeros stand in a frame's place at byte {frames[3]}"):
            Log.parse(data[: frames[3]] + bytes(zeros) + data[frames[3] :])


def test_two_logs_in_one_file_are_an_error(data: bytes) -> None:
    with pytest.raises(LogError, match=f"another log begins at byte {len(data)}"):
        Log.parse(data + data)
    with pytest.raises(LogError, match=f"the frame at byte {len(data)} is not of this version"):
        Log.parse(data + data[len(MAGIC) :])


@pytest.mark.parametrize("garbage", [b"\n", b"x", b"text behind the end", b"\xff" * 20, struct.pack("<II", 5, 5)])
def test_garbage_behind_the_end_is_reported(data: bytes, garbage: bytes) -> None:
    assert never_used(data + garbage, Log.parse(data), len(data), 9)


def test_what_follows_a_missing_or_repeated_frame_is_not_used(data: bytes) -> None:
    frames = starts(data)
    for missing in range(1, len(frames) - 2):
        with pytest.raises(LogError, match="stands at place"):
            Log.parse(data[: frames[missing]] + data[frames[missing + 1] :])
        with pytest.raises(LogError, match="stands at place"):
            Log.parse(data[: frames[missing + 1]] + data[frames[missing] :])


def test_looking_for_damage_costs_no_more_than_reading(tmp_path: Path) -> None:
    """The candidates of a damaged length are many and up to the end of the log: their checksums are continued."""
    data = write(tmp_path / "large.grimlog", [(CASCADE, m.Started((), bytes(3_000_000)), [])], HEADER)
    log = Log.parse(data[:-1])
    assert log.torn_at == starts(data)[1]
