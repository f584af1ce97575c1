"""Spans and tokens as pieces of text: their bytes, and which lie before an offset. It knows offsets only."""

from collections.abc import Iterable
from typing import Protocol


class Piece(Protocol):
    """A span, a token or a choice."""

    @property
    def data(self) -> bytes: ...


def bytes_of(pieces: Iterable[Piece]) -> bytes:
    """All of them, joined."""
    return b"".join(piece.data for piece in pieces)


def size_of(pieces: Iterable[Piece]) -> int:
    """Bytes of all of them."""
    return sum(len(piece.data) for piece in pieces)


def begun_before(offset: int, begin: int, pieces: Iterable[Piece]) -> int:
    """Of pieces from offset `begin` on, how many have a byte before that offset."""
    count, at = 0, begin
    for piece in pieces:
        count += bool(piece.data) and at < offset
        at += len(piece.data)
    return count


def whole_before(offset: int, begin: int, pieces: Iterable[Piece]) -> int:
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
