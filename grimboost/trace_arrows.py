"""Which draft was judged by which pass, and where its bytes were shown: the flow arrows of a trace.

An arrow begins in the drafter's turn that sent the draft. It goes through the turn that showed its first byte
unchecked, if any did, the pass and the verdict that judged that byte, and ends in the turn that shows what
became of it. Drafts that nobody judges have none. Pure; it knows no file.
"""

from collections import OrderedDict, deque
from collections.abc import Callable

from msgspec import Struct

from grimboost import messages as m
from grimboost.instruments import Batch, Turn

Point = tuple[float, int]
"""A moment, and the track on which something was under way then."""

MOST_DRAFTS = 256
MOST_PASSES = 64


class Arrow(Struct):
    """Points in any order, and the number of the pass that is one of them."""

    points: list[Point]
    number: int | None = None


class _Draft(Struct):
    epoch: int
    offset: int
    arrow: Arrow
    shown: bool = False
    frontier: int | None = None  # of the verdict that judged it


class Arrows:
    """Of one generation. Tell it of all turns and batches; it keeps the latest drafts only."""

    def __init__(self, run: int) -> None:
        self._run = run
        self._drafts = deque[_Draft](maxlen=MOST_DRAFTS)
        self._passes = OrderedDict[int, Point]()
        self._due: list[Arrow] = []

    def turn(self, turn: Turn, track: int) -> None:
        """`track`: the stage's."""
        here = (turn.decided, track)
        for answer in turn.answers:
            if isinstance(answer, m.Draft) and answer.spans:
                self._drafts.append(_Draft(answer.epoch, answer.offset, Arrow([here])))
            elif isinstance(answer, m.Verdict):
                self._judge(answer, turn.message, here)
        if turn.stage == "revealer":
            self._show(turn.message, here)

    def batch(self, batch: Batch, track: int) -> None:
        """`track`: the worker's."""
        for one in batch.work:
            if one.run == self._run and isinstance(one.request, m.PassRequested):
                self._passes[one.request.number] = (batch.begin, track)
        while len(self._passes) > MOST_PASSES:
            self._passes.popitem(last=False)

    def finished(self, at_once: bool = False) -> list[list[Point]]:
        """Arrows that are whole, each in the order of time. A batch may be told of after the turn that it led
        to, so an arrow waits for its pass, unless it has to go `at_once`."""
        ready = [arrow for arrow in self._due if at_once or arrow.number is None or arrow.number in self._passes]
        self._due = [arrow for arrow in self._due if arrow not in ready]
        for arrow in ready:
            if arrow.number is not None and arrow.number in self._passes:
                arrow.points.append(self._passes[arrow.number])
        return [sorted(arrow.points) for arrow in ready]

    def _judge(self, verdict: m.Verdict, answered: m.Message, here: Point) -> None:
        number = answered.number if isinstance(answered, m.PassReturned) else None
        end = verdict.frontier + verdict.drafted_bytes
        for draft in self._drafts:
            if draft.epoch == verdict.epoch and draft.frontier is None and draft.offset < end:
                draft.arrow.points.append(here)
                draft.arrow.number = number
                draft.frontier = verdict.frontier
        self._keep(lambda draft: draft.epoch >= verdict.epoch or draft.frontier is not None)

    def _show(self, message: m.Message, here: Point) -> None:
        if isinstance(message, m.Reveal):
            for draft in self._drafts:
                if not draft.shown and message.offset <= draft.offset < message.offset + len(message.data):
                    draft.arrow.points.append(here)
                    draft.shown = True
        elif isinstance(message, m.Commit):
            for draft in self._drafts:
                if draft.frontier == message.offset:
                    draft.arrow.points.append(here)
                    self._due.append(draft.arrow)
            self._keep(lambda draft: draft.frontier is None or draft.frontier > message.offset)

    def _keep(self, which: Callable[[_Draft], bool]) -> None:
        self._drafts = deque((draft for draft in self._drafts if which(draft)), maxlen=MOST_DRAFTS)
