"""Attention over a slot's keys and values, which lie in tiles: both of its products are tile products.

Keys lie as [layer][kv head][position / 16][size][16 positions], values as [layer][kv head][size / 16]
[position][16 places]. One call computes one row for the query heads that share a kv head, over exactly the
positions that the row sees, so nothing is masked. It knows no threads.
"""

from typing import Any

import numpy as np

from grimboost.kernels import rows as r
from grimboost.kernels.compiled import kernel
from grimboost.kernels.pass_data import (
    CAPACITY,
    KEYS,
    POSITION,
    VALUES,
    buffers_in,
    pass_in,
    shape_in,
    weights_in,
)
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
def rotate_and_store(t: Any, layer: int, number: int) -> None:
    """Norm and rotate queries and keys of one row, and put keys and values into its slot."""
    shape, weights = shape_in(t), weights_in(t)
    row, qkv, size = pass_in(t).rows[number], buffers_in(t).qkv[number], shape.size
    position, capacity = row[POSITION], row[CAPACITY]
    for head in range(shape.heads + shape.kv_heads):
        part = qkv[head * size : (head + 1) * size]
        if shape.head_norms != 0:
            norm = weights.head_norms[2 * layer + (1 if head >= shape.heads else 0)]
            r.rms_norm(part, norm, shape.epsilon, part)
        r.rotate(part, weights.cosines[position], weights.sines[position])
    value_tiles = (size + LANES - 1) // LANES
    for head in range(shape.kv_heads):
        index = layer * shape.kv_heads + head
        key = (shape.heads + head) * size
        value = key + shape.kv_heads * size
        start = index * capacity * size + (position // LANES) * LANES * size + position % LANES
        for place in range(size):
            _write_cache(shape.cache_format, row[KEYS], start + place * LANES, qkv[key + place])
        for place in range(size):
            at = ((index * value_tiles + place // LANES) * capacity + position) * LANES + place % LANES
            _write_cache(shape.cache_format, row[VALUES], at, qkv[value + place])


@kernel()
def attend(t: Any, layer: int, number: int, head: int, rank: int) -> None:
    """Attention of one row for the query heads that share one kv head."""
    shape, b, row = shape_in(t), buffers_in(t), pass_in(t).rows[number]
    size, capacity, group, format = shape.size, row[CAPACITY], shape.heads // shape.kv_heads, shape.cache_format
    length = row[POSITION] + 1
    element = 2 if format == F16 else 4
    scores, mixed = b.scores[rank], b.mixed[rank]
    out, stride = scores.ctypes.data, 4 * scores.shape[1]
    index = layer * shape.kv_heads + head
    query = b.qkv[number].ctypes.data + 4 * head * group * size
    keys, steps = row[KEYS] + element * index * capacity * size, size // STEP
    for tile in range((length + LANES - 1) // LANES):
        place = keys + element * tile * LANES * size
        tile_rows(format, place, query, 4 * size, 32 * size, 0, 0, steps, out + 64 * tile, stride, group, 0)
    steps = (length + STEP - 1) // STEP
    scale = np.float32(1.0) / np.sqrt(np.float32(size))
    for one in range(group):
        # the sum goes behind the last position there can be
        scores[one, scores.shape[1] - 1] = r.softmax_unnormalized(scores[one, :length], scale)
        scores[one, length : steps * STEP] = np.float32(0.0)
    value_tiles = (size + LANES - 1) // LANES
    values = row[VALUES] + element * index * value_tiles * capacity * LANES
    for tile in range(value_tiles):
        place, to = values + element * tile * capacity * LANES, mixed.ctypes.data + 64 * tile
        tile_rows(format, place, out, stride, 8 * stride, 0, 0, steps, to, 4 * mixed.shape[1], group, 0)
    for one in range(group):
        inverse = np.float32(1.0) / scores[one, scores.shape[1] - 1]
        start = (head * group + one) * size
        for place in range(size):
            b.attended[number, start + place] = mixed[one, place] * inverse
