"""The drafter interface: anything that proposes bytes. It knows no target, no token of it, no epoch.

A drafter makes one session per generation. A session is used from one thread, in this order and over again:
`extend` with what became final, then `propose`. Committed bytes only grow; a proposal that was not taken up
leaves no trace other than what the session itself learned from it.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from grimboost.messages import DraftToken


class Proposal(Struct, frozen=True):
    """Proposed bytes and the statistics of the drafter's own tokens, whose lengths add up to them.

    `whole`: the proposal ends where the drafter wanted it to end, not at the limit, so its last word is whole.
    """

    data: bytes = b""
    tokens: tuple[DraftToken, ...] = ()
    whole: bool = False


class DraftSession(Protocol):
    """One generation's drafter."""

    def extend(self, committed: bytes) -> None:
        """These bytes follow what was committed before (first call: the prompt)."""
        ...

    def propose(self, ahead: bytes, limit: int) -> Proposal:
        """Continue the committed bytes followed by `ahead`, by at most `limit` bytes; empty to abstain."""
        ...


@runtime_checkable
class Correctable(Protocol):
    """A session that wants to know where the target disagreed, although the bytes stand: they were shown."""

    def slipped(self, at: int) -> None:
        """Of the bytes that `extend` brings next, the target would have chosen another one at offset `at`."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """A session that wants to know where tokens without bytes stand in the text: ends of turns and the like."""

    def breaks(self, offsets: Sequence[int]) -> None:
        """In the bytes that `extend` brings next, such tokens stand before these offsets."""
        ...


class Drafter(Protocol):
    """Makes sessions. A drafter that raises is dropped for that generation, which goes on without it."""

    @property
    def name(self) -> str: ...

    def begin(self) -> DraftSession:
        """A session without any committed byte."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A drafter that also learns from what generations came to. Called in the thread of its sessions."""

    def remember(self, prompt: bytes, output: bytes) -> None:
        """A generation has ended, or was cancelled, with this output; its session is not used any more."""
        ...

    def settle(self) -> None:
        """The engine is being left, and waits until this has brought to an end what it has begun."""
        ...
