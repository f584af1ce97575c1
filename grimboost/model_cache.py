"""The model cache: directories that are ready to load, each built once and whole or not there at all.

::

    <root>/models/<name>-<12 digits of the source's SHA-256>/  config.json, weights, tokenizer, the source,
                                                               grimboost.json
    <root>/partial/    what a run is building; whatever lies here while the lock is free is of a dead run
    <root>/downloads/  files that a person put there by hand, for a machine without network
    <root>/lock        held while something is fetched and converted

It knows nothing of aliases, GGUF, pip or transformers: how a model is made is the caller's `make`.
A directory counts only while its `grimboost.json` is readable and has the present format number, and every
file has the size that was noted; a damaged one is built again. Finished ones never change, but for `stamps`.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout
from msgspec import Struct
from platformdirs import user_cache_dir

from grimboost.errors import FetchError, ModelReferenceError

FORMAT = 3
RECORD = "grimboost.json"


class Stamp(Struct, frozen=True):
    """A file as it was when it was hashed; while nothing of this changes it is not hashed again.

    `place` is the SHA-256 of its path: a cached model may be given to others, who need not see the path.
    """

    place: str
    size: int
    modified_ns: int

    @classmethod
    def of(cls, file: Path) -> "Stamp":
        """The present stamp of a file."""
        status = file.stat()
        place = hashlib.sha256(os.fsencode(file.resolve())).hexdigest()
        return cls(place, status.st_size, status.st_mtime_ns)


class Origin(Struct, frozen=True):
    """What a cached model is made from. `source` is for people; `sha256` identifies it.

    `file` and `stamp`, where it is a file of the user's: what it was like before it was hashed.
    """

    name: str
    source: str
    sha256: str
    file: Path | None = None
    stamp: Stamp | None = None


class Made(Struct, frozen=True):
    """What `make` found out while it made a model: ids that end a text, and the versions it worked with."""

    end_ids: dict[int, list[str]]
    versions: dict[str, str]


class Record(Struct, frozen=True):
    """`grimboost.json`. New fields get defaults; a change that old readers get wrong raises `FORMAT`."""

    format: int
    name: str
    source: str
    source_sha256: str
    digest: str
    """SHA-256 over the names and contents of all files, the source too: identity of weights and tokenizer."""
    end_ids: dict[int, list[str]]
    versions: dict[str, str]
    files: dict[str, int]
    stamps: list[Stamp]


class Entry(Struct, frozen=True):
    """A whole cached model."""

    directory: Path
    record: Record


class CachedModel(Struct, frozen=True):
    """One directory of the cache, whole or not, and the bytes it takes on disk."""

    name: str
    directory: Path
    bytes: int
    complete: bool


class ModelCache:
    """All access to one cache root. Processes and threads may use the same root at the same time."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or cache_root()
        self.downloads = self.root / "downloads"
        self._models = self.root / "models"
        self._partial = self.root / "partial"

    def find(self, sha256: str) -> Entry | None:
        """The whole entry that was made from the source with this hash."""
        entries = (Entry(place, record) for place in self._places(sha256) if (record := read_record(place)))
        return next((entry for entry in entries if entry.record.source_sha256 == sha256), None)

    def find_stamp(self, stamp: Stamp) -> Entry | None:
        """The whole entry that was made from this unchanged file, without reading the file."""
        entries = (Entry(place, record) for place in self._places() if (record := read_record(place)))
        return next((entry for entry in entries if stamp in entry.record.stamps), None)

    def obtain(self, origin: Origin, make: Callable[[Path], Made], waiting: Callable[[], None]) -> Entry:
        """This origin's entry. If there is none, `make(scratch)` puts the model into `scratch / "model"`.

        One run makes at a time. `waiting` is called once if another one is at it. Whatever `make` raises, an
        interrupt included, leaves nothing behind.
        """
        entry = self.find(origin.sha256)
        if entry is not None:
            return entry
        try:
            with self._locked(waiting):
                self._sweep()
                # A run that held the lock until now may have made just this one.
                return self.find(origin.sha256) or self._make(origin, make)
        except OSError as error:
            raise FetchError(
                f"{origin.name} could not be put into the model cache {self.root}: {error}. GRIMBOOST_CACHE "
                "names another directory for it"
            ) from error

    def note(self, entry: Entry, stamp: Stamp) -> None:
        """Remember that the file with this stamp is the entry's source, unless the cache is read-only."""
        others = [old for old in entry.record.stamps if old.place != stamp.place]
        record = msgspec.structs.replace(entry.record, stamps=[*others, stamp])
        with suppress(OSError):
            _write_record(entry.directory, record)

    def sweep(self) -> None:
        """Delete what dead runs left, unless a live one is at work."""
        with suppress(OSError, Timeout):
            if any(self._partial.iterdir()):
                with FileLock(self.root / "lock").acquire(timeout=0):
                    self._sweep()

    def models(self) -> list[CachedModel]:
        """All directories by name, also what is not whole (interrupted, damaged, of another format)."""
        unfinished = sorted(self._partial.iterdir()) if self._partial.is_dir() else []
        return [*map(_describe, self._places()), *map(_describe, unfinished)]

    # ------------------------------------------------------------ with the lock held

    def _make(self, origin: Origin, make: Callable[[Path], Made]) -> Entry:
        final = self._models / f"{origin.name}-{origin.sha256[:12]}"
        final.parent.mkdir(exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"{final.name}.", dir=self._partial))
        try:
            made = make(scratch)
            if origin.file and Stamp.of(origin.file) != origin.stamp:
                raise ModelReferenceError(f"{origin.file} changed while it was converted. Try again")
            record = _record_of(origin, made, scratch / "model")
            _write_record(scratch / "model", record)
            if final.exists():  # damaged, or of another format
                final.rename(scratch / "replaced")
            (scratch / "model").rename(final)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return Entry(final, record)

    def _sweep(self) -> None:
        for left in self._partial.iterdir():
            shutil.rmtree(left, ignore_errors=True)

    @contextmanager
    def _locked(self, waiting: Callable[[], None]) -> Iterator[None]:
        self._partial.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.root / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            waiting()
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _places(self, sha256: str = "") -> list[Path]:
        return sorted(place for place in self._models.glob(f"*-{sha256[:12]}*") if place.is_dir())


