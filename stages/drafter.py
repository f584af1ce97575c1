"""The drafter's pure part: what to ask of the drafter's model, and what of its answer still stands.

Flow by credit: at most `max_ahead_bytes` of candidate may stand beyond the committed frontier, and every
commit gives some back. Each `Committed` that the next does not overtake is answered by at least one `Draft`,
an empty one where the drafter abstains, so that the verifier knows when waiting is pointless. One request is
in flight at a time; in streaming mode it runs on from one to the next while there is credit.

::

    WAITING ──Started──▶ ASKED ──DraftReturned──▶ IDLE ──Committed──▶ ASKED
                           │ Committed: ask again after the answer
                           └──DraftFailed──▶ RETIRED      any ──Finished──▶ DONE

Where drafts are hardly ever right it asks for few (`draft_worth`). It does not know the target's vocabulary:
the worker segments.
"""

from enum import StrEnum

from msgspec.structs import replace

from grimboost import messages as m
from grimboost.stages.configuration import DrafterConfig
from grimboost.stages.draft_worth import DraftWorth
from grimboost.stages.stage import undefined


class State(StrEnum):
    """Life of the drafter stage."""

    WAITING = "waiting"
    IDLE = "idle"
    ASKED = "asked"
    RETIRED = "retired"
    DONE = "done"


class DrafterStage:
    """Keeps the candidate bytes beyond the frontier and asks for more."""

    patience = None

    def __init__(self, config: DrafterConfig) -> None:
        self._config = config
        self._state = State.WAITING
        self._epoch = 0
        self._frontier = 0
        self._ahead = b""  # candidate bytes that were sent on as spans and are not committed
        self._uncommunicated = b""  # committed bytes that the worker has not been told yet
        self._slips: tuple[int, ...] = ()  # offsets in them
        self._breaks: tuple[int, ...] = ()  # offsets in them
        self._alone = False  # the target makes the next tokens by itself
        self._realign = False
        self._diverged = False  # other bytes were committed than those that the request under way continues
        self._again = False
        self._request = 0
        self._size = config.request_bytes  # most bytes of the next request
        self._worth = DraftWorth(config.break_even)
        self._guess: bytes | None = None  # how the candidate begins, until the target has said what is right

    @property
    def done(self) -> bool:
        return self._state is State.DONE

    def receive(self, message: m.DrafterInput) -> list[m.Message]:
        """One answer per commit; stale answers are dropped and asked for again."""
        if self._state is State.DONE:
            return []  # an answer that was under way when the generation ended
        match message:
            case m.Finished():
                self._state = State.DONE
                return []
            case m.Started() if self._state is State.WAITING:
                self._state, self._uncommunicated = State.IDLE, message.prompt
                self._breaks = message.breaks
                return self._ask() if self._config.enabled else [self._retire()]
            case m.Invalidated() if self._state is not State.WAITING:
                self._epoch, self._realign = message.epoch, message.keep
                self._ahead = self._ahead if message.keep else b""
                return []
            case m.Committed() if self._state is not State.WAITING:
                self._advance(message)
                return [] if self._state is State.RETIRED else self._ask()
            case m.DraftReturned() if self._state is State.ASKED:
                return self._answer(message)
            case m.DraftFailed() if self._state is State.ASKED:
                return [self._retire()]
            case m.DraftReturned() | m.DraftFailed() if self._state is State.RETIRED:
                return []  # came too late
        raise undefined("drafter", self._state, message)

    def _advance(self, message: m.Committed) -> None:
        data = b"".join(token.data for token in message.tokens)
        self._frontier = message.frontier
        self._size = self._config.request_bytes  # wanted soon; what follows may be more at a time
        self._note_offsets(message)
        self._uncommunicated += data
        follows = self._ahead.startswith(data)
        if self._guess is not None:
            guess, right = self._guess, 0 not in message.slips
            self._worth.judge(bool(guess) and right and (data.startswith(guess) or guess.startswith(data)))
            self._guess = None
        self._ahead = self._ahead[len(data) :] if follows else b""
        self._diverged |= not follows
        if message.released:  # shown bytes that stand, although everything drafted behind them is void
            self._ahead, self._diverged = b"".join(span.data for span in message.released), True
        self._alone = message.alone > 0

    def _note_offsets(self, message: m.Committed) -> None:
        at = len(self._uncommunicated)
        for place, token in enumerate(message.tokens):
            if place in message.slips:
                self._slips = (*self._slips, at)
            if not token.data:
                self._breaks = (*self._breaks, at)
            at += len(token.data)

    def _ask(self) -> list[m.Message]:
        if self._state is State.ASKED:
            self._again = True
            return []
        limit = self._credit
        if self._alone or (limit < self._config.minimum_request_bytes and not self._realign):
            return [self._draft(())]  # enough is standing; the worker is told with the next request
        if not (self._ahead or self._realign or self._worth.asking()):
            return [self._draft(())]
        self._request += 1
        if self._size is not None:
            self._size = min(2 * self._size, self._config.most_request_bytes)
        request = m.DraftRequested(
            self._request,
            self._epoch,
            self._frontier,
            self._uncommunicated,
            self._ahead,
            limit,
            self._realign,
            self._slips,
            self._breaks,
        )
        if self._realign:
            self._ahead = b""  # comes back as spans with the answer
        self._state, self._uncommunicated, self._slips, self._breaks = State.ASKED, b"", (), ()
        self._realign = self._diverged = False
        return [request]

    def _answer(self, message: m.DraftReturned) -> list[m.Message]:
        self._state = State.IDLE
        current = message.epoch == self._epoch and not self._diverged
        fits = current and message.offset == self._frontier + len(self._ahead)
        answer: list[m.Message] = []
        if fits:
            draft = self._draft(message.spans)
            if not self._ahead:
                self._guess = message.spans[0].data if message.spans else b""
            self._ahead += b"".join(span.data for span in message.spans)
            answer.append(replace(draft, more=self._may_run_on(message)))
        if self._again or not fits or self._may_run_on(message):
            self._again = False
            answer += self._ask()
        return answer

    @property
    def _credit(self) -> int:
        limit = self._config.max_ahead_bytes - len(self._ahead)
        return limit if self._size is None else min(limit, self._size)

    def _may_run_on(self, message: m.DraftReturned) -> bool:
        """Whether to ask for more without waiting for a commit: the drafter had more to say and has credit."""
        enough = self._credit >= self._config.minimum_request_bytes
        return self._config.running_on and bool(message.spans) and enough and not self._alone

    def _draft(self, spans: tuple[m.Span, ...]) -> m.Draft:
        offset = self._frontier + len(self._ahead)
        return m.Draft(self._epoch, self._frontier, offset, spans, retired=self._state is State.RETIRED)

    def _retire(self) -> m.Draft:
        self._state = State.RETIRED
        self._ahead = b""
        return self._draft(())
