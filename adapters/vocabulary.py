"""A table id -> bytes: the only bridge between target tokens and drafted bytes.

Two profiles have such a table: byte-level BPE with the GPT-2 byte alphabet, and SentencePiece BPE with byte
fallback (`<0xAB>` pieces, U+2581 for a space). Everything else is refused with the name of what was found.
Deltas come from this table and no decode option touches them, so their concatenation is the full bytes at
every step (case A2). Ids without bytes are control tokens and padding rows of the embedding.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from grimboost.errors import ModelReferenceError, VocabularyError

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary:
    """Bytes of each id; None for an id that has none. Immutable, safe to share between threads."""

    def __init__(self, table: Sequence[bytes | None], profile: str = "bytes") -> None:
        self.table = tuple(table)
        self.profile = profile

    def __len__(self) -> int:
        return len(self.table)

    def data(self, id: int) -> bytes:
        """Bytes of `id`, empty for a control token or an id beyond the table."""
        return (self.table[id] or b"") if 0 <= id < len(self.table) else b""

    def join(self, ids: Iterable[int]) -> bytes:
        """Bytes of a sequence of ids."""
        return b"".join(self.data(id) for id in ids)

    def draft_bytes(self, ids: Iterable[int]) -> bytes:
        """Bytes of drafted ids, up to the first one that has none: such an id ends a draft (case A5)."""
        parts = []
        for id in ids:
            data = self.data(id)
            if not data:
                break
            parts.append(data)
        return b"".join(parts)

    @cached_property
    def ids(self) -> Mapping[bytes, int]:
        """The inverse, lowest id first where two ids have the same bytes."""
        inverse: dict[bytes, int] = {}
        for id, data in enumerate(self.table):
            if data:
                inverse.setdefault(data, id)
        return inverse

    @cached_property
    def longest(self) -> int:
        """Length in bytes of the longest token."""
        return max((len(data) for data in self.table if data), default=0)


def gpt2_alphabet() -> dict[str, int]:
    """The printable stand-ins of the 256 bytes in byte-level BPE vocabularies (GPT-2, `bytes_to_unicode`).

    Printable Latin-1 bytes stand for themselves, the others for the characters from U+0100 on, in order.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in plain}
    hidden = [byte for byte in range(256) if byte not in set(plain)]
    return alphabet | {chr(0x100 + place): byte for place, byte in enumerate(hidden)}


class _Model(Struct):
    """What the table depends on. Above all not the merges: stepping over them halves the time."""

    type: str | None = None
    vocab: Any = None
    unk_token: str | None = None
    byte_fallback: bool | None = None
    end_of_word_suffix: str | None = None
    continuing_subword_prefix: str | None = None


class _Added(Struct):
    id: int
    content: str
    special: bool


class _File(Struct):
    """A `tokenizer.json`."""

    model: _Model = msgspec.field(default_factory=_Model)
    added_tokens: list[_Added] = msgspec.field(default_factory=list[_Added])
    decoder: dict[str, Any] | None = None


def vocabulary_of(tokenizer_json: str) -> Vocabulary:
    """Read the table out of a `tokenizer.json`.

    Raises `VocabularyError` naming an unsupported profile, `msgspec.DecodeError` for what is no such file.
    """
    file = msgspec.json.decode(tokenizer_json, type=_File)
    model, added = file.model, file.added_tokens
    pieces = _pieces(model)
    profile = _profile(file)
    spell = _spell_gpt2 if profile == "gpt2-bytes" else _spell_sentencepiece
    size = max([*pieces.values(), *(token.id for token in added)], default=-1) + 1
    table: list[bytes | None] = [None] * size
    named = {token.id for token in added}  # spelled as text, not in the byte alphabet
    for piece, id in pieces.items():
        if id not in named:
            table[id] = spell(piece)
    for token in added:
        table[token.id] = None if token.special else token.content.encode()
    if profile == "sentencepiece-byte-fallback" and model.unk_token in pieces:
        table[pieces[model.unk_token]] = None
    return Vocabulary(table, profile)


def _pieces(model: _Model) -> dict[str, int]:
    if model.type != "BPE":
        raise VocabularyError(
            f"unsupported vocabulary: a {model.type} model. Supported are byte-level BPE (GPT-2 byte alphabet) "
            "and SentencePiece BPE with byte fallback"
        )
    for mark in ("end_of_word_suffix", "continuing_subword_prefix"):
        if getattr(model, mark):  # in the pieces, but not in the text
            raise VocabularyError(f"unsupported vocabulary: BPE with {mark} {getattr(model, mark)!r}")
    return msgspec.convert(model.vocab, dict[str, int])


def _profile(file: _File) -> str:
    decoders = _kinds(file.decoder)
    if "ByteLevel" in decoders:
        return "gpt2-bytes"
    if file.model.byte_fallback and "ByteFallback" in decoders:
        return "sentencepiece-byte-fallback"
    raise VocabularyError(
        f"unsupported vocabulary: BPE with decoder {' + '.join(decoders) or 'none'} and byte_fallback "
        f"{bool(file.model.byte_fallback)}. Its ids have no table of bytes"
    )


def check_rows(vocabulary: Vocabulary, rows: int, directory: Path) -> None:
    """Raise `ModelReferenceError` if ids of the tokenizer have no row in the model's embedding."""
    if len(vocabulary) > rows:
        raise ModelReferenceError(
            f"the tokenizer in {directory} has {len(vocabulary)} ids, the model only {rows}: they do not belong "
            "together"
        )


def _kinds(part: Mapping[str, Any] | None) -> list[str]:
    """Types of a tokenizer component, members of a Sequence included."""
    if part is None:
        return []
    inner = part.get("decoders") or part.get("pretokenizers") or part.get("normalizers") or []
    return [part["type"], *(kind for member in inner for kind in _kinds(member))]


def _spell_gpt2(piece: str) -> bytes:
    try:
        return piece.translate(_GPT2).encode("latin-1")
    except UnicodeEncodeError as error:
        raise VocabularyError(
            f"unsupported vocabulary: piece {piece!r} has {piece[error.start]!r}, which is not in the GPT-2 byte "
            "alphabet"
        ) from None


def _spell_sentencepiece(piece: str) -> bytes:
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


_NO_BYTE = "\N{REPLACEMENT CHARACTER}"
_GPT2 = dict.fromkeys(range(0x100), _NO_BYTE) | {
    ord(stand_in): chr(byte) for stand_in, byte in gpt2_alphabet().items()
}
"""Stand-in -> the character with its byte's number; what stands for none becomes one that is no byte."""
