"""Evidence on disk: processes add up, a crash leaves old or new, and what does not hold opens nothing."""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from grimboost import certificate_store
from grimboost.certificate_store import (
    AuditedSpan,
    CertificateKey,
    CertificateRecord,
    CertificateStore,
    Evidence,
    default_root,
)
from grimboost.errors import CertificateError, MisuseError
from grimboost.stages.e_process import spans_needed

KEY = CertificateKey("target", "drafter", "chat", 0.2, 0.2)
OTHER = replace(KEY, domain="code")
NEEDED = spans_needed(0.2, 0.2, 0)
CLEAN = AuditedSpan(0.9, 0.95, False, False)
SHOWN = AuditedSpan(0.9, 0.95, False, True)
SLIP = AuditedSpan(0.9, 0.95, True, True)
ENOUGH = Evidence((CLEAN,) * NEEDED)


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CertificateStore:
    return CertificateStore(tmp_path / "deep" / "down" if request.param == "disk" else None)


@pytest.fixture
def disk(tmp_path: Path) -> CertificateStore:
    return CertificateStore(tmp_path / "evidence")


def file_of(store: CertificateStore, key: CertificateKey = KEY) -> Path:
    assert store.root is not None
    return store.root / f"{key.digest}.json"


def test_evidence_adds_up_and_stays_apart_by_key(store: CertificateStore) -> None:
    assert store.read(KEY) == CertificateRecord(KEY)
    assert store.records() == []
    half = Evidence((CLEAN,) * (NEEDED - 1))
    assert not store.update(KEY, half).judge().opened
    made = store.update(KEY, Evidence((CLEAN,)))
    assert made.judge().opened
    assert store.read(KEY) == made
    assert sum(made.calibration.agreed) == NEEDED
    for field, value in (("target", "t"), ("drafter", "d"), ("domain", "x"), ("epsilon", 0.1), ("delta", 0.1)):
        assert store.read(replace(KEY, **{field: value})).certificate.rows == ()
    store.update(OTHER, half)
    assert sorted(record.key.domain for record in store.records()) == ["chat", "code"]


def test_a_second_store_over_the_same_folder_reads_the_same(disk: CertificateStore) -> None:
    made = disk.update(KEY, Evidence((SLIP, CLEAN, SHOWN), ended=True))
    again = CertificateStore(disk.root)
    assert again.read(KEY) == made
    assert again.records() == [made]
    assert again.damaged() == {}


def test_raw_confidence_is_calibrated_and_calibrated_confidence_is_certified(store: CertificateStore) -> None:
    record = store.update(KEY, Evidence((AuditedSpan(0.3, 0.9, True, False),)))
    assert [row.spans for row in record.certificate.rows] == [1, 1]
    assert [row.slips for row in record.certificate.rows] == [1, 1]
    assert sum(record.calibration.raw) == 0.3
    assert sum(record.calibration.stated) == 0.9
    assert sum(record.calibration.agreed) == 0


@pytest.mark.parametrize(
    ("pieces", "counted"),
    [
        ([Evidence((SHOWN, CLEAN), ended=True)], (1, 0)),
        ([Evidence((SHOWN, SLIP), ended=True)], (1, 1)),
        ([Evidence((SHOWN,), ended=True, whole=False)], (0, 0)),
        ([Evidence((SLIP,), ended=True, whole=False)], (1, 1)),
        ([Evidence((CLEAN, AuditedSpan(0.9, 0.95, True, False)), ended=True)], (0, 0)),  # nothing was shown
        ([Evidence((SLIP,)), Evidence((CLEAN,), ended=True, released_before=True, slipped_before=True)], (1, 1)),
        ([Evidence((SHOWN,)), Evidence((), ended=True, released_before=True)], (1, 0)),
        ([Evidence((SHOWN, SLIP))], (0, 0)),  # still running
    ],
)
def test_an_answer_counts_once_when_it_ends_if_it_showed_spans_unchecked(
    store: CertificateStore, pieces: list[Evidence], counted: tuple[int, int]
) -> None:
    for piece in pieces:
        state = store.update(KEY, piece).certificate
    assert (state.answers, state.answers_with_slip) == counted


