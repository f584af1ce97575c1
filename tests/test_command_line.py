"""The command, as a person or a pipe meets it: in a process of its own, over a tiny model on disk."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_models import byte_level_json, tiny_llama

from grimboost.log import Log
from grimboost.replaying import replay

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model that never stops by itself, in transformers' own files."""
    directory = tmp_path_factory.mktemp("model")
    tiny_llama(rows=512, context=2048).save_pretrained(directory)
    (directory / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return directory


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    own = {
        "GRIMBOOST_CACHE": str(tmp_path_factory.mktemp("cache")),
        "GRIMBOOST_CERTIFICATES": str(tmp_path_factory.mktemp("certificates")),
    }
    return {**os.environ, **own, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def start(environment: dict[str, str], *arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "grimboost", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, **options)


def run(environment: dict[str, str], *arguments: str, given: bytes = b"") -> tuple[int, bytes, str]:
    process = start(environment, *arguments)
    out, err = process.communicate(given, timeout=60)
    return process.returncode, out, err.decode()


def test_json_holds_what_the_readme_promises_and_stdout_alone_holds_the_same_bytes(
    model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    record = tmp_path / "run.grimlog"
    common = ("generate", "--target", str(model), "--max-new-tokens", "12", "--ignore-eos")
    status, out, err = run(environment, *common, "Some words.", "--json", "--record", str(record))
    assert status == 0, err
    report = json.loads(out)
    assert out.count(b"\n") == 1
    assert set(report) >= {"text", "token_ids", "finish_reason", "config", "stats"}
    assert set(report["stats"]) >= {
        "prompt_tokens",
        "new_tokens",
        "new_bytes",
        "prefill_seconds",
        "decode_seconds",
        "tokens_per_second",
        "target_passes",
        "drafted_bytes",
        "accepted_bytes",
        "mean_accepted_tokens",
        "ties_rechecked",
    }
    assert report["finish_reason"] == "length"
    assert len(report["token_ids"]) == report["stats"]["new_tokens"] == 12
    assert report["config"]["parameters"]["max_new_tokens"] == 12
    assert replay(Log.open(record)) is None

    status, plain, err = run(environment, *common, "--prompt-file", "-", "--drafter", "none", given=b"Some words.")
    assert status == 0, err
    assert plain.decode(errors="replace") == report["text"]
    assert len(plain) == report["stats"]["new_bytes"]
    assert "12 tokens" in err
    assert err.count("\n") == 1


def test_a_datastore_serves_the_next_run_also_when_it_was_damaged(
    model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "past"
    command = (
        "generate",
        "Some words.",
        "--target",
        str(model),
        "--max-new-tokens",
        "40",
        "--ignore-eos",
        "--json",
    )
    texts, passes, warned = [], [], []
    for damage in (b"", b"torn", b""):
        if damage:
            path.write_bytes(path.read_bytes() + damage)
        status, out, err = run(environment, *command, "--datastore", str(path))
        assert status == 0, err
        report = json.loads(out)
        texts.append(report["text"])
        passes.append(report["stats"]["target_passes"])
        warned.append("datastore is damaged" in err)
    assert texts == texts[:1] * 3
    assert passes[1] < passes[0] > passes[2]
    assert warned == [False, True, False]

    path.write_text("dear diary")
    status, out, err = run(environment, *command, "--datastore", str(path))
    assert (status, out) == (2, b"")
    assert "past is no datastore of this version; name another file" in err
    assert path.read_text() == "dear diary"


STREAMING = ("--mode", "streaming", "--release", "always", "--threshold", "0", "--chat-template", "none")
REPEATING = "one two three four one two three four one two"


def test_streaming_reports_what_was_shown_early_what_slipped_and_why_it_could(
    model: Path, environment: dict[str, str]
) -> None:
    # the tiny model is so fast that drafts hardly pay: they are asked for now and then
    common = ("generate", REPEATING, "--target", str(model), "--max-new-tokens", "200", "--ignore-eos", *STREAMING)
    status, out, err = run(environment, *common, "--json")
    assert status == 0, err
    report = json.loads(out)
    stats = report["stats"]
    assert set(stats) >= {
        "released_tokens",
        "released_bytes",
        "coverage",
        "slip_tokens",
        "slip_bytes",
        "slip_positions",
        "audited_tokens",
        "audit_lag_bytes",
        "gap_seconds",
        "time_to_first_byte_seconds",
        "retracted_bytes",
        "doubt_tokens",
        "takeover_tokens",
        "certificate",
    }
    assert stats["released_tokens"] == stats["audited_tokens"] > 0
    assert len(stats["slip_positions"]) == stats["slip_tokens"]
    for name in ("audit_lag_bytes", "gap_seconds"):
        assert set(stats[name]) >= {"p50", "p95", "max"}
    assert stats["certificate"]["reason"].startswith("closed: ")
    assert f"{stats['released_tokens']} tokens shown unchecked" in err
    assert "without a certificate, for an experiment" in err
    assert stats["release_reason"] == "without a certificate, for an experiment"

    status, listed, err = run(environment, "certificate", "list")
    assert status == 0, err
    assert b"lookup" in listed and b"closed" in listed


def test_where_slips_are_taken_back_a_pipe_gets_the_bytes_of_strict_mode(
    model: Path, environment: dict[str, str]
) -> None:
    common = ("generate", REPEATING, "--target", str(model), "--max-new-tokens", "40", "--ignore-eos")
    status, strict, err = run(environment, *common, "--chat-template", "none")
    assert status == 0, err
    status, streamed, err = run(environment, *common, *STREAMING, "--on-slip", "retract")
    assert status == 0, err
    assert streamed == strict
    assert "tokens shown unchecked" in err


def test_certified_by_default_and_closed_until_there_is_evidence(model: Path, environment: dict[str, str]) -> None:
    common = ("generate", REPEATING, "--target", str(model), "--max-new-tokens", "8", "--ignore-eos")
    status, _, err = run(environment, *common, "--mode", "streaming", "--domain", "new", "--quiet")
    assert (status, err) == (0, "")
    status, out, err = run(environment, "certificate", "show", "--domain", "new", "--json")
    assert status == 0, err
    assert b'"closed: ' in out


def test_quiet_says_nothing_on_stderr(model: Path, environment: dict[str, str]) -> None:
    status, out, err = run(
        environment, "generate", "x", "--target", str(model), "--max-new-tokens", "2", "--quiet"
    )
    assert (status, err) == (0, "")
    assert out


def test_a_reader_that_leaves_early_ends_the_command_cleanly(model: Path, environment: dict[str, str]) -> None:
    process = start(
        environment, "generate", "x", "--target", str(model), "--max-new-tokens", "500", "--ignore-eos"
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(3)
    process.stdout.close()
    assert process.wait(60) == 0
    err = process.stderr.read().decode()
    assert "Traceback" not in err
    assert "Broken pipe" not in err
    process.stderr.close()
    assert process.stdin is not None
    process.stdin.close()


def test_ctrl_c_ends_with_what_was_generated(model: Path, environment: dict[str, str]) -> None:
    process = start(
        environment, "generate", "x", "--target", str(model), "--max-new-tokens", "900", "--ignore-eos"
    )
    assert process.stdout is not None
    first = process.stdout.read(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "cancelled" in err.decode()
    assert f"{len(first) + len(out)} bytes" in err.decode()
    assert "Traceback" not in err.decode()


def test_ctrl_c_while_loading_is_one_line(environment: dict[str, str], model: Path) -> None:
    process = start(environment, "generate", "x", "--target", str(model))
    time.sleep(0.6)  # python and click are up, torch is being imported
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out == b""
    assert process.returncode in {1, -signal.SIGINT}
    assert "Exception ignored" not in err.decode()


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["generate"], 2, "PROMPT"),
        (["generate", "x", "--prompt-file", "y"], 2, "only one"),
        (["generate", "--prompt-file", "nowhere.txt"], 2, "nowhere.txt"),
        (["generate", "x", "--precision", "fp64"], 2, "fp64"),
        (["generate", "x", "--no-such-option"], 2, "no-such-option"),
        (["generate", "x", "--temperature", "nan"], 2, "temperature"),
        (["generate", "x", "--top-p", "0"], 2, "top_p"),
        (["generate", "x", "--stop", ""], 2, "empty stop string"),
        (["generate", "x", "--max-new-tokens", "-1"], 2, "-1"),
        (["generate", "x", "--max-new-tokens", "99999999999999999999999"], 2, "max_new_tokens"),
        (["generate", "x", "--stop", "\udcff"], 2, "surrogate"),
        (["generate", "x", "--record", "no/such/folder/run.grimlog"], 2, "folder"),
        (["generate", "x", "--target", "no-such-model"], 2, "no-such-model"),
        (["generate", "x", "--release", "always"], 2, "release has no meaning in mode 'strict'"),
        (["generate", "x", "--mode", "streaming", "--threshold", "2"], 2, "threshold is 2.0"),
        (["generate", "x", "--chat-template", "none", "--system", "y"], 2, "system"),
        (["nothing"], 2, "nothing"),
    ],
)
def test_wrong_use_is_status_2_and_says_what_is_wrong(
    environment: dict[str, str], arguments: list[str], status: int, words: str
) -> None:
    got, out, err = run(environment, *arguments)
    assert got == status
    assert out == b""
    assert words in err
    assert "Traceback" not in err


def test_a_prompt_that_is_no_text_is_refused(environment: dict[str, str]) -> None:
    status, _, err = run(environment, "generate", "--prompt-file", "-", given=b"a\xff")
    assert status == 2
    assert "UTF-8" in err


def test_without_a_template_the_error_says_which_option_helps(
    model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in model.iterdir():
        if file.name != "tokenizer_config.json":
            (bare / file.name).symlink_to(file)
    status, _, err = run(environment, "generate", "x", "--target", str(bare))
    assert status == 2
    assert "--chat-template none" in err


def test_a_tokenizer_of_another_model_is_refused(environment: dict[str, str], model: Path, tmp_path: Path) -> None:
    tiny_llama(rows=100).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    status, _, err = run(environment, "generate", "x", "--target", str(tmp_path))
    assert status == 2
    assert "do not belong together" in err


def test_models_lists_aliases_and_the_cache(environment: dict[str, str]) -> None:
    status, out, err = run(environment, "models")
    assert (status, err) == (0, "")
    assert b"smollm2-135m" in out
    assert environment["GRIMBOOST_CACHE"].encode() in out


def test_help_lists_every_option(environment: dict[str, str]) -> None:
    status, out, _ = run(environment, "generate", "--help")
    assert status == 0
    for option in (
        "--prompt-file",
        "--target",
        "--precision",
        "--drafter",
        "--datastore",
        "--stop",
        "--seed",
        "--record",
        "--json",
    ):
        assert option in out.decode()
