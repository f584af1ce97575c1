"""Weights as small integers, a scale for each 32 of a row: out of a GGUF file as they are, or rounded here.

What a GGUF file holds as Q4_0, Q4_1 or Q8_0 is taken bit by bit: no value is rounded a second time. Numpy
only. It knows neither kernels nor how a kernel wants its weights laid out, and no model but Llama, whose
query and key rows llama.cpp stores in another order.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from grimboost.adapters.gguf_header import GgufHeader, TensorPlace, read_header
from grimboost.errors import ModelReferenceError

GROUP = 32
"""Columns that share a scale: the block of all three formats."""

ZERO_8 = 128
"""The code of 8 bits that stands for zero."""

LARGEST = 32768.0
"""Of a weight that `quantize` takes: the minimum and 15 scales above it must fit fp16."""

_REFITS = 3
"""Times that 4-bit lines are refitted. On SmolLM2's embedding they take the error from 8.5 to 8.0 percent."""
_CHUNK = 1 << 16
"""Weights that `quantize` works on at a time, so that its scratch stays in the processor's cache."""

_Q4_0, _Q4_1, _Q8_0 = 2, 3, 8  # ggml's numbers
_BLOCK_BYTES = {_Q4_0: 2 + 16, _Q4_1: 4 + 16, _Q8_0: 2 + 32}
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TENSOR = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.weight")


class Blocks(Struct, frozen=True, eq=False):
    """One matrix. 4 bits: value = scale * code + minimum. 8 bits: value = scale * (code - 128).

    All in fp32, in this order; the products are exact. Where `columns` is no multiple of 32 the last group is
    filled up with columns that count for nothing: feed zeros to them.
    """

    bits: int
    """4 or 8."""
    columns: int
    """How many columns the matrix has; the arrays are padded to whole groups."""
    codes: NDArray[np.uint8]
    """[out, in]: 0 to 15, or 0 to 255 (1 to 255 from `quantize`)."""
    scale: NDArray[np.float16]
    """[out, in / 32]; of either sign."""
    minimum: NDArray[np.float16] | None
    """[out, in / 32]; None for 8 bits."""

    def values(self) -> NDArray[np.float32]:
        """The matrix [out, columns] in fp32."""
        out, padded = self.codes.shape
        grouped = self.codes.reshape(out, -1, GROUP).astype(np.float32)
        scale = self.scale[..., None].astype(np.float32)
        if self.minimum is None:
            values = scale * (grouped - ZERO_8)
        else:
            values = scale * grouped + self.minimum[..., None].astype(np.float32)
        return values.reshape(out, padded)[:, : self.columns]


# ------------------------------------------------------------ out of a GGUF file


def read_blocks(file: Path) -> Mapping[str, Blocks]:
    """The quantized matrices of a Llama's GGUF file, by their names in transformers; q and k in its row order.

    A matrix is unpacked when it is asked for, from the mapped file, and not kept. Those of other formats are
    left out. Raises `ModelReferenceError` if the file is damaged or of another architecture.
    """
    try:
        header, data = read_header(file)
        quantized = {
            name: place
            for gguf_name, place in header.tensors.items()
            if place.kind in _BLOCK_BYTES and (name := _name(gguf_name))
        }
        for place in quantized.values():
            _check(place, len(data))
        heads = _heads(header)
    except (OSError, ValueError, struct.error) as error:
        raise ModelReferenceError(f"the quantized weights in {file} cannot be read: {error}") from error
    return _FileBlocks(np.frombuffer(data, np.uint8), quantized, heads)


