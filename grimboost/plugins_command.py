"""`grimboost plugins`: what can be named where a drafter, a gate rule, an instrument or a target is asked for.

Listing reads the metadata of installed distributions and imports nothing of them; `--check` loads each one and
says what is wrong. The exit status is then 1 if anything is. It does not know what plug-ins do.
"""

import click
import msgspec
from msgspec import Struct

from grimboost.errors import GrimboostError
from grimboost.plugin_checks import KINDS, Kind
from grimboost.plugins import GROUPS, Installed, builtin, installed, load_plugin

OPTIONS = {"drafter": "--drafter", "gate": "--gate", "instrument": "--instrument", "target": "--target"}
BUILT_IN = "built in"


class Listed(Struct, frozen=True):
    """One line of the list. `reference`: its import path, None for what is built in, which has a description.

    `problem`: what is wrong with it, None if nothing is known; `checked`: whether anybody has looked.
    """

    kind: Kind
    name: str
    reference: str | None
    distribution: str
    version: str
    description: str = ""
    checked: bool = False
    problem: str | None = None


def show_plugins(check: bool, as_json: bool) -> int:
    """Print the list. Returns the exit status."""
    listed = [one for kind in KINDS for one in _listed(kind, check)]
    if as_json:
        click.echo(msgspec.json.encode(listed))
    else:
        for kind in KINDS:
            _show(kind, [one for one in listed if one.kind == kind])
    return int(check and any(one.problem for one in listed))


def _listed(kind: Kind, check: bool) -> list[Listed]:
    own = builtin(kind)
    found = [Listed(kind, name, None, "grimboost", "", text) for name, text in own.items()]
    offered = installed(kind)
    for one in offered:
        problem = f"hidden by the {kind} {one.name!r} that is built in" if one.name in own else None
        if check and not problem:
            problem = _problem(one)
        entry = Listed(kind, one.name, one.reference, one.distribution, one.version, "", check, problem)
        found.append(entry)
    return found


def _problem(one: Installed) -> str | None:
    """Why the name does not load. Two that share a name are both refused."""
    try:
        load_plugin(one.kind, one.name)
    except GrimboostError as error:
        return str(error)
    return None


def _show(kind: Kind, listed: list[Listed]) -> None:
    click.echo(f"{kind}s ({OPTIONS[kind]}, entry points {GROUPS[kind]})")
    rows = [_row(one) for one in listed]
    widths = [max((len(row[place]) for row in rows), default=0) for place in range(2)]
    for row, one in zip(rows, listed, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        click.echo(f"  {'  '.join((*cells, row[2]))}".rstrip())
        if one.problem:
            click.echo(f"    {one.problem}")
    if not rows:
        click.echo("  none installed")


def _row(one: Listed) -> tuple[str, str, str]:
    if one.reference is None:
        return one.name, BUILT_IN, one.description
    state = "  ok" if one.checked and not one.problem else ""
    return one.name, f"{one.distribution} {one.version}", f"{one.reference}{state}"
