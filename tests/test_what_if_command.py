"""`grimboost what-if` as a person or a script meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from grimboost.errors import MisuseError
from grimboost.log import Log
from grimboost.log_writer import write_log
from grimboost.what_if_options import combinations, values_of
from grimboost.what_if_plot import check_plot

LOGS = Path(__file__).parent / "logs"
SLIPS = str(LOGS / "slips.grimlog")


def run(*arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "grimboost", "what-if", *arguments]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def rows(out: str) -> dict[str, list[str]]:
    """Lines of a table by their first column."""
    lines = [line.split("  ") for line in out.splitlines()]
    return {cells[0]: [cell.strip() for cell in cells[1:] if cell.strip()] for cells in lines if len(cells) > 1}


def test_without_options_what_happened_is_run_again() -> None:
    status, out, err = run(SLIPS)
    assert (status, err) == (0, "")
    assert "as recorded: every stage gives every answer that it gave" in out
    table = rows(out)
    assert table["output bytes"] == ["73", "73"]
    assert all(one == other for one, other in (table[name] for name in ("coverage", "slips", "target passes")))


def test_one_value_gives_two_columns_and_says_how_far_it_goes() -> None:
    status, out, err = run(SLIPS, "--threshold", "0.999", "--doubt", "8")
    assert (status, err) == (0, "")
    table = rows(out)
    assert table["threshold"] == ["0.5", "0.999"]
    assert table["doubt_bytes"] == ["32", "8"]
    assert "recorded output bytes (" in out
    assert "the log tells no more at byte" in out
    assert "spans that the target judged" in out


def test_several_values_give_a_line_each_and_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, begin in (("a.png", b"\x89PNG"), ("b.svg", b"<?xml")):
        picture = tmp_path / name
        status, out, err = run(SLIPS, "--threshold", "0.5:0.9:0.2,0.999", "--plot", str(picture))
        assert (status, err) == (0, "")
        assert [line.split()[0] for line in out.splitlines()[1:5]] == ["0.5", "0.7", "0.9", "0.999"]
        assert picture.read_bytes().startswith(begin)


def test_json_holds_every_answer_and_the_facts() -> None:
    status, out, err = run(SLIPS, "--threshold", "0.5", "--threshold", "0.999", "--max-repairs", "0,1", "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert [one["changes"] for one in report["answers"]] == [
        {"threshold": threshold, "max_repairs": repairs} for threshold in (0.5, 0.999) for repairs in (0, 1)
    ]
    answer = report["answers"][-1]
    assert set(answer) >= {"answerable_bytes", "certain_bytes", "share", "end", "recorded", "what_if", "reused"}
    assert answer["what_if"]["released_tokens"] == 0
    assert answer["what_if"]["slip_rate"] is None
    assert answer["recorded"]["target_passes"] > 0
    assert [one["threshold"] for one in report["judged_spans"]] == [0.5, 0.999]


def test_a_torn_log_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    torn = tmp_path / "torn.grimlog"
    torn.write_bytes(Path(SLIPS).read_bytes()[:-700])
    status, out, err = run(str(torn))
    assert status == 0
    assert "is torn at byte" in err
    assert "the log ends here" in out


def rewritten(path: Path, **changes: object) -> str:
    log = Log.open(SLIPS)
    header = replace(log.header, **changes)
    write_log(path, header, [(one.seconds, one.stage, one.message, one.answers) for one in log])
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 2, "LOG"),
        (["nowhere.grimlog"], 1, "nowhere.grimlog"),
        ([SLIPS, "--threshold", "1.5"], 2, "threshold is 1.5"),
        ([SLIPS, "--threshold", "high"], 2, "--threshold high"),
        ([SLIPS, "--threshold", "0.9:0.5:0.1"], 2, "first:last:step"),
        ([SLIPS, "--threshold", "0:1:0.001"], 2, "at most 200"),
        ([SLIPS, "--anchor-bytes", "8.5"], 2, "whole numbers"),
        ([SLIPS, "--anchor-bytes", "0"], 2, "anchor_bytes is 0"),
        ([SLIPS, "--plot", "picture.pdf"], 2, ".png or .svg"),
        ([SLIPS, "--plot", "no/such/folder/a.png"], 2, "folder"),
        ([SLIPS, "--gate", "no.such:rule"], 2, "no.such"),
        ([str(LOGS / "lookup.grimlog"), "--threshold", "0.5"], 2, "strict mode"),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], status: int, words: str) -> None:
    got, out, err = run(*arguments)
    assert (got, out) == (status, "")
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("changes", "words"), [({"redacted": True}, "redacted"), ({"gate_rule": "mine"}, "mine")])
def test_logs_that_cannot_be_run_again_are_refused(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    path = rewritten(tmp_path / "other.grimlog", **changes)
    status, out, err = run(path, "--threshold", "0.9")
    assert (status, out) == (1, "")
    assert words in err and "other.grimlog" in err


def test_another_epsilon_is_answered_with_the_facts_alone() -> None:
    status, out, _ = run(str(LOGS / "certified.grimlog"), "--epsilon", "0.123")
    assert status == 0
    assert "not the evidence for it" in out
    assert "facts about the" in out


def test_values_are_exact_and_each_is_tried_once() -> None:
    assert values_of("threshold", ("0.1:0.4:0.1",)) == (0.1, 0.2, 0.3, 0.4)
    assert values_of("threshold", ("0.5,0.7", "0.5")) == (0.5, 0.7)
    assert values_of("anchor_bytes", ("64:512:64",)) == tuple(range(64, 513, 64))
    assert all(isinstance(one, int) for one in values_of("anchor_bytes", ("1e2",)))
    assert combinations({"threshold": (), "epsilon": ()}) == [{}]
    with pytest.raises(MisuseError, match="combinations"):
        combinations({"threshold": tuple(range(20)), "anchor_bytes": tuple(range(20))})


def test_a_picture_without_matplotlib_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MisuseError, match=r"grimboost\[plot\]"):
        check_plot(tmp_path / "a.png")


def test_the_command_imports_nothing_heavy() -> None:
    code = (
        "import sys, grimboost.what_if_command, grimboost.what_if_options;"
        "print([one for one in ('torch', 'numba', 'transformers', 'matplotlib') if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert done.stdout.strip() == b"[]"
