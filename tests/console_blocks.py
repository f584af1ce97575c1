"""Console sessions in the documents: commands behind `$ ` and what they print, run again and compared.

    python tests/console_blocks.py docs/debugging.md      # write what the commands print now

Commands run in the document's folder. A line that is only `...` stands for any lines. Only commands of `grimboost`
that need no model are run.
"""

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

WIDTH = 110
GAP = "..."
_BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)


def sessions(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a document with the lines that it is said to print."""
    for block in _BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.rstrip("\n").split("\n")
            yield command, lines


def output(command: str, folder: Path) -> list[str]:
    """What the command prints, on standard output and standard error, in lines."""
    from grimboost.command_line import cli

    words = shlex.split(command)
    assert words[0] == "grimboost", command
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(WIDTH)
    try:
        with contextlib.chdir(folder):
            result = CliRunner().invoke(cli, words[1:])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return [line.rstrip() for line in result.output.rstrip("\n").split("\n")]


_TIMES = re.compile(r"replayed in [\d.]+ s \(\d+ x\)")


def fits(said: list[str], printed: list[str]) -> bool:
    """Whether these are the lines, with gaps. How long a replay took is not compared."""
    if not said:
        return not printed
    if said[0] == GAP:
        return any(fits(said[1:], printed[place:]) for place in range(len(printed) + 1))
    same = bool(printed) and _TIMES.sub("", said[0]) == _TIMES.sub("", printed[0])
    return same and fits(said[1:], printed[1:])


def rewritten(text: str, folder: Path) -> str:
    """The document with what its commands print now; where it has gaps, lines are kept by hand."""

    def block(match: re.Match[str]) -> str:
        parts = []
        for part in re.split(r"^\$ ", match[1], flags=re.MULTILINE)[1:]:
            command, *said = part.rstrip("\n").split("\n")
            printed = output(command, folder)
            lines = said if GAP in said and fits(said, printed) else printed
            parts.append("\n".join([f"$ {command}", *lines]) + "\n")
        return "\n".join(parts)

    return _BLOCK.sub(block, text)


def main() -> None:
    """Rewrite the documents named on the command line."""
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(rewritten(path.read_text(), path.parent))


if __name__ == "__main__":
    main()
