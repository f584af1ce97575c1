"""What the target's worker runs: one slot per generation, and passes of all generations as one batch.

A pass that fails fails for its own generation: a batch that raises is repeated slot by slot. Slots are given
back by the thread that uses them, so never while a pass runs (case D8). It knows neither epochs nor drafts.
"""

import time
from collections.abc import Sequence

from grimboost import messages as m
from grimboost.adapters.target import Chosen, Rows, Slot, Target
from grimboost.diagnostics import get_logger
from grimboost.errors import TargetError
from grimboost.worker import Job, Lease

log = get_logger(__name__)

Answer = tuple[Lease, m.Message]


class TargetService:
    """Answers `OpenRequested`, `PassRequested` and `ReleaseRequested`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._slots: dict[Lease, Slot] = {}

    def handle(self, jobs: Sequence[Job]) -> list[Answer]:
        answers = [self._single(job) for job in jobs if not isinstance(job.request, m.PassRequested)]
        given_back = {job.lease for job in jobs if isinstance(job.request, m.ReleaseRequested)}
        passes = [
            job for job in jobs if isinstance(job.request, m.PassRequested) and job.lease not in given_back
        ]  # a pass that waits beside its own slot's release was overtaken by the end of the generation
        return answers + (self._passes(passes) if passes else [])

    def close(self) -> None:
        while self._slots:
            _, slot = self._slots.popitem()
            self._close(slot)

    # ------------------------------------------------------------ opening and giving back

    def _single(self, job: Job) -> Answer:
        try:
            if isinstance(job.request, m.OpenRequested):
                self._slots[job.lease] = self._target.open(job.request.rule)
                return job.lease, m.Opened()
            return self._release(job.lease, job.request)
        except BaseException as error:  # the device's or the adapter's fault: it ends that generation, no other
            return job.lease, _failure(error)

    def _release(self, lease: Lease, request: m.ReleaseRequested) -> Answer:
        """Always answers `Released`: a device that failed for good must not keep its generation waiting."""
        slot = self._slots.pop(lease, None)
        if slot is None:
            return lease, m.Released(0)
        length = 0
        try:
            self._target.rollback(slot, min(request.keep, self._target.length(slot)))
            length = self._target.length(slot)
        except Exception as error:
            log.warning("a slot could not be cut before it was given back", error=repr(error))
        self._close(slot)
        return lease, m.Released(length)

    def _close(self, slot: Slot) -> None:
        try:
            self._target.close(slot)
        except Exception as error:
            log.error("a slot could not be given back", error=repr(error))

    # ------------------------------------------------------------ passes

    def _passes(self, jobs: list[Job]) -> list[Answer]:
        begin = time.perf_counter()
        try:
            results = self._step(jobs)
            seconds = time.perf_counter() - begin
            rows = sum(len(job.request.tokens) for job in jobs)
            return [
                (job.lease, self._returned(job, chosen, seconds, rows, len(jobs)))
                for job, chosen in zip(jobs, results, strict=True)
            ]
        except BaseException as error:  # whoever waits for the answer must get one
            if len(jobs) > 1:
                log.warning("a batch failed, repeating it slot by slot", error=repr(error), slots=len(jobs))
                return [answer for job in jobs for answer in self._passes([job])]
            return [(jobs[0].lease, _failure(error))]

    def _step(self, jobs: list[Job]) -> list[list[Chosen]]:
        batch = []
        for job in jobs:
            slot = self._slots.get(job.lease)
            if slot is None:
                raise TargetError("a pass for a generation without a slot")
            self._target.rollback(slot, job.request.keep)
            batch.append(Rows(slot, job.request.tokens, job.request.choose))
        return self._target.step(batch)

    def _returned(self, job: Job, chosen: list[Chosen], seconds: float, rows: int, slots: int) -> m.PassReturned:
        if len(chosen) != job.request.choose:
            raise TargetError(f"the target made {len(chosen)} choices where {job.request.choose} were asked for")
        vocabulary = self._target.vocabulary
        choices = tuple(m.Choice(one.id, vocabulary.data(one.id), one.margin) for one in chosen)
        length = self._target.length(self._slots[job.lease])
        return m.PassReturned(job.request.number, choices, length, seconds, rows, slots)


def _failure(error: BaseException) -> m.PassFailed:
    log.info("the target failed", error=repr(error))  # the caller gets it as the generation's end
    return m.PassFailed(str(error) if isinstance(error, TargetError) else repr(error))
