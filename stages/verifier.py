"""The verifier's pure part: which block to ask the target about, and what its answer commits.

The slot always holds the path without its last token: that one is fed first in the next pass, followed by the
drafted ids, and the target's choice after each row is compared with what was drafted there. Every pass names
the length to keep, so a rollback is never a message of its own that could be lost.

::

    IDLE ─Started▶ OPENING ─Opened▶ PREFILLING ─PassReturned▶ DRAFTING ─Spans/Elapsed▶ PASSING
                                                                 ▲                      │ PassReturned
                                             Committed           │       near-tie       ▼
                                 COMMITTING ─────────────────────┘   ┌──────────── (Verdict) ─▶ COMMITTING
                                                                     ▼
                                                                 RECHECKING ─PassReturned▶ (Verdict)
    any but IDLE ─Finished▶ RELEASING ─Released▶ RELEASED        IDLE ─Finished▶ RELEASED
    OPENING, PREFILLING, PASSING, RECHECKING ─PassFailed▶ FAILED ─Finished▶ RELEASING

Near-ties: a target that is not row-invariant may choose otherwise in a block than row by row. A margin below
`tie_bound` is therefore settled from the last point at which the cache is exactly that of plain decoding: the
tokens from there on are fed one row at a time, and that choice counts.

In streaming mode the same passes audit what was shown: spans wait here whether they were released or not, in
one contiguous row, and a pass takes as many as pay. What that means is the cascade's business. It knows neither
bytes' meaning nor models, and gets times only as numbers in messages.
"""

from collections import deque
from collections.abc import Callable
from enum import StrEnum

from grimboost import messages as m
from grimboost.errors import StageError
from grimboost.stages.alignment import Judgement, judge
from grimboost.stages.block_policy import ALONE, AcceptanceEstimate, Company, block_length
from grimboost.stages.configuration import VerifierConfig
from grimboost.stages.sampling_rule import SamplingRule
from grimboost.stages.stage import undefined
from grimboost.stages.waiting_spans import WaitingSpans


class State(StrEnum):
    """Life of the verifier stage."""

    IDLE = "idle"
    OPENING = "opening"
    PREFILLING = "prefilling"
    DRAFTING = "drafting"
    PASSING = "passing"
    RECHECKING = "rechecking"
    COMMITTING = "committing"
    FAILED = "failed"
    RELEASING = "releasing"
    RELEASED = "released"