class _FileBlocks(Mapping[str, Blocks]):
    """Keeps the file mapped for as long as it lives."""

    def __init__(self, data: NDArray[np.uint8], places: dict[str, TensorPlace], heads: dict[str, int]) -> None:
        self._data, self._places, self._heads = data, places, heads

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, name: str) -> Blocks:
        place = self._places[name]
        out, columns = place.shape
        size = _BLOCK_BYTES[place.kind]
        raw = self._data[place.offset : place.offset + out * columns // GROUP * size]
        raw = raw.reshape(out, columns // GROUP, size)
        heads = self._heads.get(name.rpartition(".self_attn.")[2])
        return _unpacked(place.kind, raw if heads is None else _in_halves(raw, heads), columns)


def _name(gguf_name: str) -> str:
    """The name in transformers; empty if it is no matrix that is known."""
    match = _TENSOR.fullmatch(gguf_name)
    name = _NAMES.get(match[2], "") if match else ""
    return f"model.layers.{match[1]}.{name}.weight" if match and match[1] and name else name and f"{name}.weight"


def _heads(header: GgufHeader) -> dict[str, int]:
    architecture = header.scalars.get("general.architecture")
    if architecture != "llama":
        raise ValueError(f"its architecture is {architecture!r}, not 'llama'")
    heads = int(header.scalars.get("llama.attention.head_count", 1))
    kv_heads = int(header.scalars.get("llama.attention.head_count_kv", heads))
    return {"q_proj.weight": heads, "k_proj.weight": kv_heads}


def _check(place: TensorPlace, size: int) -> None:
    if len(place.shape) != 2 or place.shape[1] % GROUP:
        raise ValueError(f"a quantized tensor has the shape {place.shape}")
    if place.offset + place.shape[0] * place.shape[1] // GROUP * _BLOCK_BYTES[place.kind] > size:
        raise ValueError("it is cut short")


def _in_halves(raw: NDArray[np.uint8], heads: int) -> NDArray[np.uint8]:
    """Undo llama.cpp's row order. Its rotary embedding turns neighbours, transformers' turns halves of a head."""
    neighbours = raw.reshape(heads, raw.shape[0] // heads // 2, 2, *raw.shape[1:])
    return neighbours.swapaxes(1, 2).reshape(raw.shape)


def _unpacked(kind: int, raw: NDArray[np.uint8], columns: int) -> Blocks:
    """`raw` [out, groups, bytes of a block] -> a matrix. A block: scale, minimum if it is Q4_1, codes."""
    out = raw.shape[0]
    scale = _halfs(raw, 0)
    if kind == _Q8_0:  # two's complement with the sign bit flipped is the value + 128
        return Blocks(8, columns, (raw[..., 2:] ^ np.uint8(0x80)).reshape(out, columns), scale, None)
    minimum = _halfs(raw, 2) if kind == _Q4_1 else scale * np.float16(-8)  # a power of two: exact
    packed = raw[..., -16:]  # byte i holds code i, and above it code i + 16
    codes = np.empty((*raw.shape[:2], GROUP), np.uint8)
    np.bitwise_and(packed, 15, out=codes[..., :16])
    np.right_shift(packed, 4, out=codes[..., 16:])
    return Blocks(4, columns, codes.reshape(out, columns), scale, minimum)


def _halfs(raw: NDArray[np.uint8], at: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(raw[..., at : at + 2]).view("<f2")[..., 0]


# ------------------------------------------------------------ rounded here


def quantize(weight: NDArray[np.float32], bits: int) -> Blocks:
    """Round a matrix [out, in] to 8 bits, symmetric, or to 4 bits, each group on a line of its own.

    Columns that fill up the last group are rounded as zeros: exactly zero with 8 bits, near it with 4. The
    same weights give the same blocks everywhere: all sums go in a fixed order. Raises `ValueError` for other
    `bits`, for what is no matrix, and for weights that are not finite or beyond `LARGEST`.
    """
    if bits not in {4, 8}:
        raise ValueError(f"bits is {bits}; known are 4 and 8")
    if weight.ndim != 2 or not weight.size:
        raise ValueError(f"weights of shape {weight.shape} are no matrix")
    if not max(weight.max(), -weight.min()) <= LARGEST:  # written so that it is true of NaN
        raise ValueError(f"there are weights that are not finite or beyond {LARGEST:g}")
    out, columns = weight.shape
    if columns % GROUP:
        weight = np.pad(weight, ((0, 0), (0, -columns % GROUP)))
    groups = weight.astype(np.float32, copy=False).reshape(-1, GROUP)
    codes = np.empty(groups.shape, np.uint8)
    lines = np.empty((2, len(groups)), np.float16)  # scale and minimum
    for at in range(0, len(groups), _CHUNK // GROUP):
        part = slice(at, at + _CHUNK // GROUP)
        # With the groups side by side, whatever is done for each group runs along the fast axis.
        chunk = np.ascontiguousarray(groups[part].T)
        found, lines[0, part], lines[1, part] = _round_8(chunk) if bits == 8 else _round_4(chunk)
        codes[part] = found.T
    scale, minimum = lines.reshape(2, out, -1)
    return Blocks(bits, columns, codes.reshape(out, -1), scale, minimum if bits == 4 else None)


_Floats = NDArray[np.float32]


def _round_8(weights: _Floats) -> tuple[_Floats, _Floats, _Floats]:
    """[32, groups] -> codes of that shape, scale and a minimum that is not used [groups]."""
    scale = _in_half(np.abs(weights).max(0) / np.float32(127))
    codes = np.rint(weights * _reciprocal(scale)).clip(-127, 127) + ZERO_8
    return codes, scale, np.zeros_like(scale)


def _round_4(weights: _Floats) -> tuple[_Floats, _Floats, _Floats]:
    """[32, groups] -> codes of that shape, scale and minimum [groups].

    The line from the smallest to the largest weight, then, as Lloyd's method for scalar quantization does: for
    given codes the line that fits best (least squares), for that line the nearest codes. What does not lessen
    a group's error is not taken: lines are rounded to fp16, so the error may rise.
    """
    low, mean = weights.min(0), weights.mean(0)
    scale, minimum = (weights.max(0) - low) / np.float32(15), low
    codes, scale, minimum, error = _nearest(weights, scale, minimum)
    for _ in range(_REFITS):
        code_mean = codes.mean(0)
        spread = codes - code_mean
        variance = (spread * spread).sum(0)
        slope = np.divide((spread * weights).sum(0), variance, out=scale.copy(), where=variance > 0)
        tried = _nearest(weights, slope, mean - slope * code_mean)
        for old, new in zip((codes, scale, minimum), tried, strict=False):
            np.copyto(old, new, where=tried[3] < error)
        error = np.minimum(error, tried[3])
    return codes, scale, minimum


def _nearest(weights: _Floats, scale: _Floats, minimum: _Floats) -> tuple[_Floats, _Floats, _Floats, _Floats]:
    """Codes nearest to the weights on the line as fp16 has it, that line, and each group's squared error."""
    scale, minimum = _in_half(scale), _in_half(minimum)
    codes = np.rint((weights - minimum) * _reciprocal(scale)).clip(0, 15)
    off = codes * scale + minimum - weights
    return codes, scale, minimum, (off * off).sum(0)


def _in_half(values: _Floats) -> _Floats:
    return values.astype(np.float16).astype(np.float32)


def _reciprocal(scale: _Floats) -> _Floats:
    """1 / scale; 0 for a scale of 0, which groups of equal weights have."""
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
