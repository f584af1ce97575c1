"""What a verdict means where bytes were shown before it: what is committed, what slipped, what still stands.

Two ways, for two kinds of client. Where shown bytes *stand*, they are part of the path: each shown token is
compared with what the target chose in its place, given everything shown before it; a token that is not the
target's is a slip, is committed as it was shown, and the comparison goes on behind it, because the pass was fed
with it. Where they can be taken back, the target's path is committed as in strict mode, and the first shown byte
that differs from it is a slip.

Bytes decide before ids: a target token that spells the shown bytes with other borders is committed as the
target chose it, as long as what is left of the shown tokens can still follow it. It knows neither epochs nor the
wire.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from grimboost.messages import JudgedSpan, PathToken, Span


class Wrong(Struct, frozen=True):
    """A slip: place in `Audit.tokens`, offset behind the frontier, bytes as shown, and the target's choice."""

    place: int
    offset: int
    data: bytes
    chosen: bytes
    confidence: float


class Audit(Struct, frozen=True):
    """`tokens` to commit with their `wrong` ones; `left`: released spans that stand behind them.

    `fits`: what the verifier keeps waiting still fits. `corrected`: something drafted and not shown was wrong.
    `void`: offset behind the frontier from which on what was shown has to be taken back.
    """

    tokens: tuple[PathToken, ...]
    wrong: tuple[Wrong, ...]
    judged: tuple[JudgedSpan, ...]
    left: tuple[Span, ...]
    fits: bool
    corrected: bool
    void: int | None = None


Allowed = Callable[[int, PathToken], bool]


def audit_standing(
    released: Sequence[Span],
    shown: int,
    candidate: Sequence[Span],
    choices: Sequence[PathToken],
    allowed: Allowed,
) -> Audit:
    """Shown bytes stand. `released`: spans from the frontier on, of whose bytes the first `shown` were shown.

    choices[i] follows candidate[:i]; there is one more of them than spans that were fed. `allowed(n, token)`:
    whether the target's own token may take the place of shown ones behind n committed tokens of this verdict.
    """
    walk = _Walk(released, shown)
    for place, own in enumerate(choices):
        fed = candidate[place] if place < len(candidate) else None
        if not walk.step(own, fed, allowed) or fed is None or fed.id != walk.tokens[-1].id:
            break
    return walk.result()


class _Walk:
    """Goes along the released spans and the choices together."""

    def __init__(self, released: Sequence[Span], shown: int) -> None:
        self._released, self._shown = released, shown
        self._at = 0  # offset behind the frontier
        self._next = 0  # released span at that offset
        self.tokens: list[PathToken] = []
        self._wrong: list[Wrong] = []
        self._judged: list[JudgedSpan] = []
        self._fits, self._corrected = True, False

    def step(self, own: PathToken, fed: Span | None, allowed: Allowed) -> bool:
        """Take one choice; False if no later one can be used."""
        place = len(self.tokens)
        if self._at >= self._shown:
            return self._unshown(own, fed)
        span = self._released[self._next]
        if own.id == span.id:
            self._take(own, span, JudgedSpan(span.confidence, True, False))
            return True
        covered = self._covered(own)
        if covered is not None and allowed(place, own):
            self.tokens.append(own)
            self._spelled(len(own.data))
            self._at += len(own.data)
            self._next = covered
            self._fits = False
            return False
        self._wrong.append(Wrong(place, self._at, span.data, own.data, span.confidence))
        self._take(PathToken(span.id, span.data), span, JudgedSpan(span.confidence, True, True))
        self._fits = False
        return True

    def _take(self, token: PathToken, span: Span, judged: JudgedSpan) -> None:
        self.tokens.append(token)
        self._judged.append(judged)
        self._at += len(span.data)
        self._next += 1

    def _spelled(self, size: int) -> None:
        """The target's own token spells so many bytes: the shown spans in them are right."""
        at = self._at
        for span in self._released[self._next :]:
            at += len(span.data)
            if at <= min(self._at + size, self._shown):
                self._judged.append(JudgedSpan(span.confidence, True, False))

    def _unshown(self, own: PathToken, fed: Span | None) -> bool:
        """Beyond what was shown the target's choice counts, as in strict mode."""
        span = self._released[self._next] if self._next < len(self._released) else fed
        right = span is not None and own.id == span.id
        self.tokens.append(own)
        self._at += len(own.data)
        if right and self._next < len(self._released):
            self._next += 1
        elif not right:
            self._next = len(self._released)  # released but held back, and now void
        if span is not None:
            clash = not right and not _agree(own.data, span.data)
            if (right or clash) and not span.held:
                self._judged.append(JudgedSpan(span.confidence, False, clash))
            self._corrected = self._corrected or clash
        return right

    def _covered(self, own: PathToken) -> int | None:
        """Index of the released span that may follow `own` where it spells what was shown; None if it does not."""
        text = b"".join(span.data for span in self._released[self._next :])
        rest = text[: self._shown - self._at]
        if not own.data or not _agree(own.data, rest):
            return None
        at, size = self._next, len(own.data)
        while at < len(self._released) and size >= len(self._released[at].data):
            size -= len(self._released[at].data)
            at += 1
        if size == 0 and text.startswith(own.data):
            return at
        return len(self._released) if len(own.data) >= len(rest) else None

    def result(self) -> Audit:
        left = tuple(self._released[self._next :])
        return Audit(
            tuple(self.tokens), tuple(self._wrong), tuple(self._judged), left, self._fits, self._corrected
        )


