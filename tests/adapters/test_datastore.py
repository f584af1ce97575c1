"""The datastore: what is kept, in which order it goes, threads, and the way to disk and back."""

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grimboost.adapters import datastore as datastore_module
from grimboost.adapters.datastore import HEAD, PIECE, Datastore, open_datastore
from grimboost.adapters.datastore_file import DatastoreFile
from grimboost.errors import MisuseError

BOOKKEEPING = 64


def follows(store: Datastore, context: bytes) -> bytes | None:
    """What the best match goes on with."""
    found = store.matches(context, 1)
    return found[0].text.data[found[0].end :] if found and found[0].length >= 4 else None


def test_an_output_is_found_by_the_end_of_its_prompt() -> None:
    store = Datastore()
    store.add(b"Name a colour>", b"red, of course")
    store.add(b"Name an animal>", b"the fox")
    assert follows(store, b"Name a colour>") == b"red, of course"
    assert follows(store, b"Please. Name an animal>") == b"the fox"
    assert follows(store, b"Name an animal>the f") == b"ox"
    assert store.statistics().texts == 2


def test_only_the_end_of_a_long_prompt_is_kept() -> None:
    store = Datastore()
    store.add(b"x" * 100_000 + b" what is this?", b"many x")
    assert store.statistics().bytes == HEAD + len(b"many x") + BOOKKEEPING
    assert follows(store, b"xx what is this?") == b"many x"


def test_a_long_output_is_kept_in_pieces_that_lead_from_one_to_the_next() -> None:
    output = b"".join(b"line %d\n" % number for number in range(25_000))
    assert len(output) > 4 * PIECE // 2
    store = Datastore()
    store.add(b"count!", output)
    assert store.statistics().texts == -(-len(output) // PIECE)
    text, at = b"count!", 0
    while at < len(output):
        piece = follows(store, (text + output[:at])[-HEAD:])
        assert piece
        assert output.startswith(piece, at)
        at += len(piece)


def test_the_same_again_is_a_use_and_takes_no_room() -> None:
    store = Datastore(capacity=400)
    store.add(b"first>", b"a" * 94)
    store.add(b"second>", b"b" * 93)
    for _ in range(9):
        store.add(b"first>", b"a" * 94)
    assert store.statistics().texts == 2
    store.add(b"third>", b"c" * 94)
    assert (follows(store, b"first>"), follows(store, b"second>")) == (b"a" * 94, None)
    assert store.statistics().evicted == 1


def test_a_beginning_of_the_same_answer_takes_no_room() -> None:
    store = Datastore()
    for size in (3, 8, 5, 12, 1):
        store.add(b"tell me>", b"once upon a time"[:size])
    store.add(b"tell me>", b"on a dark night")  # another answer is kept beside it
    assert store.statistics().texts == 2
    assert follows(store, b"tell me>once") == b" upon a "


def test_the_least_recently_used_goes_first() -> None:
    store = Datastore(capacity=3 * (108 + BOOKKEEPING))
    for name in b"abc":
        store.add(b"letter %c" % name, b"%c" % name * 100)
    [match] = store.matches(b"letter a", 1)
    store.use(match.text)
    store.add(b"letter d", b"d" * 100)
    assert [follows(store, b"letter %c" % name) is not None for name in b"abcd"] == [True, False, True, True]
    store.add(b"letter e", b"e" * 100)
    store.add(b"letter f", b"f" * 100)
    store.use(match.text)  # it has gone meanwhile
    assert [follows(store, b"letter %c" % name) is not None for name in b"abcdef"] == [
        False,
        False,
        False,
        *[True] * 3,
    ]


def test_what_is_larger_than_everything_is_not_kept() -> None:
    store = Datastore(capacity=300)
    store.add(b"small>", b"yes")
    store.add(b"large>", b"x" * 300)
    assert (store.statistics().texts, follows(store, b"small>")) == (1, b"yes")


@settings(max_examples=60, deadline=None)
@given(
    st.integers(200, 900),
    st.lists(st.tuples(st.sampled_from([b"p>", b"q>", b"long prompt>"]), st.text("ab", min_size=1, max_size=90))),
)
def test_the_bound_holds_and_all_that_is_kept_is_found(capacity: int, added: list[tuple[bytes, str]]) -> None:
    store = Datastore(capacity)
    for prompt, output in added:
        store.add(prompt, output.encode())
        statistics = store.statistics()
        assert statistics.bytes == sum(text.size for text in store._texts) <= capacity
        assert statistics.texts == sum(len(texts) for texts in store._by_head.values())
        assert any(text.data.startswith(prompt + output.encode()) for text in store._texts)
    for text in store._texts:
        [match] = store.matches(text.data[:-1], 1)
        assert match.length == min(len(text.data) - 1, HEAD)


# ---------------------------------------------------------------- on disk


def test_what_one_run_kept_the_next_one_finds(tmp_path: Path) -> None:
    path = tmp_path / "past"
    store = Datastore(path=path)
    store.add(b"Name a colour>", b"red")
    store.settle()
    again = Datastore(path=path)
    assert follows(again, b"Name a colour>") == b"red"
    again.add(b"Name a colour>", b"red")
    again.settle()
    size = path.stat().st_size
    assert Datastore(path=path).statistics().texts == 1
    assert size < 2 * path.stat().st_size  # once more is a short record


def test_nothing_is_written_unless_a_file_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_datastore("memory")
    assert store
    store.add(b"secret>", b"output")
    store.settle()
    assert list(tmp_path.rglob("*")) == []


def test_the_order_of_use_outlives_the_run(tmp_path: Path) -> None:
    path, capacity = tmp_path / "past", 3 * (108 + BOOKKEEPING)
    store = Datastore(capacity, path)
    for name in b"abc":
        store.add(b"letter %c" % name, b"%c" % name * 100)
    store.use(store.matches(b"letter a", 1)[0].text)
    store.settle()
    store = Datastore(capacity, path)
    store.add(b"letter d", b"d" * 100)
    assert [follows(store, b"letter %c" % name) is not None for name in b"abcd"] == [True, False, True, True]
    store.settle()


def test_a_full_store_is_loaded_in_large_segments(tmp_path: Path) -> None:
    path = tmp_path / "past"
    store = Datastore(300_000, path)
    for number in range(300):
        store.add(b"%d>" % number, b"%d " % number * 200)
    store.settle()
    again = Datastore(300_000, path)
    assert (again.statistics().texts, again.statistics().bytes) == (
        store.statistics().texts,
        store.statistics().bytes,
    )
    assert again.statistics().segments <= 4
    assert follows(again, b"299>") == b"299 " * 200


def test_a_slow_disk_holds_up_nobody_but_who_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, append = threading.Event(), DatastoreFile.append

    def slow(self: Any, records: Any) -> None:
        assert go.wait(5.0)
        append(self, records)

    monkeypatch.setattr(DatastoreFile, "append", slow)
    store = Datastore(path=tmp_path / "past")
    for number in range(20):
        store.add(b"prompt %d>" % number, b"%d" % number)
    assert follows(store, b"prompt 7>") == b"7"
    go.set()
    store.settle()
    assert Datastore(path=tmp_path / "past").statistics().texts == 20


def test_a_disk_that_fails_is_reported_and_the_store_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Any, records: Any) -> None:
        raise OSError(28, "No space left on device")

    store = Datastore(path=tmp_path / "past")
    monkeypatch.setattr(DatastoreFile, "append", full)
    with caplog.at_level(logging.WARNING):
        store.add(b"Name a colour>", b"red")
        store.settle()
    assert "No space left" in caplog.text
    assert follows(store, b"Name a colour>") == b"red"


