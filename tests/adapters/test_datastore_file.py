"""The datastore's file: round trip, every kind of damage, files that are something else, several processes."""

import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grimboost.adapters import datastore_file
from grimboost.adapters.datastore_file import HEADER, MARK, DatastoreFile, Kept, Used, digest
from grimboost.adapters.text_index import Text
from grimboost.errors import MisuseError

CAPACITY = 20_000
SMALL = 4000


def kept(*data: bytes) -> list[Kept]:
    return [Kept(one, 2) for one in data]


def loaded(path: Path, capacity: int = CAPACITY) -> list[bytes]:
    return [text.data for text in DatastoreFile(path, capacity).load()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "past"


def test_what_was_appended_is_loaded_in_the_order_of_its_last_use(path: Path) -> None:
    file = DatastoreFile(path, CAPACITY)
    assert file.load() == []
    file.append(kept(b"one", b"two \xff\x00", b"three" + MARK))
    file.append([Used(digest(Text(b"one"))), Used(b"unknown digest..")])
    file.append(kept(b"two \xff\x00"))
    texts = DatastoreFile(path, CAPACITY).load()
    assert [text.data for text in texts] == [b"three" + MARK, b"one", b"two \xff\x00"]
    assert [text.head for text in texts] == [2, 2, 2]


def test_the_file_is_its_owners_alone(path: Path) -> None:
    DatastoreFile(path, CAPACITY).load()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.unlink()
    DatastoreFile(path, CAPACITY).append(kept(b"made anew by an append"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert loaded(path) == [b"made anew by an append"]


def test_only_the_most_recently_used_that_fit_are_loaded(path: Path) -> None:
    file = DatastoreFile(path, CAPACITY)
    file.append(kept(b"a" * 100, b"b" * 100, b"c" * 100))
    file.append([Used(digest(Text(b"a" * 100)))])
    assert loaded(path, 400) == [b"c" * 100, b"a" * 100]


def test_a_file_that_grew_is_written_anew(path: Path) -> None:
    file = DatastoreFile(path, CAPACITY)
    texts = [b"%04d" % number * 100 for number in range(500)]
    largest = 0
    for text in texts:
        file.append(kept(text))
        largest = max(largest, path.stat().st_size)
    assert largest < 2 * CAPACITY + 1000
    assert loaded(path) == texts[-len(loaded(path)) :]
    assert len(loaded(path)) == CAPACITY // (400 + 64)
    assert sorted(one.name for one in path.parent.iterdir()) == ["past", "past.lock"]


def test_tiny_texts_do_not_have_it_written_at_every_turn(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    rewrite = DatastoreFile._rewrite
    monkeypatch.setattr(DatastoreFile, "_rewrite", lambda *args: written.append(1) or rewrite(*args))
    file = DatastoreFile(path, 2000)
    for number in range(1000):
        file.append(kept(b"%d" % number))
    assert len(written) < 50


@pytest.mark.parametrize("junk", [b"torn", MARK, MARK + b"\x05\0\0\0\0\0", MARK + b"\xff" * 8 + b"xyz"], ids=repr)
def test_a_torn_end_costs_nothing_else_also_when_others_wrote_behind_it(
    path: Path, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = DatastoreFile(path, CAPACITY)
    file.append(kept(b"one", b"two"))
    with path.open("ab") as raw:
        raw.write(junk)
    file.append(kept(b"three"))
    with caplog.at_level(logging.WARNING):
        assert loaded(path) == [b"one", b"two", b"three"]
    [record] = caplog.records
    assert "datastore is damaged" in record.message
    assert f"bytes_skipped={len(junk)}" in record.message
    caplog.clear()
    assert loaded(path) == [b"one", b"two", b"three"]  # it was mended
    assert not caplog.records


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(len(HEADER), 10**6), st.integers(1, 255), st.booleans())
def test_any_damage_behind_the_header_costs_only_what_it_hit(
    tmp_path: Path, where: int, flip: int, cut: bool
) -> None:
    path = tmp_path / "past"
    path.unlink(missing_ok=True)
    texts = [b"text %d" % number * 3 for number in range(6)]
    DatastoreFile(path, CAPACITY).append(kept(*texts))
    data = bytearray(path.read_bytes())
    where = len(HEADER) + where % (len(data) - len(HEADER))
    if cut:
        del data[where:]
    else:
        data[where] ^= flip
    path.write_bytes(data)
    found = loaded(path)
    assert set(found) <= set(texts)
    assert len(found) >= (0 if cut else 5)
    assert found == loaded(path)


@pytest.mark.parametrize("data", [b"my diary\n", HEADER.replace(b"1", b"2"), b"\0" * 100], ids=repr)
def test_a_file_that_is_something_else_is_refused_and_left_alone(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(MisuseError, match="past is no datastore of this version"):
        DatastoreFile(path, CAPACITY).load()
    assert path.read_bytes() == data


@pytest.mark.parametrize("data", [b"", HEADER[:7], HEADER])
def test_an_empty_file_is_a_datastore(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert loaded(path) == []
    assert path.read_bytes() == HEADER


def test_places_where_no_file_can_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="its folder does not exist"):
        DatastoreFile(tmp_path / "absent" / "past", CAPACITY)
    with pytest.raises(MisuseError, match="it is no file"):
        DatastoreFile(tmp_path, CAPACITY)


def test_a_crash_while_it_is_written_anew_leaves_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DatastoreFile(path, 1000)
    file.append(kept(b"x" * 900))

    def crash(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", crash)
        with pytest.raises(KeyboardInterrupt):
            file.append(kept(b"y" * 1500))
    assert loaded(path, CAPACITY) == [b"x" * 900, b"y" * 1500]
    file.append(kept(b"z" * 900))  # what the crash left is in nobody's way
    assert loaded(path, CAPACITY) == [b"z" * 900]


def test_a_lock_that_is_held_costs_the_texts_not_the_run(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(datastore_file, "LOCK_SECONDS", 0.05)
    DatastoreFile(path, CAPACITY).append(kept(b"one"))
    other = DatastoreFile(path, CAPACITY)
    with other._locked(), caplog.at_level(logging.WARNING):
        assert loaded(path) == []
    assert "locked by another process" in caplog.text
    assert loaded(path) == [b"one"]


WRITER = """
import sys
from pathlib import Path
from grimboost.adapters.datastore_file import DatastoreFile, Kept
path, name, count, capacity = Path(sys.argv[1]), *map(int, sys.argv[2:])
file = DatastoreFile(path, capacity)
file.load()
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    file.append([Kept(b"process %d text %d " % (name, number) * 5, 2)])
"""


def test_processes_that_write_at_once_lose_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    count = 100
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(name), str(count), str(SMALL)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    for process in processes:  # all at once
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    found = loaded(path, SMALL)
    assert not caplog.records
    assert len(found) == len(set(found))
    for name in range(4):  # each one's newest, in their order
        own = [text for text in found if text.startswith(b"process %d " % name)]
        assert own == [b"process %d text %d " % (name, number) * 5 for number in range(count - len(own), count)]
    assert len(found) >= SMALL // (100 + 64) - 1
