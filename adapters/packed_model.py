"""A Llama-shaped model with its weights packed for one precision: made from safetensors and GGUF blocks, kept.

A precision says how weights lie in memory: `fp32` and `bf16` as such; `int8` and `int4` in groups of 32, with
rows rounded to bytes when they meet them. What the GGUF file holds with the bits asked for is taken code for
code; everything else is rounded here once. The embedding and the output head are never below 8 bits. Keys and
values are kept in float32 for `fp32` and in float16 otherwise; all sums are float32.

The file: a header in JSON behind its length and checksum, then each array at a multiple of 64 bytes. It knows
no kernels and no slots.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from grimboost.adapters.llama_shape import LlamaShape, shape_of
from grimboost.adapters.packed_layout import PackedMatrix, pack_blocks, pack_floats, stack_blocks
from grimboost.adapters.quantized_blocks import Blocks, quantize
from grimboost.adapters.target import Precision
from grimboost.errors import ModelReferenceError
from grimboost.kernels.tiles import GROUP, LANES, Format

MAGIC = b"grimpack"
VERSION = 2
ALIGNMENT = 64
_PAGE = 4096
_START = struct.Struct("<8sHII")
_LARGEST_HEADER = 1 << 24

Floats = NDArray[np.float32]


class PackedModel(Struct, frozen=True, eq=False):
    """matrices: for each layer q, k, v in one; the attention's output; gate and up in one (each padded to a
    multiple of 32 rows); down; then the output head and the embedding. biases: one for each, or None. norms:
    [2 * layers + 1, hidden]; head_norms: [2 * layers, size], or [0, size]."""

    shape: LlamaShape
    precision: Precision
    matrices: list[PackedMatrix]
    biases: list[Floats | None]
    norms: Floats
    head_norms: Floats

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a pass over one row reads; the embedding's are not among them."""
        return sum(matrix.data.nbytes for matrix in self.matrices[:-1])


class _Place(Struct, frozen=True):
    """Where an array lies, from the beginning of the data."""

    name: str
    format: int
    tiles: int
    offset: int
    size: int


class _Header(Struct, frozen=True):
    shape: LlamaShape
    precision: Precision
    places: list[_Place]


