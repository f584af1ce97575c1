"""What a log knows of its target and its drafter: which answers they gave to what, and after how long.

The target of a generation answers by what stands before each row. Where it is row-invariant, a choice that was
recorded behind a prefix is the choice behind that prefix in any pass. Where it is not, only a whole run of passes
that are the recorded ones, from the first on, has known answers. So it is where other generations were in the
same passes: who will be in another pass nobody knows, and the block length depends on it.

A drafter answers by the text so far, what stands ahead of it, and how much it is asked for. One that learns may
answer the same question otherwise at another moment of the run; so each answer says whether everything that was
asked before it was as recorded (`as_recorded`), too. It knows no stage.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from statistics import median
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from grimboost import messages as m
from grimboost.log import LogEntry
from grimboost.stages.configuration import CostCurve
from grimboost.wiring import DRAFTER, VERIFIER

Asked = m.DraftRequested | m.OpenRequested | m.PassRequested | m.ReleaseRequested

_ASKING = {DRAFTER: m.DraftRequested, VERIFIER: m.OpenRequested | m.PassRequested | m.ReleaseRequested}
_ANSWERING = {
    DRAFTER: m.DraftReturned | m.DraftFailed,
    VERIFIER: m.Opened | m.PassReturned | m.PassFailed | m.Released,
}


NEVER_ASKED = "the target was never asked how this text goes on"


class NotRecorded(Exception):
    """The log has no answer to this. The text says to what."""


class Unasked(int):
    """Stands for the id of a choice that the log does not hold. Whoever compares it learns so."""

    def __eq__(self, other: object) -> bool:
        raise NotRecorded(NEVER_ASKED)

    def __ne__(self, other: object) -> bool:
        raise NotRecorded(NEVER_ASKED)

    __hash__ = int.__hash__


UNASKED = m.Choice(Unasked(-1), b"", 0.0)


class Exchange(Struct, frozen=True):
    """One request to a worker, and its answer: None where it had not come at `answered`, when the stage ended.

    `asked` and `answered` are seconds since the start.
    """

    request: Any
    asked: float
    answer: Any = None
    answered: float = 0.0

    @property
    def seconds(self) -> float:
        """How long the answer took."""
        return self.answered - self.asked


class Answer(Struct, frozen=True):
    """What comes back after so many seconds. Without a message it is not known, only that it takes that long."""

    message: m.Message | None
    seconds: float
    as_recorded: bool = True


def exchanges(entries: Iterable[LogEntry], stage: str) -> list[Exchange]:
    """All that one stage asked its worker, in order. A worker answers one stage in the order of its requests."""
    found: list[Exchange] = []
    open_, last = 0, 0.0  # the oldest without an answer; when the stage got its latest message
    for entry in entries:
        if entry.stage != stage:
            continue
        last = entry.seconds
        if isinstance(entry.message, _ANSWERING[stage]):
            place = open_
            if isinstance(entry.message, m.Released):  # it overtakes a pass that was not begun
                place = next(i for i, one in enumerate(found) if isinstance(one.request, m.ReleaseRequested))
            found[place] = replace(found[place], answer=entry.message, answered=entry.seconds)
            open_ = place + 1
        found += [Exchange(one, entry.seconds) for one in entry.answers if isinstance(one, _ASKING[stage])]
    return [one if one.answer is not None else replace(one, answered=last) for one in found]


# ---------------------------------------------------------------- the target


class _Slot:
    """A cache as a path in the tree of all prefixes: where it stands after each token."""

    def __init__(self, tree: dict[tuple[int, int], int], grows: bool) -> None:
        self._tree, self._grows = tree, grows
        self._nodes: list[int | None] = [0]

    def __len__(self) -> int:
        return len(self._nodes) - 1

    def feed(self, request: m.PassRequested) -> list[int | None]:
        """The node behind each row that is to be chosen after; None for a prefix that no pass had."""
        del self._nodes[request.keep + 1 :]
        for token in request.tokens:
            self._nodes.append(self._after(self._nodes[-1], token))
        return self._nodes[len(self._nodes) - request.choose :]

    def _after(self, node: int | None, token: int) -> int | None:
        if node is None:
            return None
        if self._grows:
            return self._tree.setdefault((node, token), len(self._tree) + 1)
        return self._tree.get((node, token))


class TargetMemory:
    """All that the target was asked. Make a `TargetAsker` for each run that asks it again."""

    def __init__(self, entries: list[LogEntry], row_invariant: bool, curve: CostCurve) -> None:
        self.exchanges = exchanges(entries, VERIFIER)
        self.tree: dict[tuple[int, int], int] = {}
        self.choices: dict[int, m.Choice] = {}
        self._curve = curve
        self._by_pass: dict[tuple[int, tuple[int, ...]], float] = {}
        self._by_rows: dict[int, list[float]] = {}
        self.row_invariant, self.alone = row_invariant, True
        self.learn(self.exchanges)

    @property
    def any_order(self) -> bool:
        """Whether a choice depends on what stands before its row alone."""
        return self.row_invariant and self.alone

    def learn(self, all_exchanges: Iterable[Exchange]) -> None:
        """Take in the answers of one generation; of another one, it has to be the same target's."""
        slot = _Slot(self.tree, grows=True)
        for exchange in all_exchanges:
            if isinstance(exchange.request, m.PassRequested):
                nodes = slot.feed(exchange.request)
                if isinstance(exchange.answer, m.PassReturned):
                    self._note(exchange, nodes)
                    self.alone = self.alone and exchange.answer.batch_slots <= 1

    def _note(self, exchange: Exchange, nodes: list[int | None]) -> None:
        request = exchange.request
        for node, choice in zip(nodes, exchange.answer.choices, strict=True):
            assert node is not None
            self.choices[node] = choice
        self._by_pass.setdefault((request.keep, request.tokens), exchange.seconds)
        self._by_rows.setdefault(len(request.tokens), []).append(exchange.seconds)

    @property
    def timed(self) -> bool:
        """Whether any pass came back: else nobody knows how long one takes, nor what would have come before it."""
        return bool(self._by_rows)

    def seconds(self, request: m.PassRequested) -> float:
        """How long such a pass takes: as the same one did, else as those of as many rows, else by the curve."""
        same = self._by_pass.get((request.keep, request.tokens))
        if same is not None:
            return same
        alike = self._by_rows.get(len(request.tokens))
        if alike:
            return median(alike)
        cost = self._curve.cost
        scales = [one / cost(rows) for rows, seconds in self._by_rows.items() for one in seconds]
        return median(scales) * cost(len(request.tokens))


