"""Candidate bytes -> presumptive target tokens, in the context of the committed bytes before them.

The committed path is never re-tokenized: only what lies behind the frontier is cut. The tokenizer sees the
committed tail and the candidate together, as the target's own text would have been cut; where one of its
tokens straddles the frontier, the candidate is cut by itself. Bytes that are no text (half a character at
either end, foreign bytes) are cut by the longest match in the vocabulary. Ids without bytes never come out.

It does not know drafters, epochs or caches.
"""

import re
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer

from grimboost.adapters.vocabulary import Vocabulary

TAIL_BYTES = 48
"""Committed bytes that the tokenizer sees before the candidate; pre-tokenizers split at spaces, so a word or
two decide."""

Piece = tuple[int, bytes]


class Segmenter(Protocol):
    """What a drafter's worker needs to turn proposals into spans."""

    def segment(self, tail: bytes, candidate: bytes, whole: bool = False) -> list[Piece]:
        """Cut `candidate`, which follows the committed bytes ending in `tail`.

        Returns (id, bytes) in order; their bytes are a prefix of `candidate`. Unless it is `whole`, the last
        piece may be half a word and is dropped if others come before it.
        """
        ...


class LongestMatchSegmenter:
    """Cuts by the longest vocabulary entry; needs no tokenizer. For scripted targets, and bytes without text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def segment(self, tail: bytes, candidate: bytes, whole: bool = False) -> list[Piece]:
        del tail
        return _drop_last(self.cut(candidate), whole)

    def cut(self, candidate: bytes) -> list[Piece]:
        """Cut everything, up to the first byte that no entry begins with."""
        ids, longest, pieces, at = self._vocabulary.ids, self._vocabulary.longest, list[Piece](), 0
        while at < len(candidate):
            for size in range(min(longest, len(candidate) - at), 0, -1):
                id = ids.get(candidate[at : at + size])
                if id is not None:
                    pieces.append((id, candidate[at : at + size]))
                    break
            else:
                return pieces
            at += size
        return pieces


class TokenizerSegmenter:
    """Cuts with the target's own tokenizer. Holds a tokenizer of its own that is never changed (case D7)."""

    def __init__(self, tokenizer_json: str, vocabulary: Vocabulary) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # text that looks like a control token is only text
        self._vocabulary = vocabulary
        self._longest_match = LongestMatchSegmenter(vocabulary)

    def segment(self, tail: bytes, candidate: bytes, whole: bool = False) -> list[Piece]:
        head, text, rest = _split_text(candidate)
        if head:  # the candidate goes on inside a character that the committed bytes have begun
            return _drop_last([*self._longest_match.cut(head), *self._cut(b"", text, rest)], whole)
        return _drop_last(self._cut(tail[-TAIL_BYTES:], text, rest), whole)

    def _cut(self, tail: bytes, text: bytes, rest: bytes) -> list[Piece]:
        if not text:
            return self._longest_match.cut(rest) if rest else []
        pieces = self._in_context(tail, text)
        if pieces is None:
            pieces = self._encode(text)
        if pieces is None:
            pieces = self._longest_match.cut(text)
        return pieces  # a character that `rest` only begins is drafted once its end is known

    def _in_context(self, tail: bytes, text: bytes) -> list[Piece] | None:
        """Cut tail and text together; None if no token boundary falls on the frontier."""
        context = _from_word_start(tail)
        pieces = self._encode(context + text) if context else None
        if pieces is None:
            return None
        at = 0
        for place, (_, data) in enumerate(pieces):
            if at == len(context):
                return pieces[place:]
            at += len(data)
        return None

    def _encode(self, text: bytes) -> list[Piece] | None:
        """The tokenizer's cut of `text` if it spells exactly these bytes."""
        encoding = self._tokenizer.encode(text.decode(), add_special_tokens=False)
        pieces = [(id, self._vocabulary.data(id)) for id in encoding.ids]
        spelled = b"".join(data for _, data in pieces)
        if spelled == b" " + text and pieces[0][1] == b" ":
            pieces = pieces[1:]  # SentencePiece's dummy prefix, as a piece of its own
        elif spelled != text:
            return None
        return pieces if all(data for _, data in pieces) else None


def _drop_last(pieces: list[Piece], whole: bool) -> list[Piece]:
    return pieces if whole or len(pieces) < 2 else pieces[:-1]


def _split_text(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Continuation bytes at the front, the longest valid UTF-8 behind them, and what is left."""
    start = 0
    while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    try:
        data[start:].decode()
        return data[:start], data[start:], b""
    except UnicodeDecodeError as error:
        end = start + error.start
        return data[:start], data[start:end], data[end:]


def _from_word_start(tail: bytes) -> bytes:
    """The tail from its first whole word on, as valid text; empty if it has none."""
    match = re.search(rb"\s\S*$|^[\x21-\x7e]+$", tail)
    context = tail[match.start() :] if match else b""
    try:
        context.decode()
    except UnicodeDecodeError:
        return b""
    return context


def spans_cover(pieces: Sequence[Piece]) -> int:
    """Bytes that the pieces stand for."""
    return sum(len(data) for _, data in pieces)
