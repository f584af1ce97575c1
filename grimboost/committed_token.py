"""Which token of a verdict an output byte belongs to, and whose that token is.

Where shown bytes stand, each committed token is the target's choice, or a slip, which is committed as it was
shown. Everywhere else the verdict lists what is committed.
"""

from enum import StrEnum

from msgspec import Struct

from grimboost import messages as m
from grimboost.log import LogEntry
from grimboost.stages.configuration import CascadeConfig


class Source(StrEnum):
    """Whose a byte is."""

    DRAFTED = "drafted"
    """The target chose the drafted token."""
    TARGET = "target"
    """The target's own token; whatever was drafted there was refused, or not fed."""
    SLIP = "slip"
    """It was shown, and is not what the target would have chosen."""
    UNCHECKED = "unchecked"
    """The log does not hold what the target said of it."""
    WITHDRAWN = "withdrawn"
    """It was shown and taken back."""


class CommittedToken(Struct, frozen=True):
    """A committed token: its place in the verdict, where it begins in the output, its bytes, and whose it is."""

    place: int
    start: int
    data: bytes
    source: Source


def committed_token(
    commit: LogEntry, verdict: m.Verdict, offset: int, config: CascadeConfig
) -> CommittedToken | None:
    """The token of a verdict that covers the byte at `offset`. `commit`: the cascade's entry that received it."""
    slips = {slip.offset for answer in commit.answers if isinstance(answer, m.Commit) for slip in answer.slips}
    at = verdict.frontier
    for place, own in enumerate(verdict.choices if config.shown_stands else verdict.tokens):
        slip = config.shown_stands and at in slips
        data = verdict.candidate[place].data if slip else own.data
        if at <= offset < at + len(data):
            return CommittedToken(place, at, data, Source.SLIP if slip else _source(verdict, place, own))
        at += len(data)
    return None


def _source(verdict: m.Verdict, place: int, own: m.PathToken) -> Source:
    """Behind the first disagreement only shown tokens count as accepted: those that are drafted and chosen alike.

    Redacted ids are all the same; there a token of the target's that is as long as the drafted one passes for it.
    """
    if place < verdict.accepted:
        return Source.DRAFTED
    if place == verdict.accepted or place >= min(verdict.drafted, len(verdict.candidate)):
        return Source.TARGET
    span = verdict.candidate[place]
    same = span.id == own.id and len(span.data) == len(own.data)
    return Source.DRAFTED if same else Source.TARGET
