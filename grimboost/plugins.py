"""Plug-ins: drafters, gate rules, instruments and targets that others wrote, by name or by import path.

A name is that of an entry point in one of the `GROUPS`; `package.module:name` is where a plug-in stands, installed
or not. What is found there is the plug-in, or a class or function that makes it when called without arguments. It
is compared with its interface at once, so that a wrong one fails here and not somewhere in a run. To list what is
installed imports nothing of it. Plug-ins are code and can do whatever this process may: load those you trust, and
nothing that a file names. It does not know what plug-ins do.
"""

import inspect
import os
import re
import sys
from collections.abc import Sequence
from functools import partial, reduce
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from msgspec import Struct

from grimboost.errors import MisuseError
from grimboost.plugin_checks import Kind, interface_problems, problems

GROUPS: dict[Kind, str] = {
    "drafter": "grimboost.drafters",
    "gate": "grimboost.gates",
    "instrument": "grimboost.instruments",
    "target": "grimboost.targets",
}

_IDENTIFIER = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_IMPORT_PATH = re.compile(f"({_IDENTIFIER}):({_IDENTIFIER})")


class Installed(Struct, frozen=True):
    """A plug-in that an installed distribution offers. `reference` is its import path."""

    kind: Kind
    name: str
    reference: str
    distribution: str
    version: str

    @property
    def origin(self) -> str:
        """The distribution with its version."""
        return f"{self.distribution} {self.version}".strip()


def builtin(kind: Kind) -> dict[str, str]:
    """Name -> description of what needs no plug-in. These names win over a plug-in's."""
    if kind == "drafter":
        return {"lookup": "a lookup in prompt, output and earlier answers", "none": "no drafter"}
    if kind == "target":
        from grimboost.model_references import aliases

        return aliases()
    return {}


def installed(kind: Kind) -> list[Installed]:
    """Plug-ins of that kind, by name; two distributions may offer the same name."""
    found = [_described(kind, point) for point in entry_points(group=GROUPS[kind])]
    return sorted(set(found), key=lambda one: (one.name, one.distribution, one.reference))


def _described(kind: Kind, point: EntryPoint) -> Installed:
    name, version = (point.dist.name, point.dist.version) if point.dist else ("unknown", "")
    return Installed(kind, point.name, point.value.partition("[")[0].strip(), name, version)


def is_import_path(reference: str) -> bool:
    """Whether it reads like `package.module:name`."""
    return _IMPORT_PATH.fullmatch(reference) is not None


def is_target_plugin(reference: str) -> bool:
    """Whether a target's reference means a plug-in: it is no alias, nothing that exists as a path, and known."""
    if reference in builtin("target"):
        return False
    try:
        if Path(reference).exists():
            return False
    except (OSError, ValueError):
        return False
    return is_import_path(reference) or any(one.name == reference for one in installed("target"))


def look_here() -> None:
    """Let import paths find modules of the current folder, behind everything that is installed."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


# ------------------------------------------------------------ loading


def load_plugin(kind: Kind, reference: str) -> Any:
    """The plug-in that a name or an import path means, made and checked.

    Raises `MisuseError`: unknown, ambiguous, not importable, not to be made, or without what its interface asks.
    """
    path = _place(kind, reference)
    what = f"the {kind} {reference!r}" + ("" if path == reference else f" ({path})")
    made = _made(_imported(path, what), what)
    raise_for(problems(kind, made), what)
    return made


def check_interface(kind: Kind, plugin: object) -> None:
    """Raise `MisuseError` for an object that lacks what its interface asks. It is not tried."""
    raise_for(interface_problems(kind, plugin), f"the {kind} {type(plugin).__name__}")


def raise_for(found: Sequence[str], what: str) -> None:
    """Raise `MisuseError` if there are problems: all of them, in one line."""
    if found:
        raise MisuseError(f"{what} {'; it '.join(found)}")


def _place(kind: Kind, reference: str) -> str:
    """The import path that a reference means."""
    offered = installed(kind)
    named = [one for one in offered if one.name == reference]
    if len({one.reference for one in named}) > 1:
        places = " and ".join(f"{one.reference} ({one.origin})" for one in named)
        raise MisuseError(f"the {kind} {reference!r} is offered twice: {places}. Give the import path of one")
    path = named[0].reference if named else reference
    if is_import_path(path):
        return path
    if named:
        raise MisuseError(f"{named[0].origin} offers {kind} {reference!r} at {path!r}, which is no module:name")
    raise MisuseError(
        f"there is no {kind} {reference!r}; {_known(kind, offered)}. An own one is given as package.module:name"
    )


def _known(kind: Kind, offered: list[Installed]) -> str:
    own = [f"{name} (built in)" for name in builtin(kind)]
    names = own + [f"{one.name} ({one.origin})" for one in offered]
    return f"known are {', '.join(names)}" if names else "none is installed"


def target_names() -> str:
    """Installed targets in words, for an error."""
    return ", ".join(f"{one.name} ({one.origin})" for one in installed("target")) or "none is installed"


def _imported(path: str, what: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        found: Any = import_module(module)
    except (Exception, SystemExit) as error:
        raise MisuseError(f"{what} cannot be loaded: importing {module} fails with {_told(error)}") from error
    try:
        return reduce(getattr, attribute.split("."), found)
    except AttributeError:
        file = getattr(found, "__file__", None)
        place = f" ({os.path.relpath(file)})" if file else ""
        raise MisuseError(f"{what} cannot be loaded: the module {module}{place} has no {attribute}") from None


def _made(found: Any, what: str) -> Any:
    """Itself, or what it makes."""
    if not (inspect.isclass(found) or inspect.isroutine(found) or isinstance(found, partial)):
        return found
    try:
        return found()
    except MisuseError:
        raise
    except (Exception, SystemExit) as error:
        raise MisuseError(f"{what} cannot be made by calling it without arguments: {_told(error)}") from error


def _told(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def load_all(kind: Kind, plugins: Sequence[object | str]) -> list[Any]:
    """Each as it is, or loaded where it is a reference. Raises `MisuseError` for what is none."""
    made = [load_plugin(kind, one) if isinstance(one, str) else one for one in plugins]
    for one, given in zip(made, plugins, strict=True):
        if one is given:
            check_interface(kind, one)
    return made