class TargetAsker:
    """One run's questions to the target, in order."""

    def __init__(self, memory: TargetMemory) -> None:
        self._memory = memory
        self._slot = _Slot(memory.tree, grows=False)
        self._asked = 0
        self._as_recorded = True

    def recorded(self, request: Asked) -> Exchange | None:
        """The recorded exchange, if this and all requests before it are the recorded ones."""
        place, known = self._asked, self._memory.exchanges
        self._asked += 1
        self._as_recorded = self._as_recorded and place < len(known) and known[place].request == request
        return known[place] if self._as_recorded else None

    def ask(self, request: Asked) -> Answer:
        """Raises `NotRecorded` where no part of the answer is known. Choices that are not are `UNASKED`."""
        before = len(self._slot)
        nodes = self._slot.feed(request) if isinstance(request, m.PassRequested) else []
        recorded = self.recorded(request)
        if recorded is not None and recorded.answer is not None:
            return Answer(recorded.answer, recorded.seconds)
        if isinstance(request, m.ReleaseRequested):
            return Answer(m.Released(min(request.keep, before)), 0.0, False)
        answer = self._from_prefixes(request, nodes)
        if answer is None and recorded is None:
            raise NotRecorded(self._why())
        waited = recorded.seconds if recorded is not None else 0.0
        return Answer(None, waited) if answer is None else replace(answer, seconds=max(waited, answer.seconds))

    def _from_prefixes(self, request: Asked, nodes: list[int | None]) -> Answer | None:
        """What is known of a pass by what stands before its rows; None where that is nothing."""
        if not isinstance(request, m.PassRequested) or not self._memory.any_order or not self._memory.timed:
            return None
        choices = tuple(UNASKED if node is None else self._memory.choices.get(node, UNASKED) for node in nodes)
        if choices and choices[0] is UNASKED:
            return None
        seconds, rows = self._memory.seconds(request), len(request.tokens)
        returned = m.PassReturned(request.number, choices, len(self._slot), seconds, rows, 1)
        return Answer(returned, seconds, False)

    def _why(self) -> str:
        if self._memory.any_order:
            return NEVER_ASKED
        if not self._memory.alone:
            return "other generations were in the same passes, and nobody knows how many would be in this one"
        return (
            "the target is not row-invariant, so it may choose otherwise in another pass than in the recorded one"
        )


