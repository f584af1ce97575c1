"""What a pass of the packed decoder works on: sizes, weights, the rows at hand, and room for results.

All of it stands in one table of integers: the sizes, and of each array the address and the extents. Compiled
functions are handed the table and open what they use, because handing over thirty arrays costs more than many
of them compute (0.2 ms a pass). Whoever made the arrays keeps them alive. It computes nothing.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import carray
from numba.core import types
from numba.extending import intrinsic

from grimboost.kernels.compiled import kernel
from grimboost.kernels.tiles import float_of_bits


class Shape(NamedTuple):
    """Sizes of a model; `width` ends are padded to multiples of 32."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    size: int
    mlp_width: int
    hidden_width: int
    attention_width: int
    vocabulary: int
    cache_format: int
    head_norms: int
    """1 if queries and keys are normed per head before they are rotated (Qwen3)."""
    epsilon: Any


class Weights(NamedTuple):
    """matrices: int64 [4 * layers + 2, 5]: address, format, steps, tiles, bias address or 0, for qkv, output,
    gate and up, down of each layer, then the head and the embedding. norms: float32 [2 * layers + 1, hidden];
    head_norms: float32 [2 * layers, size] or [0, size]; cosines, sines: float32 [positions, size / 2]."""

    matrices: Any
    norms: Any
    head_norms: Any
    cosines: Any
    sines: Any


class Pass(NamedTuple):
    """What changes from pass to pass. job: int64 [count of rows, count of choices, first meeting].

    rows: int64 [most, 5]: token, position, address of keys, address of values, capacity of the slot.
    wanted: int64 [most]: the row of each choice. counters: int64 [sections * 8], zero at the beginning.
    """

    job: Any
    rows: Any
    wanted: Any
    counters: Any
    team: Any


class Buffers(NamedTuple):
    """Intermediate rows, float32 [most, ...] where nothing else is said.

    residual: the stream; x: a row to be multiplied; codes (int8 [blocks, groups, 8, 32]), scales, sums, offsets
    (int32) [blocks, groups, 8]: the same rounded; qkv, attended, gate_up: results; scores [threads, heads per kv
    head, positions]; mixed [threads, heads per kv head, size in whole tiles]; logits [most, vocabulary in whole
    tiles]; ids: int64, margins.
    """

    residual: Any
    x: Any
    codes: Any
    scales: Any
    sums: Any
    offsets: Any
    qkv: Any
    attended: Any
    gate_up: Any
    scores: Any
    mixed: Any
    logits: Any
    ids: Any
    margins: Any


COUNT, CHOICES, MEETING = range(3)
TOKEN, POSITION, KEYS, VALUES, CAPACITY = range(5)
ADDRESS, FORMAT, STEPS, TILES, BIAS = range(5)

SIZES = len(Shape._fields)
STRIDE = 5
"""Integers per array: its address, and up to four extents."""


def table_of(shape: Shape, weights: Weights, work: Pass, buffers: Buffers) -> Any:
    """The table, int64."""
    sizes = [*shape[:-1], int(np.float32(shape.epsilon).view(np.int32))]
    arrays = [*weights, *work, *buffers]
    table = np.zeros(SIZES + STRIDE * len(arrays), np.int64)
    table[:SIZES] = sizes
    for place, array in enumerate(arrays):
        if not array.flags.c_contiguous:
            raise ValueError(f"array {place} of the table is not contiguous")
        start = SIZES + STRIDE * place
        table[start : start + 1 + array.ndim] = array.ctypes.data, *array.shape
    return table


def _pointer_to(element: Any) -> Any:
    """An intrinsic from an address to a pointer."""
    kind: Any = types.CPointer(element)  # type: ignore[attr-defined]

    @intrinsic
    def pointer(_typing, _address):
        def body(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return kind(types.int64), body

    return pointer


_floats, _integers = _pointer_to(types.float32), _pointer_to(types.int64)
_bytes, _words = _pointer_to(types.int8), _pointer_to(types.int32)


@kernel()
def _floats_1(t, n):
    at = SIZES + STRIDE * n
    return carray(_floats(t[at]), (t[at + 1],))


@kernel()
def _floats_2(t, n):
    at = SIZES + STRIDE * n
    return carray(_floats(t[at]), (t[at + 1], t[at + 2]))


@kernel()
def _floats_3(t, n):
    at = SIZES + STRIDE * n
    return carray(_floats(t[at]), (t[at + 1], t[at + 2], t[at + 3]))


@kernel()
def _integers_1(t, n):
    at = SIZES + STRIDE * n
    return carray(_integers(t[at]), (t[at + 1],))


@kernel()
def _integers_2(t, n):
    at = SIZES + STRIDE * n
    return carray(_integers(t[at]), (t[at + 1], t[at + 2]))


@kernel()
def _codes(t, n):
    at = SIZES + STRIDE * n
    return carray(_bytes(t[at]), (t[at + 1], t[at + 2], t[at + 3], t[at + 4]))


@kernel()
def _offsets(t, n):
    at = SIZES + STRIDE * n
    return carray(_words(t[at]), (t[at + 1], t[at + 2], t[at + 3]))


@kernel()
def shape_in(t):
    return Shape(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], float_of_bits(np.int32(t[11])))


@kernel()
def weights_in(t):
    return Weights(_integers_2(t, 0), _floats_2(t, 1), _floats_2(t, 2), _floats_2(t, 3), _floats_2(t, 4))


@kernel()
def pass_in(t):
    return Pass(_integers_1(t, 5), _integers_2(t, 6), _integers_1(t, 7), _integers_1(t, 8), _integers_1(t, 9))


@kernel()
def buffers_in(t):
    return Buffers(
        _floats_2(t, 10),
        _floats_2(t, 11),
        _codes(t, 12),
        _floats_3(t, 13),
        _floats_3(t, 14),
        _offsets(t, 15),
        _floats_2(t, 16),
        _floats_2(t, 17),
        _floats_2(t, 18),
        _floats_3(t, 19),
        _floats_3(t, 20),
        _floats_2(t, 21),
        _integers_1(t, 22),
        _floats_1(t, 23),
    )
