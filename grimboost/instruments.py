"""Hooks into a running engine: what each stage and worker did, and when. Nobody pays for what nobody measures.

An instrument is any object that has one or more of the methods of `Instrument`, plain functions that return
soon: the event loop or a model's thread waits for them. Where a hook has no listener it costs one lookup. One
that raises is removed and logged; it never breaks a run. All times are seconds of `time.perf_counter()`. Hooks
know nothing of what is done with them.
"""

import inspect
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from grimboost.diagnostics import get_logger
from grimboost.errors import MisuseError
from grimboost.messages import ClientEvent, Message

if TYPE_CHECKING:
    from grimboost.generation import Generation

log = get_logger(__name__)


class Turn(Struct, frozen=True):
    """One message of one stage, from waiting for it to having sent the answers.

    The stage waited for a message from `idle` to `received`, decided until `decided`, and sent until `sent`; of
    that, `blocked` seconds were spent waiting for room. The message had lain in the mailbox for `queued` seconds,
    and left `depth` others there.
    """

    run: int
    stage: str
    message: Message
    answers: tuple[Message, ...]
    idle: float
    received: float
    decided: float
    sent: float
    blocked: float
    queued: float
    depth: int


class Work(Struct, frozen=True):
    """One request of a batch: whose, what was asked, what came back (None: no answer), since when it waited."""

    run: int
    request: Any
    answer: Message | None
    submitted: float


class Batch(Struct, frozen=True):
    """What a worker's thread did in one go: it waited for requests from `idle` to `begin`, and worked to `end`."""

    worker: str
    work: tuple[Work, ...]
    idle: float
    begin: float
    end: float


class Instrument:
    """All hooks, doing nothing. Inherit from it or not: an instrument needs only the hooks that it wants."""

    def generation_started(self, generation: "Generation") -> None:
        """On the event loop, when a generation begins to run."""

    def generation_ended(self, generation: "Generation") -> None:
        """On the event loop, when it is over, however it ended; its `result` is complete."""

    def turn(self, turn: Turn) -> None:
        """On the event loop, after each message of each stage."""

    def batch_begins(self, worker: str, requests: tuple[Any, ...]) -> None:
        """In the worker's thread, before a batch."""

    def batch(self, batch: Batch) -> None:
        """In the worker's thread, after a batch."""

    def taken(self, run: int, event: ClientEvent | None, asked: float, at: float) -> None:
        """On the event loop, when the client takes an event, which it asked for at `asked`; None: no more come."""


HOOKS = ("generation_started", "generation_ended", "turn", "batch_begins", "batch", "taken")


class Hook(NamedTuple):
    """A function to call, and the instrument that it belongs to."""

    owner: object
    call: Callable[..., object]


class Instruments:
    """Those that listen. Each hook is an attribute: empty, or what to call with `tell`.

    They can be added and removed in any thread, also while the hooks are called; a call that is under way may
    still reach one that was removed.
    """

    def __init__(self, instruments: Iterable[object] = ()) -> None:
        self._all: list[object] = []
        self._changing = threading.Lock()
        self.generation_started: tuple[Hook, ...] = ()
        self.generation_ended: tuple[Hook, ...] = ()
        self.turn: tuple[Hook, ...] = ()
        self.batch_begins: tuple[Hook, ...] = ()
        self.batch: tuple[Hook, ...] = ()
        self.taken: tuple[Hook, ...] = ()
        for instrument in instruments:
            self.add(instrument)

    def add(self, instrument: object) -> None:
        """Listen from now on. Raises `MisuseError` for what has no hook, or one that would have to be awaited."""
        kind = type(instrument).__name__
        hooks = {name: _hook(instrument, name) for name in HOOKS}
        if not any(hooks.values()):
            raise MisuseError(f"{kind} is no instrument: it has none of the hooks {', '.join(HOOKS)}")
        for name, hook in hooks.items():
            if inspect.iscoroutinefunction(hook):
                raise MisuseError(f"{kind}.{name} is a coroutine function; nobody awaits a hook")
        with self._changing:
            self._collect([*self._all, instrument])

    def remove(self, instrument: object) -> None:
        """Listen no more. Nothing happens if it does not."""
        with self._changing:
            self._collect([one for one in self._all if one is not instrument])

    def _collect(self, instruments: list[object]) -> None:
        self._all = instruments
        for name in HOOKS:
            hooks = ((one, _hook(one, name)) for one in instruments)
            setattr(self, name, tuple(Hook(one, hook) for one, hook in hooks if hook is not None))

    def tell(self, hooks: tuple[Hook, ...], *what: object) -> None:
        """Call them; one that raises is removed with its instrument."""
        for owner, call in hooks:
            try:
                call(*what)
            except KeyboardInterrupt:  # somebody's Ctrl-C, which only happened to come here
                raise
            except BaseException as error:  # also SystemExit, which would end a worker's thread and hang who waits
                kind, hook = type(owner).__name__, getattr(call, "__name__", "hook")
                log.warning("an instrument failed and is removed", instrument=f"{kind}.{hook}", error=repr(error))
                self.remove(owner)


def _hook(instrument: object, name: str) -> Any:
    """Its hook of that name; None if it has none, or only the one that does nothing."""
    hook = getattr(instrument, name, None)
    unused = getattr(hook, "__func__", None) is getattr(Instrument, name)
    return None if unused or not callable(hook) else hook
