"""The datastore: what generations came to, so that a later one can draft from it.

Of each ended generation it keeps the output and the last `HEAD` bytes of the prompt: enough to find the output
again by the question before it, while documents, which a second question about them repeats anyway, take no
room. Texts are bounded in bytes, and the least recently used go first; use is that a draft from it was accepted,
or that it was generated once more.

In memory, it ends with the process. Nothing is written to disk unless a file is given; then prompts' ends and
outputs are kept there in the clear, readable for the user only. Either way drafts come from texts of all who use
the same engine: no output ever depends on that, but how fast an answer comes can tell that somebody has had it
before. It knows no match that it has not been asked for, and nothing of drafts.
"""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from filelock import Timeout
from msgspec import Struct

from grimboost.adapters.datastore_file import DatastoreFile, Kept, Used, digest
from grimboost.adapters.text_index import LONGEST, SEGMENT_BYTES, Match, Text, TextIndex
from grimboost.diagnostics import get_logger

log = get_logger(__name__)

CAPACITY = 4 * 1024 * 1024
"""Bytes of text by default; the index takes thirteen times as much memory."""

HEAD = LONGEST
"""Bytes of context that are kept before an output."""

PIECE = SEGMENT_BYTES // 2
"""A longer output is kept in pieces, each behind the end of the one before."""


class DatastoreStatistics(Struct, frozen=True):
    """A snapshot: texts and their bytes, parts of the index, texts that had to go."""

    texts: int
    bytes: int
    segments: int
    evicted: int


class Datastore:
    """Used by any threads. Only `load` and `settle` wait for a disk."""

    def __init__(self, capacity: int = CAPACITY, path: Path | None = None) -> None:
        """Keeps up to `capacity` bytes, also in the file `path` if given. `MisuseError` if that cannot be."""
        self._capacity = capacity
        self._file = DatastoreFile(path, capacity) if path else None
        self._lock = threading.Lock()
        self._index = TextIndex()
        self._texts: dict[Text, None] = {}  # least recently used first
        self._by_head: dict[int, list[Text]] = {}  # by hash of their context
        self._size = self._evicted = 0
        self._unwritten: list[Kept | Used] = []
        self._writer: threading.Thread | None = None
        if self._file:
            self._take(self._file.load())

    def statistics(self) -> DatastoreStatistics:
        """A snapshot, safe at any time."""
        return DatastoreStatistics(len(self._texts), self._size, self._index.segments, self._evicted)

    def matches(self, context: bytes, count: int) -> list[Match]:
        """Where texts go on from the longest matches with the end of `context`, as `TextIndex.matches`."""
        with self._lock:
            return self._index.matches(context, count)

    def add(self, prompt: bytes, output: bytes) -> None:
        """Keep what a generation came to: about a millisecond. Once more is a use of what is there already."""
        with self._lock:
            for text in _pieces(prompt, output):
                if text.size <= self._capacity:
                    self._add(text)
            self._write_soon()

    def use(self, text: Text) -> None:
        """A draft from this text was accepted."""
        with self._lock:
            self._use(text)

    def settle(self) -> None:
        """Wait until all is in the file, or cannot be brought there."""
        with self._lock:
            self._write_soon()
            writer = self._writer
        if writer:
            writer.join()

    # ------------------------------------------------------------ with the lock held

    def _add(self, text: Text) -> None:
        for other in tuple(self._by_head.get(_head(text), ())):
            if other.data.startswith(text.data):
                return self._use(other)
            if text.data.startswith(other.data):
                self._remove(other)
        self._insert([text])
        if self._file:
            self._unwritten.append(Kept(text.data, text.head))
        while self._size > self._capacity:
            self._remove(next(iter(self._texts)))
            self._evicted += 1
        return None

    def _take(self, texts: Iterable[Text]) -> None:
        """Put in what was loaded, a segment at a time: sorting all at once is cheaper than merging."""
        batch, size = list[Text](), 0
        for text in texts:
            if batch and size + text.size > SEGMENT_BYTES:
                self._insert(batch)
                batch, size = [], 0
            batch.append(text)
            size += text.size
        if batch:
            self._insert(batch)

    def _insert(self, texts: list[Text]) -> None:
        self._index.add(texts)
        for text in texts:
            self._texts[text] = None
            self._by_head.setdefault(_head(text), []).append(text)
            self._size += text.size

    def _remove(self, text: Text) -> None:
        self._index.remove(text)
        del self._texts[text]
        self._size -= text.size
        others = self._by_head[_head(text)]
        others.remove(text)
        if not others:
            del self._by_head[_head(text)]

    def _use(self, text: Text) -> None:
        if text not in self._texts:
            return  # it had to go meanwhile
        latest = next(reversed(self._texts))
        if text is not latest:
            del self._texts[text]
            self._texts[text] = None
        if self._file:
            used = Used(digest(text))
            if used not in self._unwritten:
                self._unwritten.append(used)

    def _write_soon(self) -> None:
        """In a thread of its own, which ends with its work: a slow disk must not hold up the drafter.

        It is no daemon, so that a process that ends waits for it.
        """
        if self._file and self._unwritten and self._writer is None:
            writer = threading.Thread(target=self._write, args=[self._file], name="grimboost datastore")
            writer.start()
            self._writer = writer

    # ------------------------------------------------------------ in the writer's thread

    def _write(self, file: DatastoreFile) -> None:
        while records := self._next_records():
            try:
                file.append(records)
            except (OSError, Timeout) as error:
                log.warning("datastore cannot be written", path=file.path, error=str(error))

    def _next_records(self) -> list[Kept | Used]:
        with self._lock:
            records, self._unwritten = self._unwritten, []
            if not records:
                self._writer = None
            return records


def _head(text: Text) -> int:
    return hash(text.data[: text.head])


def _pieces(prompt: bytes, output: bytes) -> Iterator[Text]:
    """The output in pieces, each with the context before it."""
    for start in range(0, len(output), PIECE):
        head = (prompt[-HEAD:] + output[max(0, start - HEAD) : start])[-HEAD:]
        yield Text(head + output[start : start + PIECE], len(head))


def open_datastore(place: Path | str | None) -> Datastore | None:
    """A datastore as a caller names it: `memory`, a file's path, or nothing for None or `none`.

    Raises `MisuseError` if there can be no such file. Blocks on the disk.
    """
    if place is None or place == "none":
        return None
    return Datastore() if place == "memory" else Datastore(path=Path(place).expanduser())
