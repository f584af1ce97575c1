"""Spans that wait to be verified: contiguous from where the latest verdict came to.

It knows offsets only; what is worth a pass and what a verdict means others say.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from grimboost.messages import Release, Span, Spans
from grimboost.stages.pieces import size_of


class WaitingSpans:
    """A queue that takes what joins on, and notices what does not."""

    def __init__(self) -> None:
        self.reached = 0  # output offset at which the first one begins
        self.lost = False  # some did not join on: drafter and verifier disagree on what stands
        self._spans: deque[Span] = deque()
        self._end = 0  # output offset behind the last one
        self._released_to = 0  # output offset

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def first(self, limit: int) -> tuple[Span, ...]:
        """At most `limit` of them."""
        return tuple(islice(self._spans, limit))

    def join(self, message: Spans) -> None:
        """Take the message's spans if they begin where the last one ends."""
        joins = message.offset == self._end
        self.lost = not joins and not message.retired
        if not joins:
            return
        self._spans.extend(gated.span for gated in message.spans)
        self._end += size_of(gated.span for gated in message.spans)

    def release(self, message: Release) -> None:
        """The gate has released these; they may be here already, or come next."""
        self._released_to = message.offset + size_of(message.spans)

    def released(self, spans: Iterable[Span]) -> list[bool]:
        """For the first spans: whether the gate has released each."""
        at, found = self.reached, []
        for span in spans:
            at += len(span.data)
            found.append(at <= self._released_to)
        return found

    def clear(self) -> None:
        """A new epoch: nothing of it stands unless it comes again."""
        self._spans.clear()
        self._end = self.reached
        self.lost = False
        self._released_to = 0

    def come_to(self, offset: int) -> None:
        """They begin at this output offset."""
        self.reached = offset
        self._end = offset + size_of(self._spans)

    def keep(self, spans: Iterable[Span], passed: int) -> None:
        """So many bytes further on these are left."""
        self._spans = deque(spans)
        self.come_to(self.reached + passed)

    def stand(self, spans: tuple[Span, ...]) -> None:
        """These were released before the epoch began, and stand."""
        self._spans = deque(spans)
        self._released_to = self._end = self.reached + size_of(spans)