def test_two_stores_on_one_file_keep_what_both_added(tmp_path: Path) -> None:
    path = tmp_path / "past"
    one, other = Datastore(path=path), Datastore(path=path)
    for number in range(10):
        one.add(b"one %d>" % number, b"1")
        other.add(b"other %d>" % number, b"2")
    one.settle()
    other.settle()
    assert Datastore(path=path).statistics().texts == 20


# ---------------------------------------------------------------- threads


def test_threads_may_use_one_store_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datastore_module, "PIECE", 500)
    store, failures = Datastore(capacity=20_000), list[BaseException]()

    def work(name: int) -> None:
        try:
            for number in range(60):
                output = b"%d:%d " % (name, number) * 30
                store.add(b"prompt %d %d>" % (name, number), output)
                for match in store.matches(b"prompt %d %d>%d" % (name, number, name), 3):
                    assert match.end < len(match.text.data)
                    store.use(match.text)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[name]) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    statistics = store.statistics()
    assert statistics.bytes == sum(text.size for text in store._texts) <= 20_000
    assert statistics.evicted > 0


def test_places_by_name(tmp_path: Path) -> None:
    assert open_datastore(None) is open_datastore("none") is None
    assert open_datastore(str(tmp_path / "past"))
    with pytest.raises(MisuseError, match="it is no file"):
        open_datastore(tmp_path)
    with pytest.raises(MisuseError, match="its folder does not exist"):
        open_datastore(str(tmp_path / "absent" / "past"))
