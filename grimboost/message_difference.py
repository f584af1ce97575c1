"""Two messages or configurations compared field by field: what differs, by dotted name.

It knows nothing of what fields mean.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from grimboost.lineage import same
from grimboost.message_text import Words

_SHORT = 60


class FieldDifference(Struct, frozen=True):
    """`name`: such as `tokens.3.data`. None stands for a field or an element that one side lacks."""

    name: str
    one: str | None
    other: str | None


def side(text: str | None) -> str:
    """What a field difference has on one side."""
    return "nothing" if text is None else text


def differing(one: Any, other: Any, words: Words, name: str = "") -> Iterator[FieldDifference]:
    """What differs between two values of any kind that a message holds."""
    if type(one) is not type(other):
        yield FieldDifference(name, _text(one, words), _text(other, words))
    elif isinstance(one, Struct):
        for field in one.__struct_fields__:
            yield from differing(getattr(one, field), getattr(other, field), words, _join(name, field))
    elif isinstance(one, dict):
        for key in {**one, **other}:
            inner = _join(name, str(key))
            yield from _element(one.get(key), key in one, other.get(key), key in other, words, inner)
    elif isinstance(one, tuple | list):
        for place in range(max(len(one), len(other))):
            ones, others = place < len(one), place < len(other)
            here, there = one[place] if ones else None, other[place] if others else None
            yield from _element(here, ones, there, others, words, _join(name, str(place)))
    elif not same(one, other):
        yield FieldDifference(name, _text(one, words), _text(other, words))


def _element(
    one: Any, has: bool, other: Any, has_other: bool, words: Words, name: str
) -> Iterator[FieldDifference]:
    if has and has_other:
        yield from differing(one, other, words, name)
    else:
        yield FieldDifference(name, _text(one, words) if has else None, _text(other, words) if has_other else None)


def _join(name: str, field: str) -> str:
    return f"{name}.{field}" if name else field


def _text(value: Any, words: Words) -> str:
    if isinstance(value, bytes):
        return words.quote(value)
    if isinstance(value, Struct):
        fields = (_text(getattr(value, field), words) for field in value.__struct_fields__)
        return _cut(f"{type(value).__name__}({', '.join(fields)})")
    if isinstance(value, tuple | list):
        return _cut(f"({', '.join(_text(one, words) for one in value)})")
    return _cut(str(value))


def _cut(text: str) -> str:
    printable = "".join(char if char.isprintable() else "?" for char in text)
    return printable if len(printable) <= _SHORT else f"{printable[: _SHORT - 1]}…"
