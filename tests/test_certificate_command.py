"""`grimboost certificate`: what a person sees, what a pipe gets, and that nothing is dropped by accident."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from grimboost.certificate_store import AuditedSpan, CertificateKey, CertificateStore, Evidence
from grimboost.command_line import cli
from grimboost.errors import MisuseError
from grimboost.stages.e_process import spans_needed

KEY = CertificateKey("ab" * 32, "cd" * 32, "chat", 0.01, 0.05)
CODE = replace(KEY, domain="code", target="12" * 32)
NEEDED = spans_needed(0.01, 0.05, 0)
CLEAN = AuditedSpan(0.9, 0.995, False, False)
SLIP = AuditedSpan(0.9, 0.9, True, False)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CertificateStore:
    """Two certificates, `chat` open with one slip beside, `code` closed."""
    monkeypatch.setenv("GRIMBOOST_CERTIFICATES", str(tmp_path / "evidence"))
    store = CertificateStore(tmp_path / "evidence")
    store.update(KEY, Evidence((SLIP, *(CLEAN,) * NEEDED)))
    store.update(CODE, Evidence((CLEAN,) * 10))
    return store


def run(*arguments: str, given: str | None = None) -> Result:
    """The command in this process; errors that `main` turns into statuses arrive as exceptions."""
    return CliRunner().invoke(cli, ["certificate", *arguments], input=given)


def damage(store: CertificateStore, key: CertificateKey = CODE) -> Path:
    assert store.root is not None
    path = store.root / f"{key.digest}.json"
    path.write_bytes(b"damaged")
    return path


def test_list_has_one_line_for_each_with_the_free_text_last(store: CertificateStore) -> None:
    result = run("list")
    assert result.exit_code == 0
    headings, code, chat = result.stdout.splitlines()
    assert headings.split() == ["target", "drafter", "epsilon", "state", "threshold", "spans", "slips", "domain"]
    assert code.split() == ["12" * 6, "cd" * 6, "0.01", "closed", "-", "10", "0", "code"]
    assert chat.split() == ["ab" * 6, "cd" * 6, "0.01", "open", "0.99", str(NEEDED), "0", "chat"]
    assert headings.index("domain") == code.index("code") == chat.index("chat")


def test_a_domain_cannot_break_lines_or_speak_to_the_terminal(store: CertificateStore) -> None:
    store.update(replace(KEY, domain="a\nb\x1b[31m" + "long " * 60), Evidence((CLEAN,)))
    result = run("list")
    assert len(result.stdout.splitlines()) == 4
    assert "\x1b" not in result.stdout + run("show").stdout
    assert "a?b?[31mlong long" in result.stdout


def test_json_is_the_whole_of_it(store: CertificateStore) -> None:
    for command in ("list", "show"):
        shown: list[dict[str, Any]] = json.loads(run(command, "--json").stdout)
        assert [one["key"]["domain"] for one in shown] == ["code", "chat"]
        assert shown[1]["key"]["target"] == "ab" * 32
        report = shown[1]["certificate"]
        assert (report["open"], report["threshold"], report["spans"], report["slips"]) == (True, 0.99, NEEDED, 0)
        assert [row["spans"] for row in report["thresholds"]] == [NEEDED] * 3 + [NEEDED + 1] * 3
        assert shown[1]["calibration_spans"] == NEEDED + 1
        assert 0 < shown[1]["calibration_error"] < shown[1]["drafter_error"] < 0.1


def test_show_says_why_and_on_what_evidence(store: CertificateStore) -> None:
    result = run("show", "--domain", "chat")
    assert result.exit_code == 0
    first, *lines = result.stdout.splitlines()
    assert first == f"chat: {store.read(KEY).judge().report().reason}"
    text = "\n".join(lines)
    for part in ("ab" * 32, "cd" * 32, "95%", "opened, closed  1, 0 times", "calibration", "Wilson"):
        assert part in text
    rows = [line.split() for line in lines[-6:]]
    assert [row[0] for row in rows] == ["0.99", "0.98", "0.95", "0.9", "0.8", "0.5"]
    assert [" ".join(row[5:]) for row in rows[:2]] == ["counts", "50 spans of its own missing"]
    assert rows[3][-3:] == ["clean", "spans", "missing"]
    missing = spans_needed(0.01, 0.05, 1) - NEEDED - 1
    assert rows[3][-4] == str(missing)


def test_a_threshold_that_waits_for_a_stricter_one_says_so(store: CertificateStore) -> None:
    lax = AuditedSpan(0.6, 0.85, False, False)
    store.update(CODE, Evidence((lax,) * NEEDED))
    assert "waits for a stricter one" in run("show", "--domain", "code").stdout


def test_show_names_answers_once_there_are_some(store: CertificateStore) -> None:
    assert "none audited yet" in run("show", "--domain", "chat").stdout
    shown = AuditedSpan(0.9, 0.995, True, True)
    store.update(KEY, Evidence((shown,), ended=True))
    store.update(KEY, Evidence((replace(shown, slip=False),) * 5, ended=True))
    assert "2 audited, 1 with a slip; at most" in run("show", "--domain", "chat").stdout


@pytest.mark.parametrize(
    ("options", "domains"),
    [
        ((), ["code", "chat"]),
        (("--domain", "chat"), ["chat"]),
        (("--target", "ab"), ["chat"]),
        (("--target", "1212"), ["code"]),
        (("--drafter", "cd"), ["code", "chat"]),
        (("--epsilon", "0.01", "--domain", "code"), ["code"]),
    ],
)
def test_a_selection_may_give_the_first_digits(
    store: CertificateStore, options: tuple[str, ...], domains: list[str]
) -> None:
    shown = json.loads(run("show", "--json", *options).stdout)
    assert [one["key"]["domain"] for one in shown] == domains


@pytest.mark.parametrize("command", ["show", "reset"])
def test_a_selection_of_nothing_is_an_error(store: CertificateStore, command: str) -> None:
    options = ["--yes"] if command == "reset" else []
    for selection in (["--domain", "cha"], ["--epsilon", "0.5"], ["--target", "b"]):
        assert isinstance(run(command, *selection, *options).exception, MisuseError)


def test_without_evidence_list_says_what_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIMBOOST_CERTIFICATES", str(tmp_path / "none"))
    result = run("list")
    assert (result.exit_code, result.stdout.count("\n")) == (0, 1)
    assert "streaming" in result.stdout
    assert json.loads(run("list", "--json").stdout) == []
    assert not (tmp_path / "none").exists()


def test_reset_drops_what_is_selected_and_nothing_else(store: CertificateStore) -> None:
    assert run("reset", "--domain", "chat", "--yes").stdout == "reset: 1\n"
    assert not store.read(KEY).judge().opened
    assert sum(store.read(KEY).calibration.seen) == NEEDED + 1
    assert store.read(CODE).certificate.rows[0].spans == 10
    assert run("reset", "--all", "--calibration", "--yes").stdout == "reset: 2\n"
    assert store.read(KEY).calibration.seen == store.read(CODE).calibration.seen == ()


@pytest.mark.parametrize(("answer", "kept"), [("n\n", True), ("\n", True), ("", True), ("y\n", False)])
def test_reset_asks_first(store: CertificateStore, answer: str, kept: bool) -> None:
    result = run("reset", "--domain", "chat", given=answer)
    assert store.read(KEY).judge().opened == kept
    assert result.exit_code == int(kept)
    assert "drop the evidence of 1 certificate?" in result.stderr


@pytest.mark.parametrize(
    "options", [(), ("--all", "--domain", "chat"), ("--all", "--damaged"), ("--calibration",)]
)
def test_reset_has_to_be_told_which(store: CertificateStore, options: tuple[str, ...]) -> None:
    result = run("reset", "--yes", *options)
    assert result.exit_code == 2
    assert store.read(KEY).judge().opened


@pytest.mark.parametrize("command", ["list", "show"])
def test_a_damaged_file_is_named_beside_the_others(store: CertificateStore, command: str) -> None:
    path = damage(store)
    result = run(command)
    assert result.exit_code == 1
    assert "chat" in result.stdout
    assert str(path) in result.stderr
    assert "certificate reset --damaged" in result.stderr


@pytest.mark.parametrize(("option", "open_after"), [("--damaged", True), ("--all", False)])
def test_damaged_files_are_removed_by_themselves_or_with_all(
    store: CertificateStore, option: str, open_after: bool
) -> None:
    path = damage(store)
    assert run("reset", option, "--yes").exit_code == 0
    assert not path.exists()
    assert store.read(KEY).judge().opened == open_after
    assert run("reset", "--damaged", "--yes").stdout == "nothing to reset\n"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("list",), 1, "is damaged"),
        (("show", "--domain", "nowhere"), 2, "grimboost: no such certificate"),
        (("reset",), 2, "say which"),
        (("reset", "--all"), 1, "interrupted"),
        (("show", "--domain", "chat"), 1, "is damaged"),
    ],
)
def test_statuses_as_a_shell_gets_them(
    store: CertificateStore, arguments: tuple[str, ...], status: int, said: str
) -> None:
    damage(store)
    command = [sys.executable, "-m", "grimboost", "certificate", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False
    )
    assert done.returncode == status
    assert said in done.stderr
    assert "Traceback" not in done.stderr
