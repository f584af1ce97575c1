"""One pass of a Llama-shaped decoder over packed weights, run by a team of threads.

All of the pass is here: embedding, layers, output head and the greedy choice. Rows of any slots stand side by
side; a row brings its token, its position and where its slot's keys and values lie, so shapes depend on
nothing but the number of rows. Threads claim tiles, rows and heads in chunks and meet between the sections.
Every value is computed by one thread from one row, in an order that does not depend on the other rows: the
pass is row-invariant by construction, whatever the number of threads.

It knows no slots, no model files and no choice other than the greedy one.
"""

from typing import Any

import numpy as np

from grimboost.kernels import rows as r
from grimboost.kernels.attention import attend, rotate_and_store
from grimboost.kernels.compiled import kernel
from grimboost.kernels.pass_data import (
    ADDRESS,
    BIAS,
    CHOICES,
    COUNT,
    FORMAT,
    MEETING,
    STEPS,
    TILES,
    TOKEN,
    Buffers,
    Pass,
    Shape,
    Weights,
)
from grimboost.kernels.products import tile_rows
from grimboost.kernels.team import add_to, meet, sleep_until_woken
from grimboost.kernels.tiles import (
    BLOCK,
    BYTES_PER_STEP,
    GROUP,
    LANES,
    Format,
    read_bfloat,
    read_byte,
    read_float,
    read_half,
    write_float,
)

F32, BF16, _, U8, U4 = (int(format) for format in Format)

SECTIONS_PER_LAYER = 10
SECTIONS_AROUND = 4
COUNTER_STRIDE = 8


def sections(layers: int) -> int:
    """Sections of a pass, each with a counter and a meeting."""
    return layers * SECTIONS_PER_LAYER + SECTIONS_AROUND


_STEP_BYTES = tuple(BYTES_PER_STEP[format] for format in Format)


@kernel()
def _claim(counters: Any, section: int) -> int:
    """The next chunk of a section that nobody has taken."""
    return add_to(counters.ctypes.data + 8 * COUNTER_STRIDE * section, 1)


@kernel()
def _multiply(matrix, buffers, out, out_width, count, counters, section, threads, add):
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
def _attention_block(rank, threads, shape, weights, work, b, layer, count, meeting, section):
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
        rotate_and_store(shape, weights, layer, rows[row], b.qkv[row])
        row = _claim(counters, section)
    meet(work.team, threads, meeting + section)
    section += 1
    part = _claim(counters, section)
    while part < count * shape.kv_heads:
        row = part // shape.kv_heads
        attend(shape, b, layer, rows[row], row, part % shape.kv_heads, rank)
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
def _mlp_block(rank, threads, shape, weights, work, b, layer, count, meeting, section):
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