# ---------------------------------------------------------------- the drafter


class DrafterMemory:
    """All that the drafter was asked. Make a `DrafterAsker` for each run that asks it again."""

    def __init__(self, entries: list[LogEntry]) -> None:
        self.exchanges = exchanges(entries, DRAFTER)
        self.by_question: dict[bytes, Exchange] = {}
        self.learn(self.exchanges)

    def learn(self, all_exchanges: Iterable[Exchange]) -> None:
        """Take in the answers of one generation; of another one, it has to be the same drafter's."""
        questions = _Questions()
        for exchange in all_exchanges:
            question = questions.next(exchange.request)
            known = self.by_question.get(question)
            if known is None or known.answer is None:
                self.by_question[question] = exchange


class _Questions:
    """Names what a drafter is asked: the text so far with its breaks, what stands ahead, and how much is wanted.

    What it had said of a candidate that it is to go on with belongs to the question: the question before is part
    of it then, and so on back to the latest one with nothing ahead. Where it was told of slips is not part of it:
    that is something to learn from, like all that it was asked before.
    """

    def __init__(self) -> None:
        self._text, self._size = blake2b(digest_size=32), 0
        self._breaks: list[int] = []
        self._before = b""

    def next(self, request: m.DraftRequested) -> bytes:
        self._breaks += [self._size + at for at in request.breaks]
        self._text.update(request.committed)
        self._size += len(request.committed)
        parts = (self._text.digest(), self._breaks, request.ahead, request.limit, request.realign)
        going_on = self._before if request.ahead else b""
        self._before = blake2b(repr((parts, going_on)).encode(), digest_size=32).digest()
        return self._before


class DrafterAsker:
    """One run's questions to the drafter, in order."""

    def __init__(self, memory: DrafterMemory) -> None:
        self._memory = memory
        self._questions = _Questions()
        self._asked = 0
        self._as_recorded = True

    def recorded(self, request: m.DraftRequested) -> Exchange | None:
        """The recorded exchange, if this and all requests before it are the recorded ones."""
        place, known = self._asked, self._memory.exchanges
        self._asked += 1
        same = self._as_recorded and place < len(known) and _plain(known[place].request) == _plain(request)
        self._as_recorded = same
        return known[place] if same else None

    def ask(self, request: m.DraftRequested) -> Answer:
        """Raises `NotRecorded` where it was never asked that."""
        question = self._questions.next(request)
        recorded = self.recorded(request)
        if recorded is not None and recorded.answer is not None:
            return Answer(_addressed(recorded.answer, request), recorded.seconds)
        found = self._memory.by_question.get(question)
        if found is not None and found.answer is not None:
            return Answer(_addressed(found.answer, request), found.seconds, False)
        if recorded is not None:
            return Answer(None, recorded.seconds)
        if found is not None:
            return Answer(None, found.seconds, False)
        raise NotRecorded("the drafter was never asked to go on here, by so many bytes")


def _plain(request: m.DraftRequested) -> m.DraftRequested:
    """Without what the worker only echoes."""
    return replace(request, request=0, epoch=0, frontier=0)


def _addressed(answer: m.DraftReturned | m.DraftFailed, request: m.DraftRequested) -> m.Message:
    """The answer as one to this request."""
    if isinstance(answer, m.DraftFailed):
        return replace(answer, request=request.request)
    return replace(
        answer,
        request=request.request,
        epoch=request.epoch,
        frontier=request.frontier,
        offset=request.frontier + (0 if request.realign else len(request.ahead)),
    )


def unasked(tokens: Iterable[m.PathToken]) -> Iterator[m.PathToken]:
    """Those of the tokens that stand for an answer which the log does not hold."""
    return (token for token in tokens if type(token.id) is Unasked)
