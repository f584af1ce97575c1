"""Options of `grimboost what-if`, and the values that they stand for: one, some, or a range of them.

It knows click and names, and no log.
"""

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from itertools import product
from pathlib import Path
from typing import Any

import click

from grimboost.errors import MisuseError
from grimboost.generation_options import plugin_option

MOST_VALUES = 200
"""Configurations of one command."""

WHOLE = {
    "anchor_bytes": "Everything shown is verified at least every N bytes.",
    "max_unverified_bytes": "At most N bytes are shown and not yet checked.",
    "max_unverified_tokens": "The same in tokens.",
    "doubt_bytes": "After a slip nothing is shown unchecked for N bytes.",
    "max_repairs": "After more failed repairs the target goes on by itself for a while.",
    "takeover_tokens": "For so many tokens.",
}
"""Names in `Changes` of whole numbers, and their help."""

PARTS = {
    "threshold": "Least calibrated confidence of what is shown unchecked.",
    "epsilon": "The certificate's slip rate. A log can tell of the recorded one only.",
}
"""The same of other numbers."""


def values_of(name: str, texts: tuple[str, ...]) -> tuple[float, ...]:
    """The numbers in `0.5`, `0.5,0.7` or `0.5:0.95:0.05`, both ends included. Raises `MisuseError`."""
    found: list[Decimal] = []
    for text in texts:
        for part in text.split(","):
            found += _range(name, text, [_number(name, text, one) for one in part.split(":")])
    if name in WHOLE and any(one != one.to_integral_value() for one in found):
        raise MisuseError(f"{_option(name)} {','.join(texts)}: only whole numbers")
    kind: Callable[[Decimal], float] = int if name in WHOLE else float
    return tuple(dict.fromkeys(kind(one) for one in found))


def _number(name: str, text: str, part: str) -> Decimal:
    try:
        number = Decimal(part.strip())
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite() or abs(number) >= 1 << 31:
        raise MisuseError(
            f"{_option(name)} {text}: give a number, some with commas between, or first:last:step"
        ) from None
    return number


def _range(name: str, text: str, ends: list[Decimal]) -> list[Decimal]:
    if len(ends) == 1:
        return ends
    if len(ends) != 3 or ends[2] <= 0 or ends[1] < ends[0]:
        raise MisuseError(f"{_option(name)} {text}: a range is first:last:step, rising, such as 0.5:0.95:0.05")
    first, last, step = ends
    count = int((last - first) / step) + 1
    if count > MOST_VALUES:
        raise MisuseError(f"{_option(name)} {text}: {count} values; at most {MOST_VALUES} are tried at once")
    return [first + step * place for place in range(count)]


def combinations(given: dict[str, tuple[float, ...]]) -> list[dict[str, float]]:
    """Every combination of the given values, the first name varying slowest. Raises `MisuseError` for too many."""
    names = [name for name, values in given.items() if values]
    found = [dict(zip(names, values, strict=True)) for values in product(*(given[name] for name in names))]
    if len(found) > MOST_VALUES:
        raise MisuseError(f"{len(found)} combinations of values; at most {MOST_VALUES} are tried at once")
    return found


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, text in reversed([*PARTS.items(), *WHOLE.items()]):
        names = [_option(name), "--doubt"] if name == "doubt_bytes" else [_option(name)]
        metavar = "N" if name in WHOLE else "P"
        command = click.option(*names, name, multiple=True, metavar=metavar, help=text)(command)
    return command


@click.command("what-if")
@click.argument("log", type=click.Path(path_type=Path))
@_options
@click.option(
    "--gate",
    callback=plugin_option,
    metavar="RULE",
    help="The gate rule that the log was made with, if it names one.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw coverage against slips, as .png or .svg (needs the extra 'plot').",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def what_if_command(log: Path, gate: str | None, plot: Path | None, as_json: bool, **given: Any) -> None:
    """Show what another gate or cascade would have made of the generation in LOG, as far as LOG can tell.

    An option may have several values: given again, with commas (0.5,0.7), or as a range (0.5:0.95:0.05).
    Without any, what happened is run again.
    """
    from grimboost.what_if_command import WhatIfOptions, run_what_if

    values = {name: values_of(name, texts) for name, texts in given.items()}
    raise SystemExit(run_what_if(WhatIfOptions(log, tuple(combinations(values)), gate, plot, as_json)))