WRITER = """
import sys
from pathlib import Path
from grimboost.certificate_store import AuditedSpan, CertificateKey, CertificateStore, Evidence
store, key = CertificateStore(Path(sys.argv[1])), CertificateKey("target", "drafter", "chat", 0.2, 0.2)
sys.stdin.readline()
for _ in range(30):
    store.update(key, Evidence((AuditedSpan(0.9, 0.95, False, False),) * 2))
"""


def test_processes_add_up(disk: CertificateStore) -> None:
    command = [sys.executable, "-c", WRITER, str(disk.root)]
    writers = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(2)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    record = disk.read(KEY)
    assert record.certificate.rows[0].spans == 120
    assert sum(record.calibration.seen) == 120


def test_threads_add_up(store: CertificateStore) -> None:
    threads = [
        threading.Thread(target=lambda: [store.update(KEY, Evidence((CLEAN,))) for _ in range(20)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.read(KEY).certificate.rows[0].spans == 80


def test_an_update_waits_for_the_one_before(store: CertificateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one begins when the first has read and not yet written; it must not finish in between."""
    other = threading.Thread(target=store.update, args=(KEY, Evidence((CLEAN,))))

    def applied(record: CertificateRecord, evidence: Evidence) -> CertificateRecord:
        if other.ident is None:
            other.start()
            other.join(0.1)
        return whole(record, evidence)

    whole = certificate_store.applied
    monkeypatch.setattr(certificate_store, "applied", applied)
    store.update(KEY, Evidence((CLEAN,)))
    other.join()
    assert store.read(KEY).certificate.rows[0].spans == 2


class Killed(BaseException):
    """Stands for the end of a process at this very call."""


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_crash_at_any_moment_leaves_the_record_before(
    disk: CertificateStore, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = disk.update(KEY, Evidence((CLEAN,)))

    def killed(*_: object) -> Iterator[None]:
        raise Killed

    with monkeypatch.context() as patch:
        match call:
            case "write":
                patch.setattr(certificate_store, "_packed", killed)
            case "fsync":
                patch.setattr(os, "fsync", killed)
            case "replace":
                patch.setattr(Path, "replace", killed)
        with pytest.raises(Killed):
            disk.update(KEY, ENOUGH)
    after = CertificateStore(disk.root)
    assert after.read(KEY) == before
    assert after.records() == [before]
    assert after.damaged() == {}
    assert after.update(KEY, ENOUGH).certificate.rows[0].spans == NEEDED + 1


def test_half_a_new_file_is_written_over(disk: CertificateStore) -> None:
    before = disk.update(KEY, Evidence((CLEAN,)))
    file_of(disk).with_suffix(".new").write_bytes(b"x" * 10_000)
    assert disk.read(KEY) == before
    assert disk.update(KEY, Evidence((CLEAN,))).certificate.rows[0].spans == 2
    assert disk.read(KEY).certificate.rows[0].spans == 2


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_opens_nothing(disk: CertificateStore, place: int, bit: int) -> None:
    path = file_of(disk)
    if not path.exists():
        disk.update(KEY, ENOUGH)
    whole = path.read_bytes()
    data = bytearray(whole)
    data[place % len(data)] ^= 1 << bit
    path.write_bytes(data)
    try:
        with pytest.raises(CertificateError, match="certificate reset"):
            disk.read(KEY)
        with pytest.raises(CertificateError):
            disk.update(KEY, ENOUGH)
        assert path.read_bytes() == data  # nothing is written over it
        assert disk.records() == []
        assert list(disk.damaged()) == [path]
    finally:
        path.write_bytes(whole)
    assert disk.read(KEY).judge().opened


@pytest.mark.parametrize("content", [b"", b"{}", b"null", b"\xff\xfe", b"[]", b'{"format": "1"}'])
def test_a_file_that_is_something_else_is_named(disk: CertificateStore, content: bytes) -> None:
    disk.update(KEY, ENOUGH)
    file_of(disk).write_bytes(content)
    with pytest.raises(CertificateError, match=KEY.digest):
        disk.read(KEY)


def test_a_cut_file_opens_nothing(disk: CertificateStore) -> None:
    disk.update(KEY, ENOUGH)
    whole = file_of(disk).read_bytes()
    for length in range(0, len(whole), 37):
        file_of(disk).write_bytes(whole[:length])
        with pytest.raises(CertificateError):
            disk.read(KEY)


def test_another_format_is_named_before_anything_else_is_read(disk: CertificateStore) -> None:
    disk.update(KEY, ENOUGH)
    content = msgspec.json.decode(file_of(disk).read_bytes())
    file_of(disk).write_bytes(msgspec.json.encode({"format": 2, "evidence": content}))
    with pytest.raises(CertificateError, match="format 2, not 1"):
        disk.read(KEY)


def test_evidence_for_something_else_is_refused(disk: CertificateStore) -> None:
    """A whole file, copied to where another certificate's is expected."""
    disk.update(OTHER, ENOUGH)
    file_of(disk).write_bytes(file_of(disk, OTHER).read_bytes())
    with pytest.raises(CertificateError, match="something else"):
        disk.read(KEY)
    with pytest.raises(CertificateError, match="something else"):
        disk.update(KEY, ENOUGH)
    assert [record.key for record in disk.records()] == [OTHER]
    assert list(disk.damaged()) == [file_of(disk)]


def test_a_record_that_contradicts_itself_opens_nothing_even_with_its_checksum(disk: CertificateStore) -> None:
    made = disk.update(KEY, ENOUGH)
    lie = replace(made, certificate=replace(made.certificate, openings=0))
    file_of(disk).write_bytes(certificate_store._packed(lie))
    with pytest.raises(CertificateError, match="open in one place"):
        disk.read(KEY)


@pytest.mark.parametrize("calibration", [False, True])
def test_reset_drops_the_certificate_and_keeps_the_calibration_unless_told(
    store: CertificateStore, calibration: bool
) -> None:
    made = store.update(KEY, ENOUGH)
    store.update(OTHER, ENOUGH)
    store.reset(KEY, calibration)
    fresh = CertificateRecord(KEY)
    assert store.read(KEY) == (fresh if calibration else replace(fresh, calibration=made.calibration))
    assert store.read(OTHER).judge().opened


def test_reset_puts_a_fresh_record_in_the_place_of_a_damaged_file(disk: CertificateStore) -> None:
    disk.update(KEY, ENOUGH)
    file_of(disk).write_bytes(b"damaged")
    disk.reset(KEY)
    assert disk.read(KEY) == CertificateRecord(KEY)


def test_a_damaged_file_can_be_discarded(disk: CertificateStore) -> None:
    disk.update(KEY, ENOUGH)
    file_of(disk).write_bytes(b"damaged")
    [path] = disk.damaged()
    disk.discard(path)
    assert disk.damaged() == {}
    assert disk.read(KEY) == CertificateRecord(KEY)


def test_files_are_their_owners_alone(disk: CertificateStore) -> None:
    disk.update(KEY, ENOUGH)
    assert disk.root is not None
    assert stat.S_IMODE(disk.root.stat().st_mode) == 0o700
    for path in disk.root.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name


def test_a_folder_that_cannot_be_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = CertificateStore(tmp_path / "file" / "below")
    with pytest.raises(CertificateError, match="GRIMBOOST_CERTIFICATES"):
        store.update(KEY, ENOUGH)
    with pytest.raises(CertificateError, match="cannot read"):
        store.read(KEY)


def test_a_lock_that_is_never_released_is_an_error_not_a_wait(
    disk: CertificateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.update(KEY, ENOUGH)
    monkeypatch.setattr(certificate_store, "LOCK_SECONDS", 0.05)
    with (
        FileLock(file_of(disk).with_suffix(".lock")),
        pytest.raises(CertificateError, match="locked by another process"),
    ):
        disk.update(KEY, ENOUGH)


def test_a_key_whose_terms_cannot_be_is_refused(store: CertificateStore) -> None:
    with pytest.raises(MisuseError, match="epsilon"):
        store.read(replace(KEY, epsilon=0.0))
    with pytest.raises(MisuseError, match="delta"):
        store.update(replace(KEY, delta=2.0), ENOUGH)
    assert store.records() == []


def test_the_folder_is_the_user_s_state_or_what_the_variable_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRIMBOOST_CERTIFICATES", raising=False)
    assert default_root().parts[-2:] == ("grimboost", "certificates")
    monkeypatch.setenv("GRIMBOOST_CERTIFICATES", "somewhere")
    assert default_root() == Path.cwd() / "somewhere"
