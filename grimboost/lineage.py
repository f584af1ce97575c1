"""Where each message of a log comes from, and where it went: the chain of causes, from the wiring's table alone.

Every input of a stage is either an answer of another stage, or comes from outside: from the engine, the clock, or
a worker, whose answers belong to a request. Between two actors each lane keeps its order, so the next input of one
sender and lane must be the next message that was sent there. One that was never sent, or was passed over, shows
where a message is missing from a log, is one too many, or is out of order (case H2).

Names derive from lineage, not from a counter over the whole log: `verifier#17` is the 17th input of the verifier,
`verifier#17.0` its first answer. They are the same however concurrent stages took turns.
"""

from collections import defaultdict, deque
from typing import NamedTuple

import msgspec
from msgspec import Struct

from grimboost import messages as m
from grimboost.delivery import Delivery
from grimboost.log import LogEntry
from grimboost.wiring import CLIENT, EDGES, ENGINE, REVEALER, STAGES, Edge, routes

_encode = msgspec.msgpack.Encoder().encode

_WORKERS_ANSWERS: dict[type[m.Message], tuple[type[m.Message], ...]] = {
    m.DraftReturned: (m.DraftRequested,),
    m.DraftFailed: (m.DraftRequested,),
    m.Opened: (m.OpenRequested,),
    m.PassReturned: (m.PassRequested,),
    m.PassFailed: (m.PassRequested, m.OpenRequested),
    m.Released: (m.ReleaseRequested,),
}
"""What a worker says -> what it was asked."""

_SENDERS = {(edge.message, edge.receiver): edge for edge in EDGES}
"""Each kind of message has one sender for each receiver."""


class Lane(NamedTuple):
    """One sender's messages to one receiver; with `blocks` the sender waits for room."""

    sender: str
    receiver: str
    blocks: bool


_LANES: dict[tuple[str, type[m.Message]], tuple[Lane, ...]] = {
    (stage, message): tuple(
        Lane(stage, edge.receiver, edge.blocks) for edge in edges if edge.receiver in {*STAGES, CLIENT}
    )
    for stage in STAGES
    for message, edges in routes(stage).items()
}
"""Where an answer of a stage goes within the generation."""

TO_CLIENT = Lane(REVEALER, CLIENT, True)

_ASKING = {(edge.sender, edge.message) for edge in EDGES if edge.receiver not in {*STAGES, CLIENT, ENGINE}}
"""Answers of stages that are requests to a worker."""


class Origin(Struct, frozen=True):
    """Answer number `place` of the entry `sequence`."""

    sequence: int
    place: int


class Broken(Exception):
    """An input that nobody can have sent at this place. The text says what was expected."""


