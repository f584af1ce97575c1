"""Where the target's choices and the candidate part: the comparison at the heart of verification.

Candidate bytes are compared as bytes. A target token that cuts them elsewhere but spells the same bytes is no
mismatch: it is committed, and what it leaves of the candidate still stands, to be segmented anew (Timor et
al. 2025, arXiv:2502.05202, call it string-level exact match). It knows neither epochs nor caches.
"""

from collections.abc import Sequence

from msgspec import Struct

from grimboost.messages import Choice, Outcome, PathToken, Span


class Judgement(Struct, frozen=True):
    """`tokens` to commit: the accepted spans, then the target's own; `left` spans still fit behind them."""

    tokens: tuple[PathToken, ...]
    accepted: int
    outcome: Outcome
    left: tuple[Span, ...]


def judge(candidate: Sequence[Span], checked: int, choices: Sequence[Choice]) -> Judgement:
    """Compare `choices` (checked + 1 of them) with the first `checked` spans and their bytes with the rest.

    choices[i] is what the target chose in the place of candidate[i].
    """
    accepted = 0
    while accepted < checked and choices[accepted].id == candidate[accepted].id:
        accepted += 1
    own, rest = choices[accepted], tuple(candidate[accepted:])
    tokens = (*(PathToken(span.id, span.data) for span in candidate[:accepted]), PathToken(own.id, own.data))
    outcome, left = _compare(own, rest)
    return Judgement(tokens, accepted, outcome, left)


def _compare(own: Choice, rest: tuple[Span, ...]) -> tuple[Outcome, tuple[Span, ...]]:
    if not rest:
        return Outcome.AGREED, ()
    if rest[0].id == own.id:  # the target's own token behind a block that was accepted whole
        return Outcome.AGREED, rest[1:]
    drafted = b"".join(span.data for span in rest)
    if not own.data:  # a control token: the text ends or changes where the candidate goes on
        return Outcome.MISMATCH, ()
    if own.data.startswith(drafted):  # the candidate is used up without a contradiction
        return Outcome.AGREED, ()
    return (Outcome.REALIGNED if drafted.startswith(own.data) else Outcome.MISMATCH), ()
