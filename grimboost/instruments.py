"""Hooks into a running engine: what each stage and worker did, and when. Nobody pays for what nobody measures.

An instrument is any object that has one or more of the methods of `Instrument`. Where a hook has no listener it
costs one lookup. One that raises is removed and logged; it never breaks a run. All times are seconds of
`time.perf_counter()`. Hooks know nothing of what is done with them.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

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

    def taken(self, run: int, event: ClientEvent, at: float) -> None:
        """On the event loop, when the client takes an event."""


HOOKS = ("generation_started", "generation_ended", "turn", "batch_begins", "batch", "taken")


class Instruments:
    """Those that listen. Each hook is an attribute: empty, or the functions to call with `tell`."""

    def __init__(self, instruments: Iterable[object] = ()) -> None:
        self._all: list[object] = []
        self.generation_started: tuple[Callable[..., object], ...] = ()
        self.generation_ended: tuple[Callable[..., object], ...] = ()
        self.turn: tuple[Callable[..., object], ...] = ()
        self.batch_begins: tuple[Callable[..., object], ...] = ()
        self.batch: tuple[Callable[..., object], ...] = ()
        self.taken: tuple[Callable[..., object], ...] = ()
        for instrument in instruments:
            self.add(instrument)

    def add(self, instrument: object) -> None:
        """Listen from now on. Raises `MisuseError` for what has no hook."""
        if not any(callable(_hook(instrument, name)) for name in HOOKS):
            kind = type(instrument).__name__
            raise MisuseError(f"{kind} is no instrument: it has none of the hooks {', '.join(HOOKS)}")
        self._all.append(instrument)
        self._collect()

    def remove(self, instrument: object) -> None:
        """Listen no more. Nothing happens if it does not."""
        self._all = [one for one in self._all if one is not instrument]
        self._collect()

    def _collect(self) -> None:
        for name in HOOKS:
            hooks = (_hook(one, name) for one in self._all)
            setattr(self, name, tuple(hook for hook in hooks if hook is not None))

    def tell(self, hooks: tuple[Callable[..., object], ...], *what: object) -> None:
        """Call them; one that raises is removed with its instrument."""
        for hook in hooks:
            try:
                hook(*what)
            except Exception as error:
                owner = getattr(hook, "__self__", hook)
                log.warning(
                    "an instrument failed and is removed", instrument=type(owner).__name__, error=repr(error)
                )
                self.remove(owner)


def _hook(instrument: object, name: str) -> Any:
    """Its hook of that name; None if it has none, or only the one that does nothing."""
    hook = getattr(instrument, name, None)
    unused = getattr(hook, "__func__", None) is getattr(Instrument, name)
    return None if unused or not callable(hook) else hook
