"""A datastore's texts on disk: one file, to which records are appended, shared by processes.

::

    grimboost datastore 1\\n          then, over and over again:
    MARK  size  CRC-32  payload       payload: msgpack of `Kept` or `Used`, size and CRC little-endian

Crash-safe without a database: a record counts if its checksum does, and what was torn or damaged is skipped up to
the next mark that holds. Now and then the file is written anew with the texts that fit, beside itself, and takes
the old one's place in one step. All of that happens under a lock file; records are not flushed to the device, so
a power failure may cost the last ones. Files are readable for their owner only: they hold prompts and output in
the clear. It knows nothing of matches.
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import msgspec
from filelock import FileLock, Timeout

from grimboost.adapters.text_index import Text
from grimboost.diagnostics import get_logger
from grimboost.errors import MisuseError

log = get_logger(__name__)

HEADER = b"grimboost datastore 1\n"
MARK = b"\xf5GDS"  # the first byte is in no UTF-8 text
HEAD = struct.Struct("<II")

LOCK_SECONDS = 5.0
"""How long another process may keep the file before this one goes on without it."""

GROWTH = 2
"""The file is written anew when it is so many times as large as the texts may be."""


class Kept(msgspec.Struct, frozen=True, tag="k", array_like=True):
    """A text, as in `Text`."""

    data: bytes
    head: int


class Used(msgspec.Struct, frozen=True, tag="u", array_like=True):
    """The text with this digest was of use again."""

    digest: bytes


_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Kept | Used] = msgspec.msgpack.Decoder(Kept | Used)


def digest(text: Text) -> bytes:
    """Which text it is, on disk."""
    return blake2b(text.data, digest_size=16).digest()


class DatastoreFile:
    """One file, by processes and threads at the same time; every call blocks on the disk."""

    def __init__(self, path: Path, capacity: int) -> None:
        """Keeps up to `capacity` bytes of text. Raises `MisuseError` if there can be no such file at `path`."""
        self.path = path
        self._capacity = capacity
        self._lock = FileLock(f"{path}.lock")
        if not path.parent.is_dir():
            raise MisuseError(f"cannot keep a datastore in {path}: its folder does not exist")
        if path.exists() and not path.is_file():
            raise MisuseError(f"cannot keep a datastore in {path}: it is no file")

    def load(self) -> list[Text]:
        """The texts, least recently used first. What is damaged is reported, skipped, and gone afterwards.

        Raises `MisuseError` if the file is something else (it is left as it is) or cannot be used.
        """
        try:
            with self._locked():
                data = self.path.read_bytes() if self.path.exists() else b""
                if not data.startswith(HEADER) and not HEADER.startswith(data):
                    raise MisuseError(f"{self.path} is no datastore of this version; name another file")
                texts, skipped = _read(data)
                if skipped:
                    log.warning(
                        "datastore is damaged, goes on without what cannot be read",
                        path=self.path,
                        bytes_skipped=skipped,
                        texts_left=len(texts),
                    )
                texts = _fitting(texts, self._capacity)
                if skipped or len(data) < len(HEADER):
                    self._rewrite(texts)
                return texts
        except Timeout:
            log.warning("datastore is locked by another process, starting without its texts", path=self.path)
            return []
        except OSError as error:
            raise MisuseError(f"cannot keep a datastore in {self.path}: {error.strerror}") from error

    def append(self, records: Iterable[Kept | Used]) -> None:
        """Add records. Raises `OSError` or `filelock.Timeout`; the file holds then what it held, or more."""
        data = b"".join(_packed(record) for record in records)
        with self._locked():
            with _private(self.path, os.O_APPEND) as file:
                if file.tell() == 0:  # somebody has deleted it
                    file.write(HEADER)
                file.write(data)
                size = file.tell()
            if size > GROWTH * self._capacity + len(HEADER):
                self._rewrite(_fitting(_read(self.path.read_bytes())[0], self._capacity))

    def _rewrite(self, texts: list[Text]) -> None:
        new = self.path.with_name(f"{self.path.name}.new")  # one under the lock, so a crash leaves no second
        with _private(new, os.O_TRUNC) as file:
            file.write(HEADER)
            file.writelines(_packed(Kept(text.data, text.head)) for text in texts)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock.acquire(timeout=LOCK_SECONDS):
            yield


def _private(path: Path, flags: int) -> BinaryIO:
    """Open for writing; a new file is its owner's alone."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600), "ab" if flags & os.O_APPEND else "wb")


def _packed(record: Kept | Used) -> bytes:
    payload = _ENCODER.encode(record)
    return MARK + HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def _read(data: bytes) -> tuple[list[Text], int]:
    """All texts in the order of their last use, and how many bytes made no sense."""
    texts: dict[bytes, Text] = {}
    at, skipped = len(HEADER), 0
    while at < len(data):
        record, end = _record_at(data, at)
        if record is None:
            found = data.find(MARK, at + 1)
            end = len(data) if found < 0 else found
            skipped += end - at
        elif isinstance(record, Kept):
            text = Text(record.data, record.head)
            texts.pop(digest(text), None)
            texts[digest(text)] = text
        elif used := texts.pop(record.digest, None):
            texts[record.digest] = used
        at = end
    return list(texts.values()), skipped


def _record_at(data: bytes, at: int) -> tuple[Kept | Used | None, int]:
    """The record that begins here and where it ends; None if there is none that holds."""
    start = at + len(MARK) + HEAD.size
    if not data.startswith(MARK, at) or start > len(data):
        return None, at
    size, checksum = HEAD.unpack_from(data, at + len(MARK))
    payload = data[start : start + size]
    if len(payload) != size or zlib.crc32(payload) != checksum:
        return None, at
    try:
        return _DECODER.decode(payload), start + size
    except msgspec.MsgspecError:
        return None, at


def _fitting(texts: list[Text], capacity: int) -> list[Text]:
    """The most recently used that fit."""
    size, kept = 0, list[Text]()
    for text in reversed(texts):
        size += text.size
        if size > capacity:
            break
        kept.append(text)
    return kept[::-1]
