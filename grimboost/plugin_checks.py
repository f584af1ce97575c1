"""What a plug-in has to have, compared with the interfaces themselves, and what it lacks in words.

A problem is a phrase that goes on behind the plug-in's name: "has no method begin()". Drafters and gate rules are
also tried once, because most mistakes show in what comes back. It knows neither where plug-ins come from nor what
is done with them.
"""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_type_hints

from grimboost.adapters.drafter import Bounded, Correctable, Drafter, DraftSession, Proposal, Remembering
from grimboost.adapters.target import Target
from grimboost.draft_service import checked_tokens
from grimboost.instruments import HOOKS, Instrument
from grimboost.messages import Span
from grimboost.stages.gate_rule import GateRule

Kind = Literal["drafter", "gate", "instrument", "target"]

KINDS: tuple[Kind, ...] = get_args(Kind)

TRIAL_TEXT = b"one two three, one two"
TRIAL_LIMIT = 8

ALIKE = 0.85
"""From this ratio of `difflib` on, a method's name is taken for a hook's, misspelled."""


def interface_problems(kind: Kind, plugin: object) -> list[str]:
    """What is missing or wrong in its members; nothing of it is called, but for properties."""
    match kind:
        case "drafter":
            return _members(plugin, Drafter) + _part(plugin, Remembering)
        case "gate":
            return _members(plugin, GateRule)
        case "instrument":
            return _hooks(plugin)
        case "target":
            return _target(plugin)


def problems(kind: Kind, plugin: object) -> list[str]:
    """The same, and what a trial shows where the members are all there."""
    found = interface_problems(kind, plugin)
    if not found and kind == "drafter":
        return _try_drafter(plugin)
    if not found and kind == "gate":
        return _try_rule(plugin)
    return found


# ------------------------------------------------------------ members


def _members(plugin: object, interface: type, that: str = "") -> list[str]:
    """`that`: what comes before each phrase, where not the plug-in itself is looked at."""
    found = []
    for name, member in vars(interface).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            found.append(_attribute(plugin, name, get_type_hints(member.fget)["return"]))
        elif inspect.isfunction(member):
            found.append(_method(plugin, name, member))
    return [that + one for one in found if one]


def _attribute(plugin: object, name: str, kind: type) -> str:
    try:
        value = getattr(plugin, name)
    except AttributeError:
        return f"has no attribute {name} ({kind.__name__})"
    except Exception as error:
        return f"raises {error!r} when asked for its {name}"
    if not isinstance(value, kind):
        return f"has a {name} that is no {kind.__name__}: {_short(value)}"
    if isinstance(value, str) and not (value and value.isprintable()):
        return f"has a {name} that is empty or not printable: {_short(value)}"
    return ""


def _method(plugin: object, name: str, wanted: Callable[..., object]) -> str:
    parameters = tuple(inspect.signature(wanted).parameters)[1:]
    call = f"{name}({', '.join(parameters)})"
    method = getattr(plugin, name, None)
    if method is None:
        return f"has no method {call}"
    if not callable(method):
        return f"has no method {call}: its {name} is {_short(method)}"
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        return f"has an async {name}, which nobody awaits; a plain method {call} is wanted"
    try:
        signature = inspect.signature(method)
        signature.bind(*parameters)
    except TypeError:
        count = f"{len(parameters)} argument{'' if len(parameters) == 1 else 's'}"
        return f"has a method {name}{signature} that does not take {count}; it is called as {call}"
    except ValueError:
        pass  # it has no signature to look at
    return ""


def _part(plugin: object, interface: type, that: str = "") -> list[str]:
    """An optional part of an interface: all of it is right, or nothing of it is there."""
    names = [name for name in vars(interface) if not name.startswith("_")]
    return _members(plugin, interface, that) if any(hasattr(plugin, name) for name in names) else []


def _hooks(plugin: object) -> list[str]:
    own = [name for name in HOOKS if getattr(plugin, name, None) is not None]
    found = [_method(plugin, name, getattr(Instrument, name)) for name in own]
    found += [_misspelled(name, own) for name in _public_methods(plugin) if name not in HOOKS]
    if not own and not any(found):
        found.append(f"has none of the hooks {', '.join(HOOKS)}")
    return [one for one in found if one]


def _public_methods(plugin: object) -> list[str]:
    return [
        name for name in dir(type(plugin)) if not name.startswith("_") and callable(getattr(plugin, name, None))
    ]


def _misspelled(name: str, own: list[str]) -> str:
    """A method that looks like a hook which is not there would never be called, in silence."""
    [hook] = get_close_matches(name.removeprefix("on_").lower(), HOOKS, 1, ALIKE) or [""]
    return f"has a method {name}, which is no hook; {hook} is meant, perhaps" if hook and hook not in own else ""


def _target(plugin: object) -> list[str]:
    from grimboost.loading import LoadedTarget

    if isinstance(plugin, LoadedTarget):
        return _members(plugin.target, Target, "holds a target that ")
    return _members(plugin, Target)


# ------------------------------------------------------------ trials


def _try_drafter(drafter: Any) -> list[str]:
    """A session, a text, a proposal: what every generation does first."""
    that = "makes a session that "
    try:
        session = drafter.begin()
    except (Exception, SystemExit) as error:
        return [f"fails in begin(): {error!r}"]
    found = (
        _members(session, DraftSession, that) + _part(session, Correctable, that) + _part(session, Bounded, that)
    )
    if found:
        return found
    try:
        session.extend(TRIAL_TEXT)
        proposal = session.propose(b"", TRIAL_LIMIT)
    except (Exception, SystemExit) as error:
        return [f"{that}fails in a trial with {TRIAL_TEXT!r}: {error!r}"]
    if not isinstance(proposal, Proposal):
        return [f"{that}proposes {_short(proposal)}, which is no Proposal (grimboost.adapters.drafter)"]
    try:
        checked_tokens(proposal, TRIAL_LIMIT)
    except Exception as error:
        return [f"{that}makes a proposal that cannot be used: {error}"]
    return []


def _try_rule(rule: Any) -> list[str]:
    """Twice, with the same arguments."""
    answers = []
    for _ in range(2):
        try:
            answers.append(rule.hold(0, Span(0, b"one", 0.9), 0.9, b""))
        except (Exception, SystemExit) as error:
            return [f"fails in a trial with a span of b'one': {error!r}"]
    if not (answers[0] is None or isinstance(answers[0], str)):
        return [f"answers {_short(answers[0])} in hold; a reason (str) or None is wanted"]
    if answers[0] != answers[1]:
        return ["answers the same question differently; a replay needs the same answers"]
    return []


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
