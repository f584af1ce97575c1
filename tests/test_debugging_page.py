"""docs/debugging.md: what its commands are said to print is what they print, on the logs kept beside it."""

from pathlib import Path

import pytest
from console_blocks import fits, output, sessions

import grimboost

DOCS = Path(__file__).parent.parent / "docs"
SESSIONS = list(sessions((DOCS / "debugging.md").read_text()))


def test_the_page_has_the_whole_example() -> None:
    assert {command.split()[1] for command, _ in SESSIONS} == {"replay", "log", "explain", "what-if", "diff"}


@pytest.mark.parametrize(("command", "said"), SESSIONS, ids=[command for command, _ in SESSIONS])
def test_a_command_prints_what_the_page_says(command: str, said: list[str]) -> None:
    printed = output(command, DOCS)
    assert fits(said, printed), "\n".join(printed)


def test_a_page_that_says_otherwise_is_noticed() -> None:
    command, said = SESSIONS[0]
    assert not fits([*said, "and more"], output(command, DOCS))
    assert not fits([*said[:-1], "something else"], output(command, DOCS))


@pytest.mark.parametrize("name", ["harbour", "harbour-strict"])
def test_the_logs_of_the_page_replay(name: str) -> None:
    assert grimboost.replay(DOCS / f"{name}.grimlog") is None