class Lineage:
    """Feed it the entries of a log in order. Raises `Broken` where they cannot be what happened."""

    def __init__(self, first: int = 0) -> None:
        """`first`: sequence number of the first entry; what came before it may have sent anything."""
        self.partial = first > 0
        self.names: dict[int, str] = {}
        """Entry -> its name, such as `verifier#17`."""
        self.causes: dict[int, Origin] = {}
        """Entry -> the message that it received, or the request that a worker answered with it."""
        self.effects: dict[Origin, list[int]] = {}
        """Message -> entries that received it or its answer."""
        self._inputs = dict.fromkeys((*STAGES, CLIENT), 0)
        self._lanes: defaultdict[Lane, deque[tuple[m.Message, Origin]]] = defaultdict(deque)
        self._asked: defaultdict[tuple[str, type[m.Message]], deque[tuple[m.Message, Origin]]] = defaultdict(deque)
        self._delivery = Delivery()
        self._exhausted = False
        self.broken: str | None = None
        """What was wrong with the first entry that cannot be what happened, if `follow` met one."""

    def follow(self, entry: LogEntry) -> None:
        """Take the next entry of a log that is read, not checked: behind what cannot be, only names are told."""
        try:
            self.feed(entry)
        except Broken as error:
            name = self.names.setdefault(entry.sequence, entry.stage)
            self.broken = self.broken or f"{name}: {error}"

    def feed(self, entry: LogEntry) -> None:
        """Take the next entry."""
        number = self._inputs.get(entry.stage)
        if number is None:
            raise Broken(f"there is no stage {entry.stage!r}")
        self._inputs[entry.stage] = number + 1
        self.names[entry.sequence] = f"{entry.stage}#{number}"
        if self.broken is not None:
            return
        if entry.stage == CLIENT:
            self._take(entry)
        else:
            self._trace(entry)
            self._send(entry)

    def name(self, origin: Origin) -> str:
        """The name of a message, such as `verifier#17.0`."""
        return f"{self.names[origin.sequence]}.{origin.place}"

    # ------------------------------------------------------------ inputs

    def _trace(self, entry: LogEntry) -> None:
        kind, stage = type(entry.message), entry.stage
        if kind is m.Elapsed:
            return
        edge = sender_of(kind, stage)
        if edge is None:
            raise Broken(f"nobody sends {kind.__name__} to the {stage}")
        if edge.sender in STAGES:
            self._received(entry, self._next(edge.sender, stage, edge.blocks, entry.message))
        elif edge.sender != ENGINE:
            self._answered(entry)

    def _next(self, sender: str, receiver: str, blocks: bool, message: m.Message) -> Origin | None:
        lane = self._lanes.get(Lane(sender, receiver, blocks))
        if not lane:
            if self.partial:
                return None
            raise Broken(f"the {sender} sent no {type(message).__name__} to the {receiver} before")
        sent, origin = lane[0]
        if sent is not message and not same(sent, message):
            if self.partial:
                return None  # it was under way when the log begins
            raise Broken(f"the {sender} sent {sent!r} before it")
        lane.popleft()
        return origin

    def _answered(self, entry: LogEntry) -> None:
        """A worker's answer belongs to the oldest request that can have it."""
        requests = _WORKERS_ANSWERS[type(entry.message)]
        for request in requests:
            asked = self._asked.get((entry.stage, request))
            if not asked:
                continue
            waits, number = _number(asked[0][0]), _number(entry.message)
            if number in (waits, None):
                self._received(entry, asked.popleft()[1])
                return
            if not self.partial:
                raise Broken(f"the {request.__name__} that waits for an answer is number {waits}")
        if not self.partial:
            raise Broken(f"no {requests[0].__name__} of the {entry.stage} waits for an answer")

    def _take(self, entry: LogEntry) -> None:
        """Events reach the client in order; what it has in hand follows from them."""
        if not isinstance(entry.message, m.Taken):
            raise Broken(f"a client sends no {type(entry.message).__name__}")
        if entry.answers:
            raise Broken("a client answers nothing")
        if self.partial:
            return
        event: m.ClientEvent | None = None
        if entry.message.event is not None:
            lane = self._lanes.get(TO_CLIENT)
            if not lane:
                raise Broken("the revealer sent no event before")
            event, origin = lane.popleft()  # type: ignore[assignment]
            self._received(entry, origin)
        if self._exhausted:
            raise Broken("it knew that there was no further event")
        self._exhausted = event is None
        expected = self._delivery.take(event)
        if expected != entry.message:
            raise Broken(f"with that event it has {expected!r}")

    def _received(self, entry: LogEntry, origin: Origin | None) -> None:
        if origin is not None:
            self.causes[entry.sequence] = origin
            self.effects.setdefault(origin, []).append(entry.sequence)

    # ------------------------------------------------------------ answers

    def _send(self, entry: LogEntry) -> None:
        for place, answer in enumerate(entry.answers):
            sent = answer, Origin(entry.sequence, place)
            key = entry.stage, type(answer)
            for lane in _LANES.get(key, ()):
                self._lanes[lane].append(sent)
            if key in _ASKING:
                self._asked[key].append(sent)


def _number(message: m.Message) -> int | None:
    """Which request it is, or answers; opening and closing a slot are not numbered."""
    match message:
        case m.DraftRequested(request=number) | m.DraftReturned(request=number) | m.DraftFailed(request=number):
            return number
        case m.PassRequested(number=number) | m.PassReturned(number=number):
            return number
    return None


def sender_of(kind: type[m.Message], receiver: str) -> Edge | None:
    """The edge on which such a message comes to that receiver."""
    return _SENDERS.get((kind, receiver))


def same(one: object, other: object) -> bool:
    """Whether two messages, or values of them, are the same. As bytes, NaN equals itself."""
    return one == other or _encode(one) == _encode(other)
