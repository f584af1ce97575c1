"""What a profile says: where the time of each stage and worker went, what passes cost, who worked beside whom.

Pure: structs and how they follow from intervals, batches and sums. It knows no clock and no engine. A stage's
seconds are sums over all generations that were measured, and may exceed the wall time, in which at least one of
them ran. A worker's are from the beginning of the first to the end of the last.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

from msgspec import Struct

from grimboost import messages as m
from grimboost.instruments import Work
from grimboost.spread import Spread

RUNNING, TARGET, DRAFTER, STAGES, CLIENT = 1, 2, 4, 8, 16
"""Who is at work in an interval; CLIENT: the revealer waits until it takes an event. Sums of them are sets."""
LAYERS = (RUNNING, TARGET, DRAFTER, STAGES, CLIENT)

Interval = tuple[int, int, int]
"""Begin and end in nanoseconds, and a layer."""


class StageProfile(Struct, frozen=True):
    """One stage. `busy`, `waiting` (for a message or a turn on the event loop) and `blocked` (waiting for room)
    are measured each; `wall` is from the stage's beginning to its end. Queue: how many others a message left in
    the mailbox, and how long it had lain there. `tokens` and `bytes` are in what the stage sent onward."""

    name: str
    received: int
    sent: int
    busy_seconds: float
    waiting_seconds: float
    blocked_seconds: float
    wall_seconds: float
    queue_depth: Spread | None = None
    queue_seconds: Spread | None = None
    tokens: int = 0
    bytes: int = 0


class WorkerProfile(Struct, frozen=True):
    """One worker's thread. It waited for requests and worked on batches; a request had waited for `queue_seconds`.

    `rows` are tokens fed to the target, by pass. `tokens` and `bytes` are in its answers: choices or drafted
    spans.
    """

    name: str
    batches: int
    requests: int
    busy_seconds: float
    waiting_seconds: float
    batch_seconds: Spread | None = None
    batch_requests: Spread | None = None
    queue_seconds: Spread | None = None
    rows: Spread | None = None
    tokens: int = 0
    bytes: int = 0


class PassProfile(Struct, frozen=True):
    """Target passes of one kind with about as many rows. `kind`: prefill (nothing is chosen), decode, or mixed (of
    several generations, some of which prefill). `context` is the length of a slot after the pass, in tokens."""

    kind: str
    rows_from: int
    rows_to: int
    count: int
    seconds: Spread | None
    context_mean: float
    context_max: int
    generations: Spread | None


class ClientProfile(Struct, frozen=True):
    """Events that clients took, how long they waited for them, and how long they then dealt with them."""

    events: int = 0
    waiting_seconds: float = 0.0
    busy_seconds: float = 0.0


class Overlap(Struct, frozen=True):
    """The wall time in five parts: drafter and target both at work; only the target; only the drafter; neither,
    but a stage on the event loop; nobody. Of `nobody`, `client_seconds` passed while the client took
    nothing."""

    both_seconds: float = 0.0
    target_seconds: float = 0.0
    drafter_seconds: float = 0.0
    stages_seconds: float = 0.0
    nobody_seconds: float = 0.0
    client_seconds: float = 0.0


class Profile(Struct, frozen=True):
    """Everything. `limit` says in words what the run was limited by; `limited_by` is who that is."""

    generations: int
    wall_seconds: float
    overlap: Overlap
    stages: tuple[StageProfile, ...]
    workers: tuple[WorkerProfile, ...]
    passes: tuple[PassProfile, ...]
    client: ClientProfile
    limited_by: str
    limit: str


# ---------------------------------------------------------------- who worked beside whom


def sweep(intervals: Iterable[Interval]) -> dict[int, int]:
    """Nanoseconds by the set of layers at work. Intervals of one layer may overlap each other."""
    edges: list[tuple[int, int]] = []
    for begin, end, layer in intervals:
        if end > begin:
            edges += ((begin, layer), (end, -layer))
    edges.sort()
    found: dict[int, int] = {}
    depth = dict.fromkeys(LAYERS, 0)
    present = at = 0
    for moment, edge in edges:
        if moment > at:
            if present:
                found[present] = found.get(present, 0) + moment - at
            at = moment
        layer = abs(edge)
        depth[layer] += 1 if edge > 0 else -1
        present = present | layer if depth[layer] else present & ~layer
    return found


def cut(intervals: Iterable[Interval], at: int) -> tuple[list[Interval], list[Interval]]:
    """What lies before a moment, and what behind it."""
    before, behind = [], []
    for begin, end, layer in intervals:
        if begin < at:
            before.append((begin, min(end, at), layer))
        if end > at:
            behind.append((max(begin, at), end, layer))
    return before, behind


def overlap(found: dict[int, int]) -> Overlap:
    """From what `sweep` found. What happened while no generation ran does not count."""
    parts = dict.fromkeys(("both", "target", "drafter", "stages", "nobody", "client"), 0)
    for layers, duration in found.items():
        if layers & RUNNING:
            part = _part(layers)
            parts[part] += duration
            if part == "nobody" and layers & CLIENT:
                parts["client"] += duration
    return Overlap(**{f"{name}_seconds": duration / 1e9 for name, duration in parts.items()})


def _part(layers: int) -> str:
    if layers & TARGET:
        return "both" if layers & DRAFTER else "target"
    return "drafter" if layers & DRAFTER else "stages" if layers & STAGES else "nobody"


# ---------------------------------------------------------------- passes


class Pass(Struct, frozen=True):
    """One step of the model: rows of all slots in it, and each slot's length after it."""

    kind: str
    rows: int
    seconds: float
    contexts: tuple[int, ...]


