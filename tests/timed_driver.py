"""A driver with a clock of its own: stages take no time, and each answer of a worker comes after its latency.

Two runs that say the same are the same to the last message, so one can be compared with what is said of it. A pass
takes as long as the cost curve says, a draft always as long; both are sums of powers of two, exact as floats.
"""

import heapq
import itertools
from collections.abc import Sequence

from stage_driver import Driver

from grimboost import messages as m
from grimboost import wiring as w
from grimboost.log import Log, LogEntry, LogHeader
from grimboost.worker import Job

PASS_SECONDS = 2.0**-6
"""Of one unit of the cost curve."""


class TimedDriver(Driver):
    """`draft_seconds`: what each draft takes."""

    def __init__(self, *arguments, draft_seconds: float = 2.0**-9, **options) -> None:
        super().__init__(*arguments, **options)
        self.draft_seconds = draft_seconds
        self.entries: list[LogEntry] = []
        self._now = self._heard = 0.0
        self._due: list[tuple[float, int, str, m.Message]] = []
        self._numbers = itertools.count()

    def run(self, outside: Sequence[tuple[float, str, m.Message]] = ()) -> m.Done:
        """`outside`: what the engine says when, and to whom."""
        started = m.Started(self.prompt, self.target.vocabulary.join(self.prompt))
        for edge in w.routes(w.ENGINE)[m.Started]:
            self._lanes[edge.receiver].put(w.ENGINE, started, False)
        for at, name, message in outside:
            heapq.heappush(self._due, (at, next(self._numbers), name, message))
        while self._turn():
            assert len(self.entries) < 20_000, "no end in sight"
        assert all(stage.done for stage in self.stages.values()), "a stage still waits, for nothing"
        done = self.events[-1]
        assert isinstance(done, m.Done)
        return done

    def _turn(self) -> bool:
        for name in w.STAGES:
            if self._lanes[name]:
                self._step(name)
                self._work()
                return True
        verifier = self.stages[w.VERIFIER]
        patience = None if verifier.done else verifier.patience
        elapses = float("inf") if patience is None else self._heard + patience
        if self._due and self._due[0][0] <= elapses:
            self._now, _, name, message = heapq.heappop(self._due)
            if not self.stages[name].done:
                self._deliver(name, message)
        elif patience is not None:
            self._now = elapses
            self._deliver(w.VERIFIER, m.Elapsed())
        else:
            return False
        self._work()
        return True

    def _work(self) -> None:
        """What was asked of the workers is answered, and comes back later."""
        for name, stage, service, lease in (
            (w.TARGET_WORKER, w.VERIFIER, self._target_service, self._target_lease),
            (w.DRAFTER_WORKER, w.DRAFTER, self._draft_service, self._drafter_lease),
        ):
            while self._lanes[name]:
                request = self._lanes[name].take()
                if isinstance(request, m.PassRequested):
                    self.on_pass(request)
                for _, answer in service.handle([Job(lease, request)]):
                    if isinstance(answer, m.Released):
                        self.released = answer
                    due = self._now + self._seconds(request)
                    heapq.heappush(self._due, (due, next(self._numbers), stage, answer))

    def _seconds(self, request: m.Message) -> float:
        if isinstance(request, m.PassRequested):
            return PASS_SECONDS * self.configs.verifier.curve.cost(len(request.tokens))
        return self.draft_seconds if isinstance(request, m.DraftRequested) else 0.0

    def _deliver(self, name: str, message: m.Message) -> None:
        super()._deliver(name, message)
        if name == w.VERIFIER:
            self._heard = self._now
        answers = self.log[-1].answers
        self.entries.append(LogEntry(len(self.entries), self._now, name, message, answers))  # type: ignore[arg-type]

    def recorded(self) -> Log:
        """Its log, as one that was read."""
        return Log(header(self), self.entries, None)


def header(driver: Driver) -> LogHeader:
    """A header for a driver's log."""
    return LogHeader({}, "scripted", "", "", "exact", "script", driver.configs, driver.rule)


def untimed(driver: Driver) -> Log:
    """The log of a driver without a clock; each step counts as a second."""
    entries = [
        LogEntry(place, float(place), one.stage, one.message, one.answers)  # type: ignore[arg-type]
        for place, one in enumerate(driver.log)
    ]
    return Log(header(driver), entries, None)
