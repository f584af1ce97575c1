"""Float32 arithmetic with one rounding, in numpy, and the products of a tile written down with it.

What the kernels' tests compare with bit for bit. Nothing here is shared with the kernels but the layout of rows.
"""

import numpy as np
from numpy.typing import NDArray

from grimboost.adapters.packed_layout import PackedMatrix, pack_blocks, pack_floats
from grimboost.adapters.quantized_blocks import Blocks
from grimboost.kernels.tiles import BLOCK, GROUP, LANES, QUANTIZED, Format

Floats = NDArray[np.float32]


def fused(x: Floats, y: Floats, z: Floats) -> Floats:
    """x * y + z, rounded once. Finite values.

    Products of float32 are exact in float64. Their sum is rounded to odd there, which makes the second rounding,
    to float32, the right one (Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums").
    """
    product, addend = np.float64(x) * np.float64(y), np.float64(z)
    total = np.array(product + addend, np.float64, ndmin=1)
    back = total - product
    lost = (product - (total - back)) + (addend - back)  # what the sum's rounding took away
    bits = total.view(np.int64)
    step = np.where((lost > 0) == (total > 0), 1, -1)
    odd = bits + np.where((lost != 0) & (bits & 1 == 0), step, 0)
    return odd.view(np.float64).reshape(np.shape(product + addend)).astype(np.float32)


class QuantizedRows:
    """Rows of signed bytes with a scale for each 32, where the kernels look for them."""

    def __init__(self, codes: NDArray[np.int8], scales: Floats) -> None:
        """codes: [rows, groups, 32]; scales: [rows, groups]."""
        count, groups = scales.shape
        blocks = -(-count // BLOCK)
        self.row_codes, self.row_scales = codes, scales
        sums = codes.sum(-1, dtype=np.int32)
        self.row_sums = scales * sums.astype(np.float32)
        self.codes = _in_blocks(codes, np.zeros((blocks * BLOCK, groups, GROUP), np.int8))
        self.scales = _in_blocks(scales, np.full((blocks * BLOCK, groups), np.nan, np.float32))
        self.sums = _in_blocks(self.row_sums, np.full((blocks * BLOCK, groups), np.nan, np.float32))
        self.offsets = _in_blocks(-128 * sums, np.full((blocks * BLOCK, groups), -1, np.int32))


def _in_blocks(rows: NDArray[np.generic], room: NDArray[np.generic]) -> NDArray[np.generic]:
    """[rows, groups, ...] -> [blocks, groups, 8, ...], the rest of the last block as `room` has it."""
    room[: len(rows)] = rows
    return np.ascontiguousarray(room.reshape(-1, BLOCK, *room.shape[1:]).swapaxes(1, 2))


class Tile:
    """One tile of random weights and what its products are."""

    def __init__(self, format: Format, inputs: int, generator: np.random.Generator, extreme: bool = False) -> None:
        """`extreme`: only the largest and smallest codes; scales that are zero, tiny, negative or huge."""
        self.format, self.inputs = format, inputs
        self.weights = generator.normal(size=(LANES, inputs)).astype(np.float32)
        groups, self._highest = inputs // GROUP, 15 if format == Format.U4 else 255
        self.codes = generator.integers(0, self._highest, (LANES, inputs), np.uint8, endpoint=True)
        self.scale, self.minimum = generator.normal(0.0, 0.1, (2, LANES, groups)).astype(np.float16)
        if extreme:
            ends = np.array([0, 1, self._highest - 1, self._highest], np.uint8)
            self.codes = generator.choice(ends, (LANES, inputs))
            odd = np.array([0.0, -0.0, 6e-8, -1.0, 65504.0], np.float16)
            self.scale, self.minimum = generator.choice(odd, (2, LANES, groups))
        self.packed = self._pack()

    def set(self, weights: Floats | None = None, code: int | None = None) -> None:
        """Other weights, or the same code everywhere."""
        if weights is not None:
            self.weights = weights
        if code is not None:
            self.codes[:] = min(code, self._highest)
        self.packed = self._pack()

    def _pack(self) -> PackedMatrix:
        if self.format not in QUANTIZED:
            packed = pack_floats(self.weights, self.format)
            self.weights = packed.values()
            return packed
        bits, minimum = (4, self.minimum) if self.format == Format.U4 else (8, None)
        return pack_blocks(Blocks(bits, self.inputs, self.codes, self.scale, minimum))

    def float_products(self, x: Floats) -> Floats:
        """x: [rows, inputs] -> [rows, 16], input after input."""
        total = np.zeros((len(x), LANES), np.float32)
        for place in range(self.inputs):
            total = fused(self.weights[:, place], x[:, place, None], total)
        return total

    def products(self, x: QuantizedRows) -> Floats:
        """[rows, 16]: integers within a group, then the scales, group after group."""
        total = np.zeros((len(x.row_scales), LANES), np.float32)
        for group in range(self.inputs // GROUP):
            codes = self.codes[:, group * GROUP : (group + 1) * GROUP].astype(np.int64)
            if self.format == Format.U8:
                codes = codes - 128
            whole = (x.row_codes[:, group].astype(np.int64) @ codes.T).astype(np.float32)
            scale = self.scale[:, group].astype(np.float32) * x.row_scales[:, group, None]
            total = fused(whole, scale, total)
            if self.format == Format.U4:
                total = fused(self.minimum[:, group].astype(np.float32), x.row_sums[:, group, None], total)
        return total