def passes_of(work: Sequence[Work]) -> list[Pass]:
    """The passes of a batch: one, or one for each slot where they failed together."""
    found = [one for one in work if isinstance(one.answer, m.PassReturned)]
    return [_pass(list(same)) for _, same in groupby(found, key=_step)]


def _step(one: Work) -> tuple[float, int, int]:
    """The same for all that were answered by one step."""
    answer = one.answer
    assert isinstance(answer, m.PassReturned)
    return answer.seconds, answer.batch_rows, answer.batch_slots


def _pass(work: list[Work]) -> Pass:
    seconds, rows, _ = _step(work[0])
    choosing = sum(one.request.choose > 0 for one in work)
    kind = "prefill" if not choosing else "decode" if choosing == len(work) else "mixed"
    return Pass(kind, rows, seconds, tuple(one.answer.length for one in work))  # type: ignore[union-attr]


# ---------------------------------------------------------------- what limited the run


def limit(
    wall: float,
    parts: Overlap,
    stages: Sequence[StageProfile],
    workers: Sequence[WorkerProfile],
    passes: Sequence[PassProfile],
) -> tuple[str, str]:
    """Who it was, and a sentence. The largest part of the wall time decides."""
    if wall <= 0:
        return "nothing", "nothing ran"
    shares = {
        "target": parts.both_seconds + parts.target_seconds,
        "drafter": parts.drafter_seconds,
        "event loop": parts.stages_seconds,
        "client": parts.client_seconds,
        "hand-overs": parts.nobody_seconds - parts.client_seconds,
    }
    who = max(shares, key=lambda name: shares[name])
    share = f"{100 * shares[who] / wall:.0f}% of {wall:.2f} s"
    drafter = 100 * (parts.both_seconds + parts.drafter_seconds) / wall
    both = 100 * parts.both_seconds / wall
    beside = f"the drafter worked in {drafter:.0f}%, beside the target in {both:.0f}%"
    target = f"the target worked in {100 * shares['target'] / wall:.0f}%"
    busiest = max(stages, key=lambda stage: stage.busy_seconds, default=None)
    words = {
        "target": f"the target: {share} in {_passes(passes)}; {beside}",
        "drafter": f"the drafter: alone at work in {share}{_drafts(workers)}; {target}",
        "event loop": f"the event loop: its stages alone at work in {share}"
        + (f", most of it the {busiest.name}; {target}" if busiest else ""),
        "client": f"the client: in {share} everything waited until it took the next event; {target}",
        "hand-overs": f"hand-overs: in {share} nobody worked, threads and event loop woke each other; {target}",
    }
    return who, f"limited by {words[who]}"


def _passes(passes: Sequence[PassProfile]) -> str:
    if not passes:
        return "passes without an answer"
    count = sum(one.count for one in passes)
    least, most = min(one.rows_from for one in passes), max(one.rows_to for one in passes)
    rows = f"{least} to {most} rows" if most > least else "one row" if most == 1 else f"{most} rows"
    single = next((one for one in passes if one.kind == "decode" and one.rows_to == 1), None)
    one_row = (
        f" ({1000 * single.seconds.mean:.1f} ms for one row)" if single and single.seconds and most > 1 else ""
    )
    return f"{count} pass{'es' if count > 1 else ''} of {rows}{one_row}"


def _drafts(workers: Sequence[WorkerProfile]) -> str:
    for worker in workers:
        if worker.name == "drafter" and worker.batch_seconds is not None:
            return f", {worker.batches} batches of {1000 * worker.batch_seconds.mean:.1f} ms"
    return ""
