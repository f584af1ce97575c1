"""One pass of a Llama-shaped decoder over packed weights, run by a team of threads.

All of the pass is here: embedding, layers, output head and the greedy choice. Rows of any slots stand side by
side; a row brings its token, its position and where its slot's keys and values lie, so shapes depend on
nothing but the number of rows. Threads claim tiles, rows and heads in chunks and meet between the sections.
Every value is computed by one thread from one row, in an order that does not depend on the other rows: the
pass is row-invariant by construction, whatever the number of threads.

Keys of a slot lie as [layer][kv head][position / 16][size][16 positions], values as
[layer][kv head][size / 16][position][16 places]: both are tiles, so attention is two tile products.

It knows no slots, no model files and no choice other than the greedy one.
"""

from typing import Any, NamedTuple

import numpy as np

from grimboost.kernels import rows as r
from grimboost.kernels.compiled import kernel
from grimboost.kernels.team import add_to, meet, sleep_until_woken
from grimboost.kernels.tiles import (
    BLOCK,
    BYTES_PER_STEP,
    GROUP,
    LANES,
    ROW_COUNTS,
    STEP,
    Format,
    read_bfloat,
    read_byte,
    read_float,
    read_half,
    tile_product,
    write_float,
    write_half,
)

F32, BF16, F16, U8, U4 = (int(format) for format in Format)


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
    (int32) [blocks, groups, 8]: the same rounded; qkv, attended, gate_up: results; scores [threads, heads per kv head, positions]; mixed [threads,
    heads per kv head, size in whole tiles]; logits [most, vocabulary in whole tiles]; ids: int64, margins.
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
SECTIONS_PER_LAYER = 10
SECTIONS_AROUND = 4
COUNTER_STRIDE = 8


def sections(layers: int) -> int:
    """Sections of a pass, each with a counter and a meeting."""
    return layers * SECTIONS_PER_LAYER + SECTIONS_AROUND


(_F32_1, _F32_2, _F32_3, _F32_4, _F32_8) = (tile_product(Format.F32, rows) for rows in ROW_COUNTS)
(_BF16_1, _BF16_2, _BF16_3, _BF16_4, _BF16_8) = (tile_product(Format.BF16, rows) for rows in ROW_COUNTS)
(_F16_1, _F16_2, _F16_3, _F16_4, _F16_8) = (tile_product(Format.F16, rows) for rows in ROW_COUNTS)
(_U8_1, _U8_2, _U8_3, _U8_4, _U8_8) = (tile_product(Format.U8, rows) for rows in ROW_COUNTS)
(_U4_1, _U4_2, _U4_3, _U4_4, _U4_8) = (tile_product(Format.U4, rows) for rows in ROW_COUNTS)

_STEP_BYTES = tuple(BYTES_PER_STEP[format] for format in Format)


@kernel()
def _rows_8(format, w, x, x_stride, scales, sums, steps, out, stride, add):  # type: ignore[no-untyped-def]
    if format == U4:
        _U4_8(w, x, x_stride, scales, sums, steps, out, stride, add)
    elif format == U8:
        _U8_8(w, x, x_stride, scales, sums, steps, out, stride, add)
    elif format == BF16:
        _BF16_8(w, x, x_stride, scales, sums, steps, out, stride, add)
    elif format == F16:
        _F16_8(w, x, x_stride, scales, sums, steps, out, stride, add)
    else:
        _F32_8(w, x, x_stride, scales, sums, steps, out, stride, add)


@kernel()
def _rows_4(format, w, x, x_stride, scales, sums, steps, out, stride, add):  # type: ignore[no-untyped-def]
    if format == U4:
        _U4_4(w, x, x_stride, scales, sums, steps, out, stride, add)
    elif format == U8:
        _U8_4(w, x, x_stride, scales, sums, steps, out, stride, add)
    elif format == BF16:
        _BF16_4(w, x, x_stride, scales, sums, steps, out, stride, add)
    elif format == F16:
        _F16_4(w, x, x_stride, scales, sums, steps, out, stride, add)
    else:
        _F32_4(w, x, x_stride, scales, sums, steps, out, stride, add)