class VerifierStage:
    """Plans passes, judges their results, keeps the spans that wait."""

    def __init__(self, config: VerifierConfig, rule: SamplingRule) -> None:
        self._config = config
        self._rule = rule
        self._state = State.IDLE
        self._epoch = 0
        self._frontier = 0
        self._path: list[int] = []
        self._more = config.max_new_tokens
        self._waiting = WaitingSpans()
        self._drafter_alive = config.drafting
        self._drafter_late = False  # after one missed patience it is not waited for until it answers again
        self._answered = False  # the drafter has answered for the present frontier
        self._off = False  # drafting does not pay now: nothing is waited for, late spans still probe it for free
        self._estimate = AcceptanceEstimate()
        self._number = self._choose = 0  # of the pass that is under way
        self._block: tuple[m.Span, ...] = ()
        self._on_path = 0  # tokens in the slot that belong to the path; behind them stands what was rejected
        self._clean = 0  # path positions whose cache entries are those of plain decoding
        self._recheck: deque[int] = deque()  # positions still to feed one by one
        self._suspect = 0  # row of the block whose choice is being re-checked
        self._settled: tuple[m.Choice, ...] = ()  # choices before it
        self._passes = self._rows = self._ties = 0  # cost of the verdict in the making
        self._company = ALONE  # who else was in the latest pass; most likely they are in the next one too

    @property
    def done(self) -> bool:
        return self._state is State.RELEASED

    @property
    def patience(self) -> float | None:
        return self._config.patience_seconds if self._state is State.DRAFTING else None

    def receive(self, message: m.VerifierInput) -> list[m.Message]:
        """Dispatch by the table at the end of the module; an undefined pair is a `StageError`."""
        handler = _TABLE.get((self._state, type(message)))
        if handler is None:
            raise undefined("verifier", self._state, message)
        if isinstance(message, m.PassReturned) and self._state is not State.RELEASING:
            self._check(message)
        answer: list[m.Message] = handler(self, message)
        return answer

    def _check(self, message: m.PassReturned) -> None:
        number, choices = message.number, len(message.choices)
        if (number, choices) != (self._number, self._choose):
            raise StageError(
                f"verifier: pass {number} returned {choices} choices; "
                f"awaited are {self._choose} of pass {self._number}"
            )

    # ------------------------------------------------------------ opening and prefill

    def _start(self, message: m.Started) -> list[m.Message]:
        self._path = list(message.prompt_ids)
        self._on_path = len(self._path) - 1
        self._state = State.OPENING
        return [m.OpenRequested(self._rule)]

    def _opened(self, _: m.Opened) -> list[m.Message]:
        return self._prefill(0)

    def _prefill(self, length: int) -> list[m.Message]:
        """Feed the next part of the prompt. Its last token is the first row of the first block."""
        total = len(self._path) - 1
        if length >= total:
            self._clean = total
            return [m.Prefilled(total + 1, total + 1), *self._draft_or_pass()]
        self._state = State.PREFILLING
        part = self._path[length : min(length + self._config.prefill_rows, total)]
        return [m.Prefilled(length, total + 1), self._pass(length, part, 0)]

    def _prefilled(self, message: m.PassReturned) -> list[m.Message]:
        return self._prefill(message.length)

    # ------------------------------------------------------------ waiting for the drafter

    def _spans(self, message: m.Spans) -> list[m.Message]:
        self._drafter_alive = self._drafter_alive and not message.retired
        if message.epoch == self._epoch:
            self._waiting.join(message)
            more = message.more and len(self._waiting) < self._config.enough_spans
            if message.frontier == self._frontier and not more:
                self._answered, self._drafter_late = True, False
        return self._draft_or_pass() if self._state is State.DRAFTING else []

    def _released_early(self, message: m.Release) -> list[m.Message]:
        if message.epoch == self._epoch:
            self._waiting.release(message)
        return []

    def _elapsed(self, _: m.Elapsed) -> list[m.Message]:
        self._drafter_late = True
        return self._draft_or_pass()

    def _draft_or_pass(self) -> list[m.Message]:
        waiting_pays = not (self._answered or self._drafter_late or self._off)
        if self._drafter_alive and waiting_pays:
            self._state = State.DRAFTING
            return []
        self._state = State.PASSING
        return [self._plan()]

    # ------------------------------------------------------------ a block and its verdict

    def _plan(self) -> m.PassRequested:
        """The block that pays best: never beyond the budget less the target's own token."""
        limit = max(0, min(self._more, self._config.max_rows) - 1)
        candidates = self._waiting.first(limit)
        probabilities = self._probabilities(candidates)
        waited = 0.0 if self._off else self._config.draft_milliseconds
        self._block = candidates[: block_length(self._config.curve, probabilities, self._company, waited)]
        if candidates:  # none says nothing about what drafting is worth
            self._off = not self._block
        keep = len(self._path) - 1
        feed = [self._path[-1], *(span.id for span in self._block)]
        return self._pass(keep, feed, len(feed))

    def _probabilities(self, candidates: tuple[m.Span, ...]) -> list[float]:
        """How likely each span, once reached, is committed as it stands; what is shown for good always is."""
        likely = [self._estimate.probability(span.confidence) for span in candidates]
        if not self._config.shown_stands:
            return likely
        released = self._waiting.released(candidates)
        return [1.0 if stands else one for stands, one in zip(released, likely, strict=True)]

    def _pass(self, keep: int, tokens: list[int], choose: int) -> m.PassRequested:
        self._number, self._choose = self._number + 1, choose
        if choose:
            self._passes += 1
            self._rows += len(tokens)
        return m.PassRequested(self._number, keep, tuple(tokens), choose)

    def _passed(self, message: m.PassReturned) -> list[m.Message]:
        choices, checked = message.choices, len(self._block)
        if message.batch_slots > 1:
            self._company = Company(message.batch_slots - 1, message.batch_rows - len(choices))
        else:
            self._company = ALONE
        suspect = self._near_tie(choices)
        if suspect is not None:
            return self._begin_recheck(suspect, choices)
        if checked == 0 and self._clean == len(self._path) - 1:
            self._clean += 1
        return self._verdict(checked, choices)

    def _verdict(self, checked: int, choices: tuple[m.Choice, ...]) -> list[m.Message]:
        candidate = tuple(self._waiting)
        judgement = judge(candidate, checked, choices)
        self._learn(candidate, judgement)
        accepted = judgement.accepted
        verdict = m.Verdict(
            epoch=self._epoch,
            frontier=self._frontier,
            tokens=judgement.tokens,
            outcome=self._outcome(judgement),
            drafted=len(self._block),
            drafted_bytes=sum(len(span.data) for span in self._block),
            accepted=accepted,
            accepted_bytes=sum(len(span.data) for span in candidate[:accepted]),
            passes=self._passes,
            rows=self._rows,
            ties=self._ties,
            margin=choices[accepted].margin,
            candidate=candidate[: checked + 1] if self._config.streaming else (),
            choices=tuple(m.PathToken(one.id, one.data) for one in choices) if self._config.streaming else (),
        )
        self._waiting.keep(judgement.left, sum(len(token.data) for token in judgement.tokens))
        self._on_path = len(self._path) + accepted
        self._passes = self._rows = self._ties = 0
        self._state = State.COMMITTING
        return [verdict]

    def _outcome(self, judgement: Judgement) -> m.Outcome:
        """Where spans were lost, what the drafter still holds has to come again as spans.

        Spans that a verdict overtook begin before the frontier; a drafter that is right would go on behind
        them for ever, and none of its spans would ever join on.
        """
        lost = self._waiting.lost and judgement.outcome is m.Outcome.AGREED
        return m.Outcome.REALIGNED if lost else judgement.outcome

    def _learn(self, candidate: tuple[m.Span, ...], judgement: Judgement) -> None:
        """Compare what was drafted for each place that the target reached, checked or not."""
        for place, token in enumerate(judgement.tokens[: len(candidate)]):
            span = candidate[place]
            self._estimate.observe(span.confidence, span.id == token.id)

    def _invalidated(self, message: m.Invalidated) -> list[m.Message]:
        self._epoch = message.epoch
        self._waiting.clear()
        return []

    def _committed(self, message: m.Committed) -> list[m.Message]:
        self._path.extend(token.id for token in message.tokens)
        self._clean = min(self._clean, len(self._path) - 1)  # an audit may commit less than was fed
        self._frontier = message.frontier
        self._waiting.come_to(message.frontier)
        if message.released:
            self._waiting.stand(message.released)
        self._more = message.more
        self._answered = False
        return self._draft_or_pass()

    # ------------------------------------------------------------ near-ties

    def _near_tie(self, choices: tuple[m.Choice, ...]) -> int | None:
        """First row that decides something by a margin that the shape of the pass could have turned."""
        plain = not self._block and self._clean == len(self._path) - 1
        if plain or self._config.row_invariant:
            return None
        for row, choice in enumerate(choices):
            if choice.margin < self._config.tie_bound:
                return row
            left = row < len(self._block) and choice.id != self._block[row].id
            if left and not self._config.shown_stands:
                return None  # the target leaves the block here; later rows decide nothing
        return None

    def _begin_recheck(self, row: int, choices: tuple[m.Choice, ...]) -> list[m.Message]:
        """Feed everything from the clean point up to that row again, one row at a time."""
        self._ties += 1
        self._suspect, self._settled = row, choices[:row]
        self._recheck = deque(range(self._clean, len(self._path) + row))
        self._state = State.RECHECKING
        return [self._recheck_next()]

    def _recheck_next(self) -> m.PassRequested:
        position = self._recheck.popleft()
        drafted = position - len(self._path)
        token = self._path[position] if drafted < 0 else self._block[drafted].id
        self._clean = position + 1
        self._passes += bool(self._recheck)  # the last one counts itself
        self._rows += bool(self._recheck)
        return self._pass(position, [token], 0 if self._recheck else 1)

    def _rechecked(self, message: m.PassReturned) -> list[m.Message]:
        if self._recheck:
            return [self._recheck_next()]
        return self._verdict(self._suspect, (*self._settled, *message.choices))

    # ------------------------------------------------------------ endings

    def _failed(self, message: m.PassFailed) -> list[m.Message]:
        self._state = State.FAILED
        return [m.TargetFailed(message.error)]

    def _finish(self, message: m.Finished) -> list[m.Message]:
        """Cut the cache where the output was cut, but keep nothing that was rejected.

        The last token of a path may not have been fed: a rejected one may stand in its place.
        """
        self._state = State.RELEASING
        return [m.ReleaseRequested(min(message.length, self._on_path))]

    def _released(self, _: m.Released | m.Finished) -> list[m.Message]:
        self._state = State.RELEASED
        return []

    def _ignore(self, _: m.Message) -> list[m.Message]:
        return []