def audit_revisable(
    released: Sequence[Span],
    shown: int,
    candidate: Sequence[Span],
    choices: Sequence[PathToken],
    tokens: Sequence[PathToken],
) -> Audit:
    """Shown bytes may be taken back. `tokens`: what strict verification commits."""
    text = b"".join(span.data for span in released)
    data = b"".join(token.data for token in tokens)
    same = common_prefix(data, text)
    ended = bool(tokens) and not tokens[-1].data and len(text) > len(data)
    clash = ended or same < min(len(data), len(text))
    wrong: tuple[Wrong, ...] = ()
    if clash and same < shown:
        wrong = (_wrong_at(released, tokens, same),)
    left, fits = ((), False) if clash else _behind(released, len(data))
    judged = _judged(released, shown, candidate, choices)
    corrected = not wrong and any(one.slip for _, one in judged)
    evidence = tuple(one for span, one in judged if one.released or not span.held)
    return Audit(tuple(tokens), wrong, evidence, left, fits, corrected, same if clash else None)


def _wrong_at(released: Sequence[Span], tokens: Sequence[PathToken], same: int) -> Wrong:
    """The committed token that disagrees at byte `same`, and the span that was shown there."""
    at = place = 0
    while place < len(tokens) - 1 and at + len(tokens[place].data) <= same:
        at += len(tokens[place].data)
        place += 1
    start, shown = _span_at(released, same)
    return Wrong(place, start, shown.data, tokens[place].data, shown.confidence)


def _span_at(released: Sequence[Span], byte: int) -> tuple[int, Span]:
    start = 0
    for span in released:
        if byte < start + len(span.data):
            return start, span
        start += len(span.data)
    return start, released[-1]


def _behind(released: Sequence[Span], size: int) -> tuple[tuple[Span, ...], bool]:
    """Released spans behind `size` bytes, the first one cut if need be; and whether none had to be."""
    at = 0
    for place, span in enumerate(released):
        if at + len(span.data) > size:
            cut = size - at
            rest = replace(span, data=span.data[cut:])
            return (rest, *released[place + 1 :]), cut == 0
        at += len(span.data)
    return (), True


def _judged(
    released: Sequence[Span], shown: int, candidate: Sequence[Span], choices: Sequence[PathToken]
) -> list[tuple[Span, JudgedSpan]]:
    """Spans compared by id up to the first that is not the target's; other borders alone say nothing."""
    judged: list[tuple[Span, JudgedSpan]] = []
    at = 0
    spans = list(candidate[: len(choices)]) or list(released[:1])
    for span, own in zip(spans, choices, strict=False):
        was_shown = at + len(span.data) <= shown
        if own.id == span.id:
            judged.append((span, JudgedSpan(span.confidence, was_shown, False)))
            at += len(span.data)
            continue
        if not _agree(own.data, span.data):
            judged.append((span, JudgedSpan(span.confidence, at < shown, True)))
        break
    return judged


def _agree(one: bytes, other: bytes) -> bool:
    """Whether one begins with the other; an empty one (a control token) agrees with nothing."""
    return bool(one) and (one.startswith(other) or other.startswith(one))


def common_prefix(one: bytes, other: bytes) -> int:
    """Length of the longest common beginning."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))
