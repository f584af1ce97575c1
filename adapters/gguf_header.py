"""The header of a GGUF file: its scalar metadata, and where its tensors lie. Quick, for it walks over the lists.

`gguf.GGUFReader` makes an object of each token and merge, which takes seconds for a large vocabulary; here
they are only stepped over, in hundredths of one. Little-endian files of version 2 and 3. It knows no model
family and reads no weights. Source: the GGUF specification in the ggml repository (docs/gguf.md).
"""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

Scalar = int | float | bool | str

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_VERSIONS = (2, 3)
_ALIGNMENT = 32


class TensorPlace(Struct, frozen=True):
    """`kind` is ggml's number of the type. `shape` has the rows first, unlike the file. `offset` is in bytes."""

    kind: int
    shape: tuple[int, ...]
    offset: int


class GgufHeader(Struct, frozen=True):
    """`scalars` holds numbers and texts by key, no lists. `tensors` are in the order of the file."""

    scalars: dict[str, Scalar]
    tensors: dict[str, TensorPlace]


def read_header(file: Path) -> tuple[GgufHeader, mmap.mmap]:
    """The header, and the mapped file that its offsets point into.

    Raises `ValueError` for what is no such file, `OSError` for one that cannot be read, and `struct.error` or
    `UnicodeDecodeError` for one that is cut short or damaged.
    """
    with file.open("rb") as stream:
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    return _Cursor(data).header(), data


class _Cursor:
    """A place in the header that moves on with everything that is read."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def header(self) -> GgufHeader:
        magic, version, tensors, entries = self._data[:4], *struct.unpack_from("<IQQ", self._data, 4)
        if magic != b"GGUF" or version not in _VERSIONS:
            raise ValueError(f"it begins with {magic!r}, version {version}: no GGUF file of version 2 or 3")
        self._at = 24
        scalars = dict(self._entries(entries))
        places = [self._tensor() for _ in range(tensors)]
        start = _aligned(self._at, int(scalars.get("general.alignment", _ALIGNMENT)))
        return GgufHeader(
            scalars, {name: TensorPlace(kind, shape, start + at) for name, kind, shape, at in places}
        )

    def _entries(self, count: int) -> Iterator[tuple[str, Scalar]]:
        for _ in range(count):
            key, kind = self._text(), self._number("<I")
            if kind == _ARRAY:
                self._skip_array()
            else:
                yield key, self._text() if kind == _STRING else self._number(_format(kind))

    def _tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._text()
        reversed_shape = [self._number("<Q") for _ in range(self._number("<I"))]
        return name, self._number("<I"), tuple(reversed(reversed_shape)), self._number("<Q")

    def _number(self, form: str) -> int:
        """A number of any kind. (Typed as the integer that most are.)"""
        value: int = struct.unpack_from(form, self._data, self._at)[0]
        self._at += struct.calcsize(form)
        return value

    def _text(self) -> str:
        size = self._number("<Q")
        self._at += size
        if self._at > len(self._data):
            raise ValueError("it ends inside its header")
        return self._data[self._at - size : self._at].decode()

    def _skip_array(self) -> None:
        kind, count = self._number("<I"), self._number("<Q")
        if kind == _STRING:
            data, at, length = self._data, self._at, struct.Struct("<Q").unpack_from
            for _ in range(count):
                at += 8 + length(data, at)[0]
            self._at = at
        elif kind == _ARRAY:
            for _ in range(count):
                self._skip_array()
        else:
            self._at += count * struct.calcsize(_format(kind))


def _format(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"its header has an entry of the unknown type {kind}")
    return _SCALARS[kind]


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