def cache_root() -> Path:
    """`GRIMBOOST_CACHE`, or the user's cache directory."""
    return Path(os.environ.get("GRIMBOOST_CACHE") or user_cache_dir("grimboost")).expanduser().absolute()


def sha256_of(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_sha256(file: Path, expected: str, label: str) -> None:
    """Raise unless the file, called `label` for people, is the expected one."""
    found = sha256_of(file)
    if found != expected:
        raise ModelReferenceError(
            f"{label} is damaged or not what was published: its SHA-256 is {found}, expected {expected}. "
            "Nothing of it was used"
        )


def read_record(directory: Path) -> Record | None:
    """The record of a whole model directory, or None if there is none that holds."""
    try:
        record = _DECODER.decode((directory / RECORD).read_bytes())
        sizes = {name: (directory / name).stat().st_size for name in record.files}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return record if record.format == FORMAT and sizes == record.files else None


def _record_of(origin: Origin, made: Made, directory: Path) -> Record:
    files = sorted(file for file in directory.iterdir() if file.is_file())
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {sha256_of(file)}\n".encode())
    return Record(
        format=FORMAT,
        name=origin.name,
        source=origin.source,
        source_sha256=origin.sha256,
        digest=digest.hexdigest(),
        end_ids=made.end_ids,
        versions=made.versions,
        files={file.name: file.stat().st_size for file in files},
        stamps=[origin.stamp] if origin.stamp else [],
    )


def _write_record(directory: Path, record: Record) -> None:
    """Replace the record in one step: a reader sees the old one or the new one."""
    new = directory / f"{RECORD}.{os.getpid()}"
    new.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2))
    new.replace(directory / RECORD)


def _describe(directory: Path) -> CachedModel:
    record = read_record(directory)
    size = 0
    for file in directory.rglob("*"):
        with suppress(OSError):  # a live run may take it away meanwhile
            size += file.lstat().st_size
    return CachedModel(record.name if record else directory.name, directory, size, record is not None)


_DECODER = msgspec.json.Decoder(Record)
