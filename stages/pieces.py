"""Spans and tokens as pieces of text: their bytes, and which lie before an offset. It knows offsets only."""

from collections.abc import Iterable

from grimboost.messages import PathToken, Span


def bytes_of(spans: Iterable[Span]) -> bytes:
    """All of them, joined."""
    return b"".join(span.data for span in spans)


def size_of(spans: Iterable[Span]) -> int:
    """Bytes of all of them."""
    return sum(len(span.data) for span in spans)


def begun_before(offset: int, begin: int, pieces: Iterable[Span | PathToken]) -> int:
    """Of pieces from offset `begin` on, how many have a byte before that offset."""
    count, at = 0, begin
    for piece in pieces:
        count += bool(piece.data) and at < offset
        at += len(piece.data)
    return count


def whole_before(offset: int, begin: int, pieces: Iterable[Span | PathToken]) -> int:
    """Of pieces from offset `begin` on, how many have bytes and end at `offset` or before it."""
    count, at = 0, begin
    for piece in pieces:
        at += len(piece.data)
        count += bool(piece.data) and at <= offset
    return count


def tally(counts: tuple[int, ...], reached: int) -> tuple[int, ...]:
    """Counts of how often a row of pieces came to each place, after one that came to `reached` places more."""
    longer = (*counts, *(0,) * (reached - len(counts)))
    return tuple(count + (place < reached) for place, count in enumerate(longer))