@kernel()
def _rows_3(format, w, x, x_stride, scales, sums, steps, out, stride, add):  # type: ignore[no-untyped-def]
    if format == U4:
        _U4_3(w, x, x_stride, scales, sums, steps, out, stride, add)
    elif format == U8:
        _U8_3(w, x, x_stride, scales, sums, steps, out, stride, add)
    elif format == BF16:
        _BF16_3(w, x, x_stride, scales, sums, steps, out, stride, add)
    elif format == F16:
        _F16_3(w, x, x_stride, scales, sums, steps, out, stride, add)
    else:
        _F32_3(w, x, x_stride, scales, sums, steps, out, stride, add)


@kernel()
def _rows_2(format, w, x, x_stride, scales, sums, steps, out, stride, add):  # type: ignore[no-untyped-def]
    if format == U4:
        _U4_2(w, x, x_stride, scales, sums, steps, out, stride, add)
    elif format == U8:
        _U8_2(w, x, x_stride, scales, sums, steps, out, stride, add)
    elif format == BF16:
        _BF16_2(w, x, x_stride, scales, sums, steps, out, stride, add)
    elif format == F16:
        _F16_2(w, x, x_stride, scales, sums, steps, out, stride, add)
    else:
        _F32_2(w, x, x_stride, scales, sums, steps, out, stride, add)


@kernel()
def _rows_1(format, w, x, x_stride, scales, sums, steps, out, stride, add):  # type: ignore[no-untyped-def]
    if format == U4:
        _U4_1(w, x, x_stride, scales, sums, steps, out, stride, add)
    elif format == U8:
        _U8_1(w, x, x_stride, scales, sums, steps, out, stride, add)
    elif format == BF16:
        _BF16_1(w, x, x_stride, scales, sums, steps, out, stride, add)
    elif format == F16:
        _F16_1(w, x, x_stride, scales, sums, steps, out, stride, add)
    else:
        _F32_1(w, x, x_stride, scales, sums, steps, out, stride, add)


@kernel()
def tile_rows(  # type: ignore[no-untyped-def]
    format, w, x, x_stride, block_stride, scales, sums, steps, out, stride, rows, add
):
    """One tile for any number of rows; arguments as in `tile_product`.

    `block_stride`: between blocks of 8 rows, in bytes of codes; scales and sums lie an eighth of that apart.
    """
    row, side = 0, block_stride // GROUP * 4
    while rows - row >= 8:
        _rows_8(format, w, x, x_stride, scales, sums, steps, out, stride, add)
        row, x, scales, sums, out = row + 8, x + block_stride, scales + side, sums + side, out + 8 * stride
    four = x_stride * 4
    if rows - row >= 4:
        _rows_4(format, w, x, x_stride, scales, sums, steps, out, stride, add)
        row, x, scales, sums, out = row + 4, x + four, scales + 16, sums + 16, out + 4 * stride
    if rows - row == 3:
        _rows_3(format, w, x, x_stride, scales, sums, steps, out, stride, add)
    elif rows - row == 2:
        _rows_2(format, w, x, x_stride, scales, sums, steps, out, stride, add)
    elif rows - row == 1:
        _rows_1(format, w, x, x_stride, scales, sums, steps, out, stride, add)


@kernel()
def _claim(counters: Any, section: int) -> int:
    """The next chunk of a section that nobody has taken."""
    return add_to(counters.ctypes.data + 8 * COUNTER_STRIDE * section, 1)


