"""Evidence that outlives a process: certificates with their calibrations, one small file per key.

::

    <root>/<SHA-256 of the key>.json   {"format": 1, "sha256": of the record, "record": {key, certificate, ...}}
    <root>/<SHA-256 of the key>.lock   held while one of them is changed
    <root>/<SHA-256 of the key>.new    what a run is writing; then it takes the file's place in one step

Two processes add up: each change reads the present file under its lock. A crash leaves the old file or the new
one, never a mix. A file that is damaged, of another format, or names another key, is an error that says so: it
never opens anything, and nothing is written over it. Files are readable for their owner only.

It knows what evidence is applied to, not what it says: that is `stages/certificate.py` and `calibration.py`.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout
from msgspec import Struct
from platformdirs import user_state_dir

from grimboost.errors import CertificateError, MisuseError
from grimboost.stages.calibration import Calibration, CalibrationCounts
from grimboost.stages.certificate import Certificate, CertificateState, Terms

FORMAT = 1
RESET = "'grimboost certificate reset --damaged' removes it; evidence then begins anew"

LOCK_SECONDS = 3.0
"""How long another process may hold a file; a change takes milliseconds."""


class CertificateKey(Struct, frozen=True, forbid_unknown_fields=True):
    """What one certificate is about. `target` and `drafter` are digests: another model is another certificate."""

    target: str
    drafter: str
    domain: str
    epsilon: float
    delta: float

    @property
    def terms(self) -> Terms:
        """The terms of its certificate, with the default thresholds."""
        return Terms(self.epsilon, self.delta)

    @property
    def digest(self) -> str:
        """Its name as a file."""
        return sha256(msgspec.json.encode(self)).hexdigest()


class AuditedSpan(Struct, frozen=True, array_like=True):
    """One span that the target has decided about. `confidence` is what it was calibrated to before that."""

    raw: float
    confidence: float
    slip: bool
    released: bool


class Evidence(Struct, frozen=True):
    """What a generation found since it last reported.

    `ended`: with this the generation ends, `whole` if every span it had shown unchecked was audited. A generation
    that reports more than once says at its end whether earlier reports held released spans and slips among them.
    """

    spans: tuple[AuditedSpan, ...] = ()
    ended: bool = False
    whole: bool = True
    released_before: bool = False
    slipped_before: bool = False


class CertificateRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """All that is kept for one key."""

    key: CertificateKey
    certificate: CertificateState = CertificateState()
    calibration: CalibrationCounts = CalibrationCounts()

    def judge(self) -> Certificate:
        """The certificate with this evidence. Raises `MisuseError` for evidence that contradicts itself."""
        return Certificate(self.key.terms, self.certificate)


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    sha256: str
    record: msgspec.Raw


class CertificateStore:
    """All access to one folder of evidence, or to evidence in memory. Every call may block on the disk."""

    def __init__(self, root: Path | None) -> None:
        """`root` None keeps everything in memory, for as long as this object lives."""
        self.root = root
        self._memory: dict[CertificateKey, CertificateRecord] = {}
        self._thread = threading.Lock()

    def read(self, key: CertificateKey) -> CertificateRecord:
        """The present record, or a fresh one. Raises `CertificateError` for a file that does not hold."""
        key.terms.check()
        if self.root is None:
            return self._memory.get(key) or CertificateRecord(key)
        path = self._path(key)
        record = _read(path)
        if record is not None and record.key != key:
            raise CertificateError(f"{path} holds evidence for something else and is not used. {RESET}")
        return record or CertificateRecord(key)

    def update(self, key: CertificateKey, *evidence: Evidence) -> CertificateRecord:
        """Add evidence to what is there now, and keep the result. Raises `CertificateError` if that cannot be."""
        with self._changing(key):
            record = self.read(key)
            for one in evidence:
                record = applied(record, one)
            self._write(record)
            return record

    def reset(self, key: CertificateKey, calibration: bool = False) -> None:
        """Drop the certificate's evidence, and the calibration too if asked. A damaged file is dropped whole."""
        with self._changing(key):
            try:
                kept = CalibrationCounts() if calibration else self.read(key).calibration
            except CertificateError:
                kept = CalibrationCounts()
            self._write(CertificateRecord(key, calibration=kept))

    def records(self) -> list[CertificateRecord]:
        """All records that hold; see `damaged` for the others."""
        if self.root is None:
            return list(self._memory.values())
        read = (_read_or_error(path) for path in self._paths())
        return [record for record in read if isinstance(record, CertificateRecord)]

    def damaged(self) -> dict[Path, CertificateError]:
        """Files that are not used, and why."""
        read = {path: _read_or_error(path) for path in self._paths()}
        return {path: error for path, error in read.items() if isinstance(error, CertificateError)}

    def discard(self, path: Path) -> None:
        """Delete a file of this store."""
        path.unlink(missing_ok=True)

    @contextmanager
    def _changing(self, key: CertificateKey) -> Iterator[None]:
        """Alone, among threads and processes."""
        if self.root is None:
            with self._thread:
                yield
            return
        path = self._path(key)
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(path.with_suffix(".lock"), mode=0o600).acquire(timeout=LOCK_SECONDS):
                yield
        except Timeout:
            raise CertificateError(f"{path} has been locked by another process for {LOCK_SECONDS:g} s") from None
        except OSError as error:
            raise CertificateError(
                f"evidence cannot be kept in {path}: {error.strerror}. GRIMBOOST_CERTIFICATES names another folder"
            ) from error

    def _write(self, record: CertificateRecord) -> None:
        if self.root is None:
            self._memory[record.key] = record
            return
        path, new = self._path(record.key), self._path(record.key).with_suffix(".new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(_packed(record))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def _path(self, key: CertificateKey) -> Path:
        assert self.root is not None
        return self.root / f"{key.digest}.json"

    def _paths(self) -> list[Path]:
        return [] if self.root is None else sorted(self.root.glob("*.json"))


def default_root() -> Path:
    """`GRIMBOOST_CERTIFICATES`, or the user's folder for state."""
    given = os.environ.get("GRIMBOOST_CERTIFICATES")
    return Path(given or Path(user_state_dir("grimboost")) / "certificates").expanduser().absolute()


def applied(record: CertificateRecord, evidence: Evidence) -> CertificateRecord:
    """The record with this evidence added, span by span."""
    certificate, calibration = record.judge(), Calibration(record.calibration)
    for span in evidence.spans:
        calibration.observe(span.raw, not span.slip, span.confidence)
        certificate.observe(span.confidence, span.slip, span.released)
    if evidence.ended:
        released = [span for span in evidence.spans if span.released]
        if released or evidence.released_before:
            slip = evidence.slipped_before or any(span.slip for span in released)
            certificate.end_generation(slip, evidence.whole)
    return CertificateRecord(record.key, certificate.state, calibration.counts)


def _packed(record: CertificateRecord) -> bytes:
    raw = msgspec.json.encode(record)
    return msgspec.json.encode(_File(FORMAT, sha256(raw).hexdigest(), msgspec.Raw(raw)))


def _read(path: Path) -> CertificateRecord | None:
    """The record in a file, None if there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        where = "GRIMBOOST_CERTIFICATES names another folder"
        raise CertificateError(f"cannot read {path}: {error.strerror}. {where}") from error
    try:
        return _unpacked(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, MisuseError) as error:
        raise CertificateError(f"{path} is damaged and not used ({error}). {RESET}") from error


def _unpacked(data: bytes) -> CertificateRecord:
    version = msgspec.json.decode(data, type=_Version).format
    if version != FORMAT:
        raise MisuseError(f"format {version}, not {FORMAT}")
    file = msgspec.json.decode(data, type=_File)
    if sha256(file.record).hexdigest() != file.sha256:
        raise MisuseError("its checksum does not hold")
    record = msgspec.json.decode(file.record, type=CertificateRecord)
    record.judge()
    return record


class _Version(Struct, frozen=True):
    format: int


def _read_or_error(path: Path) -> CertificateRecord | CertificateError | None:
    try:
        record = _read(path)
        if record and record.key.digest != path.stem:
            return CertificateError(f"{path} holds evidence for something else and is not used. {RESET}")
        return record
    except CertificateError as error:
        return error
