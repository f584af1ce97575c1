"""Who sends what to whom, as one table. Actors are wired from it, and a test draws the graph from it.

Data edges block their sender when the receiver's lane is full; control edges never block. The data edges have
no cycle, so no set of full mailboxes can wait for each other (case D6).
"""

from msgspec import Struct

from grimboost import messages as m

DRAFTER, GATE, VERIFIER, CASCADE, REVEALER = "drafter", "gate", "verifier", "cascade", "revealer"
CLIENT, DRAFTER_WORKER, TARGET_WORKER, ENGINE = "client", "drafter worker", "target worker", "engine"

STAGES = (DRAFTER, GATE, VERIFIER, CASCADE, REVEALER)


class Edge(Struct, frozen=True):
    """`message` goes from `sender` to `receiver`, on the data lane if it `blocks`."""

    sender: str
    message: type[m.Message]
    receiver: str
    blocks: bool


def _control(sender: str, receiver: str, *messages: type[m.Message]) -> tuple[Edge, ...]:
    return tuple(Edge(sender, message, receiver, False) for message in messages)


def _data(sender: str, receiver: str, *messages: type[m.Message]) -> tuple[Edge, ...]:
    return tuple(Edge(sender, message, receiver, True) for message in messages)


EDGES: tuple[Edge, ...] = (
    *_control(ENGINE, DRAFTER, m.Started),
    *_control(ENGINE, VERIFIER, m.Started),
    *_control(ENGINE, CASCADE, m.Started, m.CancelRequested),
    *_control(ENGINE, GATE, m.Certified),
    *_control(DRAFTER, DRAFTER_WORKER, m.DraftRequested),
    *_control(DRAFTER_WORKER, DRAFTER, m.DraftReturned, m.DraftFailed),
    *_data(DRAFTER, GATE, m.Draft),
    *_data(GATE, CASCADE, m.Release),
    *_data(GATE, VERIFIER, m.Release, m.Spans),
    *_control(VERIFIER, TARGET_WORKER, m.OpenRequested, m.PassRequested, m.ReleaseRequested),
    *_control(TARGET_WORKER, VERIFIER, m.Opened, m.PassReturned, m.PassFailed, m.Released),
    *_data(VERIFIER, CASCADE, m.Prefilled, m.Verdict, m.TargetFailed),
    *_data(CASCADE, REVEALER, m.Prefilled, m.Reveal, m.Commit),
    *_control(CASCADE, ENGINE, m.Audited),
    *_control(CASCADE, DRAFTER, m.Committed, m.Invalidated, m.Finished),
    *_control(CASCADE, GATE, m.Committed, m.Invalidated, m.Finished),
    *_control(CASCADE, VERIFIER, m.Committed, m.Invalidated, m.Finished),
    *_data(REVEALER, CLIENT, m.Progress, m.Chunk, m.Provisional, m.CommittedTo, m.Retracted, m.Slipped, m.Done),
)


def routes(sender: str) -> dict[type[m.Message], tuple[Edge, ...]]:
    """Edges of one sender by message type, in the table's order."""
    table: dict[type[m.Message], tuple[Edge, ...]] = {}
    for edge in EDGES:
        if edge.sender == sender:
            table[edge.message] = (*table.get(edge.message, ()), edge)
    return table
