"""Mailboxes without an event loop, and whether what is in them would do the same. It knows no stage."""

from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from grimboost import messages as m
from grimboost.lineage import same


class Lanes:
    """A mailbox without an event loop: who sent what, in order."""

    def __init__(self) -> None:
        self._lanes: dict[bool, deque[tuple[str, m.Message]]] = {False: deque(), True: deque()}

    def __bool__(self) -> bool:
        return any(self._lanes.values())

    def put(self, sender: str, message: m.Message, blocks: bool) -> None:
        self._lanes[blocks].append((sender, message))

    def take(self) -> m.Message:
        """The next one, control before data."""
        return (self._lanes[False] or self._lanes[True]).popleft()[1]

    def take_from(self, sender: str, blocks: bool) -> m.Message | None:
        """The next one of that sender and lane, whatever others have sent."""
        lane = self._lanes[blocks]
        for place, (who, message) in enumerate(lane):
            if who == sender:
                del lane[place]
                return message
        return None


def alike(some: Sequence[m.Message], others: Sequence[m.Message]) -> bool:
    """Whether they are the same to whoever gets them. Why the gate decided so is no matter to the verifier."""
    if len(some) != len(others):
        return False
    return all(one is other or same(_bare(one), _bare(other)) for one, other in zip(some, others, strict=True))


def _bare(message: m.Message) -> m.Message:
    if not isinstance(message, m.Spans):
        return message
    return replace(message, spans=tuple(m.GatedSpan(one.span, m.Decision.VERIFY, "") for one in message.spans))