@kernel()
def _multiply(matrix, buffers, out, out_width, count, counters, section, threads, add):  # type: ignore[no-untyped-def]
    """out[rows] (+)= x[rows] . matrix, this thread's share; x is in `buffers`, rounded if the matrix is."""
    format, steps, tiles = matrix[FORMAT], matrix[STEPS], matrix[TILES]
    size = steps * _STEP_BYTES[format]
    x, x_stride, block_stride = buffers.x.ctypes.data, 4 * buffers.x.shape[1], 32 * buffers.x.shape[1]
    scales, sums = buffers.scales.ctypes.data, buffers.sums.ctypes.data
    if format >= U8:
        x, x_stride, block_stride = buffers.codes.ctypes.data, GROUP, BLOCK * GROUP * buffers.codes.shape[1]
        if format == U8:
            sums = buffers.offsets.ctypes.data
    chunk = max(1, tiles // (threads * 6))
    begin = _claim(counters, section) * chunk
    while begin < tiles:
        for tile in range(begin, min(begin + chunk, tiles)):
            place = out + 64 * tile
            weights = matrix[ADDRESS] + tile * size
            tile_rows(
                format, weights, x, x_stride, block_stride, scales, sums, steps, place, 4 * out_width, count, add
            )
            if matrix[BIAS] != 0:
                _add_bias(matrix[BIAS] + 64 * tile, place, 4 * out_width, count)
        begin = _claim(counters, section) * chunk


@kernel()
def _add_bias(bias: int, out: int, stride: int, count: int) -> None:
    """One tile's bias, float32, to all rows."""
    for row in range(count):
        for lane in range(LANES):
            place = out + row * stride + 4 * lane
            write_float(place, read_float(place) + read_float(bias + 4 * lane))


@kernel()
def _prepare(format: int, buffers: Any, row: int, width: int) -> None:
    """Round x[row] to bytes if a matrix of this format follows."""
    if format >= U8:
        r.quantize(buffers.x[row, :width], row, buffers.codes, buffers.scales, buffers.sums, buffers.offsets)


@kernel()
def _norm(shape: Any, b: Any, row: int, weight: Any, to: int) -> None:
    """Row of the stream -> x[to], with zeros in the padding of its width."""
    r.rms_norm(b.residual[row], weight, shape.epsilon, b.x[to])
    for place in range(shape.hidden, shape.hidden_width):
        b.x[to, place] = np.float32(0.0)


@kernel()
def _embed(matrix: Any, token: int, out: Any) -> None:
    """One row of the embedding, which lies in tiles (it may be the output head's). out: float32 [width]."""
    format, steps = matrix[FORMAT], matrix[STEPS]
    start = matrix[ADDRESS] + (token // LANES) * steps * _STEP_BYTES[format]
    lane = token % LANES
    for place in range(out.shape[0]):
        if format == F32:
            out[place] = read_float(start + 64 * place + 4 * lane)
        elif format == BF16:
            out[place] = read_bfloat(start + 32 * place + 2 * lane)
        else:  # the embedding is never U4
            group = start + (place // GROUP) * 544
            inside = place % GROUP
            code = read_byte(group + 32 + 64 * (inside // 4) + 4 * lane + inside % 4)
            out[place] = read_half(group + 2 * lane) * np.float32(code - 128)


@kernel()
def _write_cache(format: int, base: int, place: int, value: Any) -> None:
    if format == F16:
        write_half(base + 2 * place, value)
    else:
        write_float(base + 4 * place, value)


@kernel()
def _rotate_and_store(shape: Any, weights: Any, layer: int, row: Any, qkv: Any) -> None:
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
def _attend(shape: Any, buffers: Any, layer: int, row: Any, number: int, head: int, rank: int) -> None:
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


@kernel()
def run_pass(rank: int, threads: int, shape: Shape, weights: Weights, work: Pass, b: Buffers) -> None:
    """This thread's share of one pass; all threads of the team call it together."""
    count, meeting = work.job[COUNT], work.job[MEETING]
    counters, rows, matrices = work.counters, work.rows, weights.matrices
    embedding = matrices[4 * shape.layers + 1]
    section = 0
    row = _claim(counters, section)
    while row < count:
        _embed(embedding, rows[row, TOKEN], b.residual[row, : shape.hidden])
        row = _claim(counters, section)
    meet(work.team, threads, meeting + section)
    for layer in range(shape.layers):
        section = _attention_block(rank, threads, shape, weights, work, b, layer, count, meeting, section + 1)
        section = _mlp_block(rank, threads, shape, weights, work, b, layer, count, meeting, section + 1)
    section += 1
    head = matrices[4 * shape.layers]
    choices = work.job[CHOICES]
    choice = _claim(counters, section)
    while choice < choices:
        _norm(shape, b, work.wanted[choice], weights.norms[2 * shape.layers], choice)
        _prepare(head[FORMAT], b, choice, shape.hidden_width)
        choice = _claim(counters, section)
    meet(work.team, threads, meeting + section)
    section += 1
    if choices > 0:
        _multiply(head, b, b.logits.ctypes.data, b.logits.shape[1], choices, counters, section, threads, 0)
    meet(work.team, threads, meeting + section)
    section += 1
    choice = _claim(counters, section)
    while choice < choices:
        b.ids[choice], b.margins[choice] = r.best_two(b.logits[choice, : shape.vocabulary])
        choice = _claim(counters, section)
    meet(work.team, threads, meeting + section)


@kernel()
def _attention_block(  # type: ignore[no-untyped-def]
    rank, threads, shape, weights, work, b, layer, count, meeting, section
):
    counters, rows = work.counters, work.rows
    matrix, output = weights.matrices[4 * layer], weights.matrices[4 * layer + 1]
    row = _claim(counters, section)
    while row < count:
        _norm(shape, b, row, weights.norms[2 * layer], row)
        _prepare(matrix[FORMAT], b, row, shape.hidden_width)
        row = _claim(counters, section)
    meet(work.team, threads, meeting + section)
    section += 1
    _multiply(matrix, b, b.qkv.ctypes.data, b.qkv.shape[1], count, counters, section, threads, 0)
    meet(work.team, threads, meeting + section)
    section += 1
    row = _claim(counters, section)
    while row < count:
        _rotate_and_store(shape, weights, layer, rows[row], b.qkv[row])
        row = _claim(counters, section)
    meet(work.team, threads, meeting + section)
    section += 1
    part = _claim(counters, section)
    while part < count * shape.kv_heads:
        row = part // shape.kv_heads
        _attend(shape, b, layer, rows[row], row, part % shape.kv_heads, rank)
        part = _claim(counters, section)
    meet(work.team, threads, meeting + section)
    section += 1
    row = _claim(counters, section)
    while row < count:
        b.x[row, : shape.attention_width] = b.attended[row]
        _prepare(output[FORMAT], b, row, shape.attention_width)
        row = _claim(counters, section)
    meet(work.team, threads, meeting + section)
    section += 1
    _multiply(output, b, b.residual.ctypes.data, b.residual.shape[1], count, counters, section, threads, 1)
    meet(work.team, threads, meeting + section)
    return section


@kernel()
def _mlp_block(  # type: ignore[no-untyped-def]
    rank, threads, shape, weights, work, b, layer, count, meeting, section
):
    counters, mlp = work.counters, shape.mlp_width
    matrix, down = weights.matrices[4 * layer + 2], weights.matrices[4 * layer + 3]
    row = _claim(counters, section)
    while row < count:
        _norm(shape, b, row, weights.norms[2 * layer + 1], row)
        _prepare(matrix[FORMAT], b, row, shape.hidden_width)
        row = _claim(counters, section)
    meet(work.team, threads, meeting + section)
    section += 1
    _multiply(matrix, b, b.gate_up.ctypes.data, b.gate_up.shape[1], count, counters, section, threads, 0)
    meet(work.team, threads, meeting + section)
    section += 1
    row = _claim(counters, section)
    while row < count:
        r.gated(b.gate_up[row, :mlp], b.gate_up[row, mlp : 2 * mlp], b.x[row, :mlp])
        _prepare(down[FORMAT], b, row, mlp)
        row = _claim(counters, section)
    meet(work.team, threads, meeting + section)
    section += 1
    _multiply(down, b, b.residual.ctypes.data, b.residual.shape[1], count, counters, section, threads, 1)
    meet(work.team, threads, meeting + section)
    return section


@kernel()
def serve(rank: int, threads: int, shape: Shape, weights: Weights, work: Pass, b: Buffers) -> None:
    """A member's life: sleep, run a pass, until the team ends."""
    while sleep_until_woken(work.team, rank):
        run_pass(rank, threads, shape, weights, work, b)
