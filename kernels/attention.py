"""Attention over a slot's keys and values, which lie in tiles: both of its products are tile products.

Keys lie as [layer][kv head][position / 16][size][16 positions], values as [layer][kv head][size / 16]
[position][16 places]. One call computes one row for the query heads that share a kv head, over exactly the
positions that the row sees, so nothing is masked. It knows no threads.
"""

from typing import Any

import numpy as np

from grimboost.kernels import rows as r
from grimboost.kernels.compiled import kernel
from grimboost.kernels.pass_data import CAPACITY, KEYS, POSITION, VALUES, Buffers, Shape, Weights
from grimboost.kernels.products import tile_rows
from grimboost.kernels.tiles import LANES, STEP, Format, write_float, write_half

F16 = int(Format.F16)


@kernel()
def _write_cache(format: int, base: int, place: int, value: Any) -> None:
    if format == F16:
        write_half(base + 2 * place, value)
    else:
        write_float(base + 4 * place, value)


@kernel()
def rotate_and_store(shape: Shape, weights: Weights, layer: int, row: Any, qkv: Any) -> None:
    """Norm and rotate queries and keys of one row, and put keys and values into its slot. qkv: [width]."""
    size, position, capacity = shape.size, row[POSITION], row[CAPACITY]
    cosines, sines = weights.cosines[position], weights.sines[position]
    for head in range(shape.heads + shape.kv_heads):
        part = qkv[head * size : (head + 1) * size]
        if shape.head_norms != 0:
            norm = weights.head_norms[2 * layer + (1 if head >= shape.heads else 0)]
            r.rms_norm(part, norm, shape.epsilon, part)
        r.rotate(part, cosines, sines)
    value_tiles = (size + LANES - 1) // LANES
    for head in range(shape.kv_heads):
        index = layer * shape.kv_heads + head
        key = qkv[(shape.heads + head) * size : (shape.heads + head + 1) * size]
        value = qkv[
            (shape.heads + shape.kv_heads + head) * size : (shape.heads + shape.kv_heads + head + 1) * size
        ]
        start = index * capacity * size + (position // LANES) * LANES * size + position % LANES
        for place in range(size):
            _write_cache(shape.cache_format, row[KEYS], start + place * LANES, key[place])
        for place in range(size):
            at = ((index * value_tiles + place // LANES) * capacity + position) * LANES + place % LANES
            _write_cache(shape.cache_format, row[VALUES], at, value[place])


@kernel()
def attend(shape: Shape, buffers: Buffers, layer: int, row: Any, number: int, head: int, rank: int) -> None:
    """Attention of one row for the query heads that share one kv head."""
    size, capacity, group = shape.size, row[CAPACITY], shape.heads // shape.kv_heads
    length = row[POSITION] + 1
    element = 2 if shape.cache_format == F16 else 4
    step_bytes = STEP * LANES * element
    scores, mixed = buffers.scores[rank], buffers.mixed[rank]
    index = layer * shape.kv_heads + head
    query = buffers.qkv[number].ctypes.data + 4 * head * group * size
    keys = row[KEYS] + element * index * capacity * size
    out, stride = scores.ctypes.data, 4 * scores.shape[1]
    for tile in range((length + LANES - 1) // LANES):
        place = keys + element * tile * LANES * size
        tile_rows(
            shape.cache_format,
            place,
            query,
            4 * size,
            32 * size,
            0,
            0,
            size // STEP,
            out + 64 * tile,
            stride,
            group,
            0,
        )
    steps = (length + STEP - 1) // STEP
    scale = np.float32(1.0) / np.sqrt(np.float32(size))
    for one in range(group):
        total = r.softmax_unnormalized(scores[one, :length], scale)
        scores[one, length : steps * STEP] = np.float32(0.0)
        scores[one, scores.shape[1] - 1] = total  # no position lies there
    value_tiles = (size + LANES - 1) // LANES
    values = row[VALUES] + element * index * value_tiles * capacity * LANES
    for tile in range(value_tiles):
        place = values + tile * capacity * (step_bytes // STEP)
        product = mixed.ctypes.data + 64 * tile
        tile_rows(
            shape.cache_format, place, out, stride, 8 * stride, 0, 0, steps, product, 4 * mixed.shape[1], group, 0
        )
    for one in range(group):
        inverse = np.float32(1.0) / scores[one, scores.shape[1] - 1]
        start = (head * group + one) * size
        for place in range(size):
            buffers.attended[number, start + place] = mixed[one, place] * inverse
