"""Candidate bytes -> presumptive target tokens, in the context of the committed bytes before them.

The committed path is never re-tokenized: only what lies behind the frontier is cut. The tokenizer sees the
committed tail and the candidate together, as the target's own text would have been cut; where one of its
tokens straddles the frontier, the candidate is cut by itself. Bytes that are no text (half a character at
either end, foreign bytes) are cut by the longest match in the vocabulary. Ids without bytes never come out.

It does not know drafters, epochs or caches.
"""

import re
from collections.abc import Sequence
from functools import cached_property
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
    """Cuts with the target's own tokenizer. None is ever changed, so threads may share them (case D7).

    `shared` is one made from the same `tokenizer_json`, without truncation and padding. To make another takes
    a tenth of a second in which no other thread runs, and it is needed only for text that looks like a control
    token: that is only text.
    """

    def __init__(self, tokenizer_json: str, vocabulary: Vocabulary, shared: Tokenizer | None = None) -> None:
        self._json = tokenizer_json
        self._vocabulary = vocabulary
        self._longest_match = LongestMatchSegmenter(vocabulary)
        self._shared = shared
        self._control = _control_texts(shared) if shared else []

    def _tokenizer_for(self, text: str) -> Tokenizer:
        if self._shared is None or any(control in text for control in self._control):
            return self._own
        return self._shared

    @cached_property
    def _own(self) -> Tokenizer:
        tokenizer = Tokenizer.from_str(self._json)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        return tokenizer

    def segment(self, tail: bytes, candidate: bytes, whole: bool = False) -> list[Piece]:
        head, text, rest = _split_text(candidate)
        if head:  # the candidate goes on inside a character that the committed bytes have begun
            pieces = self._longest_match.cut(head)
            if spans_cover(pieces) == len(head):
                pieces += self._cut(b"", text, rest)
            return _drop_last(pieces, whole)
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
        return None if pieces is None else _behind(pieces, len(context))

    def _encode(self, text: bytes) -> list[Piece] | None:
        """The tokenizer's cut of `text` if it spells exactly these bytes."""
        pieces = self._tokenized(text)
        spelled = b"".join(data for _, data in pieces)
        if not all(data for _, data in pieces):
            return None
        if spelled == text:
            return pieces
        if spelled == b" " + text:  # SentencePiece's dummy prefix: a line break takes it away from the text
            return _behind(self._tokenized(b"\n" + text), len(b" \n"))
        return None

    def _tokenized(self, text: bytes) -> list[Piece]:
        decoded = text.decode()
        ids = self._tokenizer_for(decoded).encode(decoded, add_special_tokens=False).ids
        return [(id, self._vocabulary.data(id)) for id in ids]


def _control_texts(tokenizer: Tokenizer) -> list[str]:
    """Texts of which one must occur wherever the tokenizer would find a control token.

    Such as are looked for in normalized text (few are) could be spelled otherwise: for them the empty text,
    which occurs everywhere.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    return ["" if token.normalized else token.content for token in added if token.special]


def _behind(pieces: list[Piece], size: int) -> list[Piece] | None:
    """The pieces from byte `size` on; None if that byte is inside one."""
    at = 0
    for place, (_, data) in enumerate(pieces):
        if at >= size:
            return pieces[place:] if at == size else None
        at += len(data)
    return None


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
