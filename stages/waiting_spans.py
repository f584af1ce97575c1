"""Spans that wait to be verified: contiguous from where the latest verdict came to.

It knows offsets only; what is worth a pass and what a verdict means others say.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from grimboost.messages import Release, Span, Spans


class WaitingSpans:
    """A queue that takes what joins on, and notices what does not."""

    def __init__(self) -> None:
        self.reached = 0  # output offset at which the first one begins
        self.lost = False  # some did not join on: drafter and verifier disagree on what stands
        self._spans: deque[Span] = deque()
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
        joins = message.offset == self.reached + sum(len(span.data) for span in self._spans)
        self.lost = not joins and not message.retired
        if not joins:
            return
        self._spans.extend(gated.span for gated in message.spans)

    def release(self, message: Release) -> None:
        """The gate has released these; they may be here already, or come next."""
        self._released_to = message.offset + sum(len(span.data) for span in message.spans)

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
        self.lost = False
        self._released_to = 0

    def keep(self, spans: Iterable[Span], passed: int) -> None:
        """So many bytes further on these are left."""
        self._spans = deque(spans)
        self.reached += passed

    def stand(self, spans: tuple[Span, ...]) -> None:
        """These were released before the epoch began, and stand."""
        self._spans = deque(spans)
        self._released_to = self.reached + sum(len(span.data) for span in spans)
