"""What the commands that read logs share: opening one, lines on standard output, and how wide they may be.

It knows no message.
"""

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from grimboost.errors import LogError
from grimboost.log import Log


def open_log(path: Path) -> Log:
    """Read a log. Raises a `LogError` that says which file it is."""
    try:
        return Log.open(path)
    except LogError as error:
        raise located(path, error) from error


def located(path: Path, error: LogError) -> LogError:
    """The error with its file."""
    text = str(error)
    return LogError(text if str(path) in text else f"{path}: {text}")


def note_torn(path: Path, log: Log) -> None:
    """Say on standard error that the end is missing."""
    if log.torn_at is not None:
        note(f"{path} is torn at byte {log.torn_at}; its {len(log.entries)} messages before that are used")


def note(text: str) -> None:
    """A line on standard error."""
    click.echo(f"grimboost: {text}", err=True)


def emit(line: str) -> None:
    """A line on standard output, also where that cannot encode all characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(line.encode(encoding, "backslashreplace").decode(encoding))


def emit_lines(lines: Iterable[str]) -> None:
    """Several of them."""
    for line in lines:
        emit(line)


def emit_json(value: Any) -> None:
    """One JSON object on a line of its own."""
    click.echo(msgspec.json.encode(value))


def terminal_width() -> int | None:
    """Columns of the terminal, or as many as COLUMNS says; None where there is neither: lines are whole then."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else None
