"""The commands that read logs: `replay`, `log`, `explain` and `diff`; only their options, the rest is elsewhere.

They need neither model nor weights, and import nothing heavy.
"""

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import click

from grimboost.errors import MisuseError
from grimboost.generation_options import plugin_option

_LOG = click.Path(path_type=Path)


def _json(text: str) -> Callable[[Any], Any]:
    return click.option("--json", "as_json", is_flag=True, help=text)


@click.command("replay")
@click.argument("logs", nargs=-1, required=True, type=_LOG, metavar="LOG...")
@click.option(
    "--gate",
    callback=plugin_option,
    metavar="RULE",
    help="The gate rule that the log was made with, if it names one.",
)
@_json("Print one JSON object for each log.")
def replay_command(logs: tuple[Path, ...], gate: str | None, as_json: bool) -> None:
    """Run the stages again on each LOG, without model, and check that every answer is the same."""
    from grimboost.replay_command import run_replay

    raise SystemExit(run_replay(logs, gate, as_json))


@click.command("log")
@click.argument("log", type=_LOG)
@click.option("--stage", "stages", multiple=True, metavar="NAME", help="Only this stage; may be given again.")
@click.option("--epoch", type=click.IntRange(min=0), metavar="N", help="Only this epoch.")
@click.option("--kind", "kinds", multiple=True, metavar="NAME", help="Only such messages; may be given again.")
@click.option("--bytes", "extent", metavar="A:B", help="Only what touches these bytes of the output.")
@click.option("--since", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Only from then on.")
@click.option("--until", type=click.FloatRange(min=0), default=inf, metavar="SECONDS", help="Only until then.")
@click.option("--cascades", is_flag=True, help="Only what led to each mismatch, and what followed.")
@click.option("--follow", is_flag=True, help="Go on while the log is written, to the generation's end.")
@_json("Print JSON objects, one a line: the header, then the entries, with bytes as base64.")
def log_command(**options: Any) -> None:
    """Show what happened: a line for each message that a stage received, with what it answered."""
    from grimboost.log_command import LogOptions, run_log
    from grimboost.timeline import Filter

    start, end = _extent(options.pop("extent"))
    names = ("stages", "epoch", "kinds", "since", "until")
    selection = Filter(start=start, end=end, **{name: options.pop(name) for name in names})
    raise SystemExit(run_log(LogOptions(path=options.pop("log"), selection=selection, **options)))


@click.command("explain")
@click.argument("log", type=_LOG)
@click.option("--byte", type=int, metavar="N", help="Offset of an output byte, 0 being the first.")
@click.option("--text", metavar="TEXT", help="A piece of the output, or of what was shown and taken back.")
@click.option(
    "--occurrence", type=int, default=1, show_default=True, metavar="K", help="Which, where it is often."
)
@_json("Print one JSON object.")
def explain_command(**options: Any) -> None:
    """Show why an output byte is what it is: draft, gate, pass, verdict, commit and reveal, with times."""
    from grimboost.explain_command import ExplainOptions, run_explain

    raise SystemExit(run_explain(ExplainOptions(path=options.pop("log"), **options)))


@click.command("diff")
@click.argument("one", type=_LOG, metavar="A")
@click.argument("other", type=_LOG, metavar="B")
@_json("Print one JSON object.")
def diff_command(one: Path, other: Path, as_json: bool) -> None:
    """Show where two logs part: configuration, the first message that differs, and what followed.

    Exit status 0 if both did the same, 1 if not.
    """
    from grimboost.diff_command import run_diff

    raise SystemExit(run_diff(one, other, as_json))


LOG_COMMANDS = (replay_command, log_command, explain_command, diff_command)


def _extent(text: str | None) -> tuple[float, float]:
    """`A:B`, each of which may be missing; A alone is that one byte."""
    if text is None:
        return 0, inf
    first, colon, second = text.partition(":")
    try:
        start = int(first) if first else 0
        end: float = int(second) if second else inf
    except ValueError:
        start, end = -1, 0
    if not colon:
        end = start + 1
    if start < 0 or end <= start or text == ":":
        raise MisuseError(f"--bytes {text}: give a range of output bytes, such as 14:25, 14: or 14")
    return start, end
