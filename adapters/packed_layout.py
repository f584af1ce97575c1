"""Matrices laid out in the tiles that the packed decoder's kernels read. Numpy only.

Rows are padded with zeros to whole tiles of 16 outputs, columns to whole groups of 32 inputs. The layouts are
described in `grimboost.kernels.tiles`. It knows no model.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from grimboost.adapters.quantized_blocks import Blocks
from grimboost.kernels.tiles import BYTES_PER_STEP, GROUP, LANES, QUANTIZED, STEP, Format

Bytes = NDArray[np.uint8]


class PackedMatrix(Struct, frozen=True, eq=False):
    """data: uint8 [tiles, steps * bytes per step], contiguous."""

    format: Format
    data: Bytes

    @property
    def tiles(self) -> int:
        return int(self.data.shape[0])

    @property
    def steps(self) -> int:
        return int(self.data.shape[1]) // BYTES_PER_STEP[self.format]

    @property
    def inputs(self) -> int:
        """Columns, padding included."""
        return self.steps * (GROUP if self.format in QUANTIZED else STEP)

    def values(self) -> NDArray[np.float32]:
        """The matrix that the kernels compute with, padding included, [16 * tiles, inputs]. For tests."""
        data = self.data.reshape(self.tiles, self.steps, -1)
        if self.format not in QUANTIZED:
            lanes = _float_values(self.format, self.data).reshape(self.tiles, self.inputs, LANES)
            return np.ascontiguousarray(lanes.swapaxes(1, 2)).reshape(self.tiles * LANES, self.inputs)
        scale = _halves(data[..., :32])
        if self.format == Format.U8:
            codes = data[..., 32:].reshape(self.tiles, self.steps, 8, LANES, 4)
            values = scale[..., None, :, None] * (codes.astype(np.float32) - 128)
        else:
            both = data[..., 64:]
            codes = np.concatenate((both & 15, both >> 4), -1).reshape(self.tiles, self.steps, 8, LANES, 4)
            values = scale[..., None, :, None] * codes + _halves(data[..., 32:64])[..., None, :, None]
        return values.transpose(0, 3, 1, 2, 4).reshape(self.tiles * LANES, self.inputs)


def pack_floats(weight: NDArray[np.float32], format: Format) -> PackedMatrix:
    """A matrix [out, in] in a format without groups; BF16 and F16 round to nearest, ties to even."""
    rows, columns = weight.shape
    padded = np.zeros((_up(rows, LANES), _up(columns, GROUP)), np.float32)
    padded[:rows, :columns] = weight
    tiles = padded.reshape(-1, LANES, padded.shape[1]).swapaxes(1, 2)
    if format == Format.F32:
        data = np.ascontiguousarray(tiles)
    elif format == Format.F16:
        data = np.ascontiguousarray(tiles.astype(np.float16))
    elif format == Format.BF16:
        data = np.ascontiguousarray(to_bfloat16(tiles))
    else:
        raise ValueError(f"{format.name} is made of blocks")
    return PackedMatrix(format, data.view(np.uint8).reshape(data.shape[0], -1))


def pack_blocks(blocks: Blocks) -> PackedMatrix:
    """A quantized matrix, code for code."""
    rows, columns = blocks.codes.shape
    rows_up = _up(rows, LANES)
    groups = columns // GROUP
    codes = np.zeros((rows_up, columns), np.uint8)
    codes[:rows] = blocks.codes
    # [tile, group, block of 4 inputs, output, input]
    order = codes.reshape(-1, LANES, groups, 8, 4).transpose(0, 2, 3, 1, 4).reshape(-1, groups, 8, 64)
    scale = _half_bytes(blocks.scale, rows_up)
    if blocks.bits == 8:
        parts = [scale, order.reshape(-1, groups, 512)]
        format = Format.U8
    else:
        assert blocks.minimum is not None
        both = np.bitwise_or(order[:, :, :4], np.left_shift(order[:, :, 4:], np.uint8(4)))
        parts = [scale, _half_bytes(blocks.minimum, rows_up), both.reshape(-1, groups, 256)]
        format = Format.U4
    data = np.concatenate(parts, -1)
    return PackedMatrix(format, data.reshape(data.shape[0], -1))


def stack_blocks(parts: Sequence[Blocks]) -> Blocks:
    """Matrices of the same width and bits, one below the other."""
    minima = [part.minimum for part in parts if part.minimum is not None]
    return Blocks(
        parts[0].bits,
        parts[0].columns,
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.scale for part in parts]),
        np.concatenate(minima) if minima else None,
    )


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of float32, rounded to nearest, ties to even. Values are finite."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _half_bytes(values: NDArray[np.float16], rows: int) -> Bytes:
    """[out, groups] -> bytes [tiles, groups, 32]: the 16 outputs of a tile side by side."""
    padded = np.zeros((rows, values.shape[1]), np.float16)
    padded[: values.shape[0]] = values
    lanes = np.ascontiguousarray(padded.reshape(-1, LANES, values.shape[1]).swapaxes(1, 2))
    return lanes.view(np.uint8).reshape(lanes.shape[0], values.shape[1], 2 * LANES)


def _halves(data: Bytes) -> NDArray[np.float32]:
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def _float_values(format: Format, data: Bytes) -> NDArray[np.float32]:
    if format == Format.F32:
        return data.view(np.float32)
    if format == Format.F16:
        return data.view(np.float16).astype(np.float32)
    return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