_V = VerifierStage
_TABLE: dict[tuple[State, type], Callable[..., list[m.Message]]] = {
    (State.IDLE, m.Started): _V._start,
    (State.IDLE, m.Finished): _V._released,
    (State.OPENING, m.Opened): _V._opened,
    (State.OPENING, m.PassFailed): _V._failed,
    (State.PREFILLING, m.PassReturned): _V._prefilled,
    (State.PREFILLING, m.PassFailed): _V._failed,
    (State.DRAFTING, m.Elapsed): _V._elapsed,
    (State.PASSING, m.PassReturned): _V._passed,
    (State.PASSING, m.PassFailed): _V._failed,
    (State.RECHECKING, m.PassReturned): _V._rechecked,
    (State.RECHECKING, m.PassFailed): _V._failed,
    (State.COMMITTING, m.Invalidated): _V._invalidated,
    (State.COMMITTING, m.Committed): _V._committed,
    (State.RELEASING, m.Released): _V._released,
    # a late answer for work that the end of the generation overtook
    (State.RELEASING, m.Opened): _V._ignore,
    (State.RELEASING, m.PassReturned): _V._ignore,
    (State.RELEASING, m.PassFailed): _V._ignore,
    **{(state, m.Spans): _V._spans for state in State if state not in {State.RELEASING, State.RELEASED}},
    **{(state, m.Release): _V._released_early for state in State if state is not State.RELEASED},
    (State.RELEASING, m.Spans): _V._ignore,
    **{
        (state, m.Finished): _V._finish
        for state in State
        if state not in {State.IDLE, State.RELEASING, State.RELEASED}
    },
}