def pack_model(
    shape: LlamaShape,
    tensors: Mapping[str, Floats],
    blocks: Mapping[str, Blocks],
    precision: Precision,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PackedModel:
    """Pack float32 tensors, by their names in transformers; `blocks` are the quantized matrices of their source.

    Raises `ModelReferenceError` if a tensor is missing or of another shape.
    """
    source = _Source(shape, tensors, blocks, precision)
    matrices: list[PackedMatrix] = []
    biases: list[Floats | None] = []
    queries, keys, mlp = shape.heads * shape.size, shape.kv_heads * shape.size, -(-shape.mlp // GROUP) * GROUP
    for layer in range(shape.layers):
        attention, feed = f"model.layers.{layer}.self_attn.", f"model.layers.{layer}.mlp."
        qkv = [(f"{attention}{one}_proj", queries if one == "q" else keys) for one in "qkv"]
        for parts, columns, pad_rows in (
            (qkv, shape.hidden, 0),
            ([(f"{attention}o_proj", shape.hidden)], queries, 0),
            ([(f"{feed}gate_proj", shape.mlp), (f"{feed}up_proj", shape.mlp)], shape.hidden, mlp),
            ([(f"{feed}down_proj", shape.hidden)], shape.mlp, 0),
        ):
            matrices.append(source.matrix(parts, columns, pad_rows))
            biases.append(source.bias(parts, pad_rows))
        progress(layer + 1, shape.layers)
    matrices.append(source.wide_matrix("model.embed_tokens" if shape.tied else "lm_head"))
    matrices.append(matrices[-1] if shape.tied else source.wide_matrix("model.embed_tokens"))
    biases += [None, None]
    names = [f"model.layers.{i}.{n}_layernorm" for i in range(shape.layers) for n in ("input", "post_attention")]
    norms = np.stack([source.vector(name, shape.hidden) for name in (*names, "model.norm")])
    head_names = [f"model.layers.{i}.self_attn.{n}_norm" for i in range(shape.layers) for n in "qk"]
    head_norms = [source.vector(name, shape.size) for name in head_names if shape.head_norms]
    return PackedModel(
        shape, precision, matrices, biases, norms, np.array(head_norms, np.float32).reshape(-1, shape.size)
    )


def pack_loaded(model: Any, precision: Precision, blocks: Mapping[str, Blocks] | None = None) -> PackedModel:
    """Pack a transformers model of the Llama family that is in memory. Errors as in `pack_model`."""
    try:
        shape = shape_of(model.config.to_dict())
    except (ValueError, KeyError, TypeError) as error:
        raise ModelReferenceError(f"cannot pack this model: {error}") from error
    tensors = {name: tensor.detach().float().numpy() for name, tensor in model.state_dict().items()}
    return pack_model(shape, tensors, blocks or {}, precision)


_Part: TypeAlias = tuple[str, int]
"""A matrix's name in transformers, without `.weight`, and its rows."""


class _Source:
    """The tensors of a model, and how this precision wants them."""

    def __init__(
        self,
        shape: LlamaShape,
        tensors: Mapping[str, Floats],
        blocks: Mapping[str, Blocks],
        precision: Precision,
    ) -> None:
        self.shape, self.tensors, self.blocks, self.precision = shape, tensors, blocks, precision

    def wide_matrix(self, name: str) -> PackedMatrix:
        """The embedding or the output head: never below 8 bits."""
        return self.matrix([(name, self.shape.vocabulary)], self.shape.hidden, wide=True)

    def matrix(self, parts: list[_Part], columns: int, pad_rows: int = 0, wide: bool = False) -> PackedMatrix:
        """Matrices one below the other, each padded to `pad_rows`."""
        if self.precision in {"fp32", "bf16"}:
            found = [_padded(self.tensor(part, columns), pad_rows) for part in parts]
            return pack_floats(np.concatenate(found), Format.F32 if self.precision == "fp32" else Format.BF16)
        bits = 4 if self.precision == "int4" and not wide else 8
        return pack_blocks(stack_blocks([self._blocks(part, columns, bits, pad_rows) for part in parts]))

    def _blocks(self, part: _Part, columns: int, bits: int, pad_rows: int) -> Blocks:
        name, height = part
        found = self.blocks.get(f"{name}.weight")
        if found is None or found.bits != bits:
            tensor = _padded(self.tensor(part, columns), pad_rows)
            try:
                return quantize(tensor, bits)
            except ValueError as error:
                raise ModelReferenceError(f"{name}.weight cannot be rounded: {error}") from error
        _expect(f"{name}.weight", (len(found.codes), found.columns), (height, columns))
        rows = pad_rows - height
        if rows <= 0:
            return found
        nothing = Blocks(  # rows of scale 0
            bits,
            found.columns,
            np.zeros((rows, found.codes.shape[1]), np.uint8),
            np.zeros((rows, found.scale.shape[1]), np.float16),
            None if found.minimum is None else np.zeros((rows, found.scale.shape[1]), np.float16),
        )
        return stack_blocks([found, nothing])

    def tensor(self, part: _Part, columns: int) -> Floats:
        """A float32 matrix."""
        name, rows = part
        return self._named(f"{name}.weight", (rows, columns))

    def vector(self, name: str, size: int) -> Floats:
        """A norm's weights [size]."""
        return self._named(f"{name}.weight", (size,))

    def bias(self, parts: list[_Part], pad_rows: int = 0) -> Floats | None:
        """The biases of a stacked matrix, padded to whole tiles; None if it has none."""
        if not any(f"{name}.bias" in self.tensors for name, _ in parts):
            return None
        whole = []
        for name, rows in parts:
            has = f"{name}.bias" in self.tensors
            one = self._named(f"{name}.bias", (rows,)) if has else np.zeros(rows, np.float32)
            whole.append(np.pad(one, (0, max(0, pad_rows - rows))))
        stacked = np.concatenate(whole)
        return np.pad(stacked, (0, -len(stacked) % LANES)).astype(np.float32)

    def _named(self, name: str, shape: tuple[int, ...]) -> Floats:
        try:
            found = self.tensors[name]
        except KeyError:
            raise ModelReferenceError(f"the weights have no tensor {name}") from None
        _expect(name, found.shape, shape)
        if not np.isfinite([found.min(), found.max()]).all():
            raise ModelReferenceError(f"{name} has values that are not finite")
        return found


def _expect(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise ModelReferenceError(f"{name} has the shape {shape}; the configuration says {expected}")


def _padded(matrix: Floats, rows: int) -> Floats:
    missing = rows - len(matrix)
    return np.pad(matrix, ((0, missing), (0, 0))) if missing > 0 else matrix


# ------------------------------------------------------------ the file


def save(model: PackedModel, file: Path) -> None:
    """Write a packed model; the caller gives a name that nobody reads yet."""
    arrays = list(_arrays(model))
    places, offset = [], 0
    for name, format, tiles, array in arrays:
        places.append(_Place(name, format, tiles, offset, array.nbytes))
        offset += _aligned(array.nbytes)
    header = msgspec.json.encode(_Header(model.shape, model.precision, places))
    with file.open("wb") as stream:
        stream.write(_START.pack(MAGIC, VERSION, len(header), zlib.crc32(header)) + header)
        start = _data_start(len(header))
        for place, (*_, array) in zip(places, arrays, strict=True):
            stream.seek(start + place.offset)
            stream.write(array.data if array.nbytes else b"")
        stream.truncate(start + offset)


def load(file: Path) -> PackedModel:
    """Map a packed model: nothing is read before it is used, and processes share what is in memory.

    Raises `ModelReferenceError` if the file is damaged.
    """
    try:
        with file.open("rb") as stream:
            magic, version, size, checksum = _START.unpack(stream.read(_START.size))
            if (magic, version) != (MAGIC, VERSION):
                raise ValueError("it is not a packed model of this version")
            raw = stream.read(min(size, _LARGEST_HEADER))
        # offsets and sizes become addresses: damaged ones must not get that far
        if zlib.crc32(raw) != checksum:
            raise ValueError("its header is damaged")
        header = _DECODER.decode(raw)
        begin = _data_start(size)
        if file.stat().st_size != begin + sum(_aligned(place.size) for place in header.places):
            raise ValueError("it is cut short")
        data = np.memmap(file, np.uint8, "r", offset=begin)
    except (OSError, ValueError, struct.error, msgspec.MsgspecError) as error:
        raise ModelReferenceError(f"cannot read the packed weights in {file}: {error}") from error
    return _assembled(header, np.asarray(data))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _data_start(header_size: int) -> int:
    return -(-(_START.size + header_size) // _PAGE) * _PAGE


def _arrays(model: PackedModel) -> Iterable[tuple[str, int, int, NDArray[np.uint8]]]:
    count = len(model.matrices) - (1 if model.shape.tied else 0)
    for place, matrix in enumerate(model.matrices[:count]):
        yield f"matrix {place}", int(matrix.format), matrix.tiles, matrix.data
    for place, bias in enumerate(model.biases):
        if bias is not None:
            yield f"bias {place}", 0, 0, bias.view(np.uint8)
    yield "norms", 0, 0, np.ascontiguousarray(model.norms).view(np.uint8)
    yield "head norms", 0, 0, np.ascontiguousarray(model.head_norms).view(np.uint8)


def _assembled(header: _Header, data: NDArray[np.uint8]) -> PackedModel:
    shape = header.shape
    matrices: list[PackedMatrix] = []
    biases: list[Floats | None] = [None] * (4 * shape.layers + 2)
    named: dict[str, Floats] = {}
    for place in header.places:
        array = data[place.offset : place.offset + place.size]
        if place.name.startswith("matrix"):
            matrices.append(PackedMatrix(Format(place.format), array.reshape(place.tiles, -1)))
        elif place.name.startswith("bias"):
            biases[int(place.name.split()[1])] = array.view(np.float32)
        else:
            named[place.name] = array.view(np.float32)
    if shape.tied:
        matrices.append(matrices[-1])
    norms = named["norms"].reshape(-1, shape.hidden)
    return PackedModel(
        shape, header.precision, matrices, biases, norms, named["head norms"].reshape(-1, shape.size)
    )


def read_tensors(files: Iterable[Path]) -> dict[str, Floats]:
    """All tensors of safetensors files as float32 arrays. Imports torch, for bfloat16; done once per model."""
    from safetensors.torch import load_file

    return {name: tensor.float().numpy() for file in files for name, tensor in load_file(file).items()}


_DECODER = msgspec.json.Decoder(_Header)
