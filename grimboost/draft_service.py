"""What the drafter's worker runs: sessions of all generations, and the cut of their bytes into spans.

A drafter that raises answers `DraftFailed` for that one generation. Bytes become presumptive target tokens
here, beside the model, so that the pure stages need no vocabulary. A drafter that remembers is told what ended
generations came to. It knows no epochs; it echoes them.
"""

import time
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grimboost import messages as m
from grimboost.adapters.drafter import Bounded, Correctable, Drafter, DraftSession, Proposal, Remembering
from grimboost.adapters.segmentation import TAIL_BYTES, Piece, Segmenter
from grimboost.diagnostics import get_logger
from grimboost.worker import Job, Lease

log = get_logger(__name__)


class Ended(Struct, frozen=True):
    """What a generation came to. No message: the shell says it when the stages have ended, and nobody answers."""

    prompt: bytes
    output: bytes


class DraftService:
    """Answers `DraftRequested`, and takes `Ended`."""

    def __init__(self, drafter: Drafter, segmenter: Segmenter) -> None:
        self._drafter = drafter
        self._segmenter = segmenter
        self._texts: WeakKeyDictionary[Lease, _Text] = WeakKeyDictionary()

    def handle(self, jobs: Sequence[Job]) -> list[tuple[Lease, m.Message]]:
        """Those who wait for a draft come first."""
        answers: list[tuple[Lease, m.Message]] = [
            (job.lease, self._answer(job.lease, job.request)) for job in jobs if not isinstance(job.request, Ended)
        ]
        for job in jobs:
            if isinstance(job.request, Ended):
                self._remember(job.request)
        return answers

    def close(self) -> None:
        self._texts.clear()
        if isinstance(self._drafter, Remembering):
            try:
                self._drafter.settle()
            except BaseException as error:
                log.warning("drafter did not settle", drafter=self._drafter.name, error=repr(error))

    def _remember(self, ended: Ended) -> None:
        if isinstance(self._drafter, Remembering):
            try:
                self._drafter.remember(ended.prompt, ended.output)
            except BaseException as error:
                log.warning("drafter forgets a generation", drafter=self._drafter.name, error=repr(error))

    def _answer(self, lease: Lease, request: m.DraftRequested) -> m.DraftReturned | m.DraftFailed:
        begin = time.perf_counter()
        try:
            if lease not in self._texts:
                self._texts[lease] = _Text(self._drafter.begin())
            answer = self._texts[lease].draft(request, self._segmenter)
        except (
            BaseException
        ) as error:  # also SystemExit: a drafter may be anyone's code: it costs speed, never output
            log.warning("drafter dropped for this generation", drafter=self._drafter.name, error=repr(error))
            return m.DraftFailed(request.request, repr(error))
        return replace(answer, seconds=time.perf_counter() - begin)


class _Text:
    """One generation: its session, the committed tail, and the draft tokens of the standing candidate."""

    def __init__(self, session: DraftSession) -> None:
        self._session = session
        self._tail = b""
        self._standing: list[m.DraftToken] = []

    def draft(self, request: m.DraftRequested, segmenter: Segmenter) -> m.DraftReturned:
        self._commit(request)
        proposal = self._session.propose(request.ahead, request.limit)
        tokens = checked_tokens(proposal, request.limit)
        kept = request.ahead if request.realign else b""
        before = self._tail if request.realign else (self._tail + request.ahead)[-TAIL_BYTES:]
        pieces = segmenter.segment(before, kept + proposal.data, proposal.whole)
        self._standing += tokens
        skip = 0 if request.realign else len(request.ahead)
        spans = _spans(pieces, self._standing, skip)
        if len(spans) == 1 and not proposal.whole:  # the only piece, perhaps half a token, is not dropped
            spans = (replace(spans[0], whole=False),)
        return m.DraftReturned(
            request.request,
            request.epoch,
            request.frontier,
            request.frontier + skip,
            spans,
            tokens,
        )

    def _commit(self, request: m.DraftRequested) -> None:
        if request.breaks and isinstance(self._session, Bounded):
            self._session.breaks(request.breaks)
        if request.slips and isinstance(self._session, Correctable):
            self._session.slipped(request.slips[0])
        self._session.extend(request.committed)
        self._tail = (self._tail + request.committed)[-TAIL_BYTES:]
        if request.ahead:
            self._standing = _between(self._standing, len(request.committed), len(request.ahead))
        else:
            self._standing = []


def checked_tokens(proposal: Proposal, limit: int) -> tuple[m.DraftToken, ...]:
    """The proposal's tokens. Raises if they are not what the interface says; nothing else checks them."""
    tokens = msgspec.convert(msgspec.to_builtins(proposal.tokens), tuple[m.DraftToken, ...])
    for token in tokens:
        if token.length < 1 or not 0.0 <= token.confidence <= 1.0:
            raise ValueError(f"a draft token of {token.length} bytes with confidence {token.confidence}")
    covered = sum(token.length for token in tokens)
    if covered != len(proposal.data):
        raise ValueError(f"draft tokens cover {covered} bytes of a proposal of {len(proposal.data)}")
    if len(proposal.data) > limit:
        raise ValueError(f"{len(proposal.data)} bytes proposed, {limit} were asked for")
    return tokens


def _between(tokens: list[m.DraftToken], start: int, length: int) -> list[m.DraftToken]:
    """Tokens over the bytes [start, start + length), cut at both ends."""
    kept, at = [], 0
    for token in tokens:
        size = min(at + token.length, start + length) - max(at, start)
        if size > 0:
            kept.append(replace(token, length=size))
        at += token.length
    return kept


def _spans(pieces: list[Piece], tokens: list[m.DraftToken], skip: int) -> tuple[m.Span, ...]:
    """Each piece with the minimum confidence over the drafter tokens that overlap it."""
    by_byte = [token.confidence for token in tokens for _ in range(token.length)]
    spans, at = [], skip
    for id, data in pieces:
        spans.append(m.Span(id, data, min(by_byte[at : at + len(data)], default=0.0)))
        at += len(data)
    return tuple(spans)
