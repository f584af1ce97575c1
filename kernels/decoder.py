"""One pass of a Llama-shaped decoder over packed weights, run by a team of threads.

All of the pass is here: embedding, layers, output head and the greedy choice. Rows of any slots stand side by
side; a row brings its token, its position and where its slot's keys and values lie, so shapes depend on
nothing but the number of rows. Threads claim tiles, rows and heads in chunks and meet at the end of each
section. Every value is computed by one thread from one row, in an order that does not depend on the other
rows: the pass is row-invariant by construction, whatever the number of threads.

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
    buffers_in,
    pass_in,
    shape_in,
    weights_in,
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
QKV, RESIDUAL, GATE_UP, LOGITS = range(4)
"""Where a product goes; the residual stream is added to."""

SECTIONS_PER_LAYER = 10
SECTIONS_AROUND = 4
COUNTER_STRIDE = 8
CHUNKS_PER_THREAD = 6
"""Of a product: few enough to read weights in long runs, many enough for threads to end together."""

_STEP_BYTES = tuple(BYTES_PER_STEP[format] for format in Format)


def sections(layers: int) -> int:
    """Sections of a pass, each with a counter and a meeting."""
    return layers * SECTIONS_PER_LAYER + SECTIONS_AROUND


@kernel()
def serve(rank: int, threads: int, t: Any) -> None:
    """The first thread (rank 0): its share of one pass. A member: sleep, do a share, until the team ends.

    All threads of the team are in the same pass together. t: the table of `pass_data`. It is one function for
    both, because whatever is called from Python is compiled with all that it calls.
    """
    while rank == 0 or sleep_until_woken(pass_in(t).team, rank):
        _run(rank, threads, t)
        if rank == 0:
            break


@kernel()
def _run(rank: int, threads: int, t: Any) -> None:
    layers = shape_in(t).layers
    section = 0
    _embed_rows(t, threads, section)
    for layer in range(layers):
        _norm_rows(t, threads, section + 1, 2 * layer, 4 * layer, 0)
        _product(t, threads, section + 2, 4 * layer, QKV)
        _rotate_rows(t, threads, section + 3, layer)
        _attend_rows(t, threads, section + 4, layer, rank)
        _collect_rows(t, threads, section + 5, 4 * layer + 1)
        _product(t, threads, section + 6, 4 * layer + 1, RESIDUAL)
        _norm_rows(t, threads, section + 7, 2 * layer + 1, 4 * layer + 2, 0)
        _product(t, threads, section + 8, 4 * layer + 2, GATE_UP)
        _gate_rows(t, threads, section + 9, 4 * layer + 3)
        _product(t, threads, section + 10, 4 * layer + 3, RESIDUAL)
        section += SECTIONS_PER_LAYER
    _norm_rows(t, threads, section + 1, 2 * layers, 4 * layers, 1)
    _product(t, threads, section + 2, 4 * layers, LOGITS)
    _choose_rows(t, threads, section + 3)


@kernel()
def _claim(t: Any, section: int) -> int:
    """The next part of a section that nobody has taken."""
    return add_to(pass_in(t).counters.ctypes.data + 8 * COUNTER_STRIDE * section, 1)


@kernel()
def _end(t: Any, threads: int, section: int) -> None:
    """Wait until the section is done."""
    if threads > 1:
        work = pass_in(t)
        meet(work.team, threads, work.job[MEETING] + section)


# ------------------------------------------------------------ sections


@kernel()
def _embed_rows(t: Any, threads: int, section: int) -> None:
    work, residual, shape = pass_in(t), buffers_in(t).residual, shape_in(t)
    row = _claim(t, section)
    while row < work.job[COUNT]:
        _embed(weights_in(t).matrices[4 * shape.layers + 1], work.rows[row, TOKEN], residual[row, : shape.hidden])
        row = _claim(t, section)
    _end(t, threads, section)


@kernel()
def _norm_rows(t: Any, threads: int, section: int, norm: int, matrix: int, chosen: int) -> None:
    """Rows of the stream, all or those with a choice -> x, with zeros in the padding of its width."""
    work, b, shape, weights = pass_in(t), buffers_in(t), shape_in(t), weights_in(t)
    count = work.job[CHOICES] if chosen else work.job[COUNT]
    row = _claim(t, section)
    while row < count:
        source = work.wanted[row] if chosen else row
        r.rms_norm(b.residual[source], weights.norms[norm], shape.epsilon, b.x[row])
        for place in range(shape.hidden, shape.hidden_width):
            b.x[row, place] = np.float32(0.0)
        _prepare(t, row, shape.hidden_width, matrix)
        row = _claim(t, section)
    _end(t, threads, section)


@kernel()
def _rotate_rows(t: Any, threads: int, section: int, layer: int) -> None:
    row = _claim(t, section)
    while row < pass_in(t).job[COUNT]:
        rotate_and_store(t, layer, row)
        row = _claim(t, section)
    _end(t, threads, section)


@kernel()
def _attend_rows(t: Any, threads: int, section: int, layer: int, rank: int) -> None:
    heads, count = shape_in(t).kv_heads, pass_in(t).job[COUNT]
    part = _claim(t, section)
    while part < count * heads:
        attend(t, layer, part // heads, part % heads, rank)
        part = _claim(t, section)
    _end(t, threads, section)


@kernel()
def _collect_rows(t: Any, threads: int, section: int, matrix: int) -> None:
    """What attention found -> x."""
    b, width = buffers_in(t), shape_in(t).attention_width
    row = _claim(t, section)
    while row < pass_in(t).job[COUNT]:
        for place in range(width):
            b.x[row, place] = b.attended[row, place]
        _prepare(t, row, width, matrix)
        row = _claim(t, section)
    _end(t, threads, section)


@kernel()
def _gate_rows(t: Any, threads: int, section: int, matrix: int) -> None:
    b, width = buffers_in(t), shape_in(t).mlp_width
    row = _claim(t, section)
    while row < pass_in(t).job[COUNT]:
        r.gated(b.gate_up[row, :width], b.gate_up[row, width : 2 * width], b.x[row, :width])
        _prepare(t, row, width, matrix)
        row = _claim(t, section)
    _end(t, threads, section)


@kernel()
def _product(t: Any, threads: int, section: int, number: int, target: int) -> None:
    """x, or what it was rounded to, times a matrix -> a buffer."""
    b, job = buffers_in(t), pass_in(t).job
    rows, add = job[COUNT], 0
    out, width = b.qkv.ctypes.data, b.qkv.shape[1]
    if target == RESIDUAL:
        out, width, add = b.residual.ctypes.data, b.residual.shape[1], 1
    elif target == GATE_UP:
        out, width = b.gate_up.ctypes.data, b.gate_up.shape[1]
    elif target == LOGITS:
        out, width, rows = b.logits.ctypes.data, b.logits.shape[1], job[CHOICES]
    if rows > 0:
        _multiply(t, threads, section, number, out, width, rows, add)
    _end(t, threads, section)


@kernel()
def _choose_rows(t: Any, threads: int, section: int) -> None:
    b, vocabulary, choices = buffers_in(t), shape_in(t).vocabulary, pass_in(t).job[CHOICES]
    row = _claim(t, section)
    while row < choices:
        b.ids[row], b.margins[row] = r.best_two(b.logits[row, :vocabulary])
        row = _claim(t, section)
    _end(t, threads, section)


# ------------------------------------------------------------ what they are made of


@kernel()
def _multiply(
    t: Any, threads: int, section: int, number: int, out: int, out_width: int, rows: int, add: int
) -> None:
    """out[rows] (+)= x[rows] . matrix, this thread's share of the tiles. out: address of float32 rows."""
    b, matrix = buffers_in(t), weights_in(t).matrices[number]
    format, steps, tiles = matrix[FORMAT], matrix[STEPS], matrix[TILES]
    x, x_stride, block_stride = b.x.ctypes.data, 4 * b.x.shape[1], 32 * b.x.shape[1]
    scales, sums = b.scales.ctypes.data, b.sums.ctypes.data
    if format >= U8:
        x, x_stride, block_stride = b.codes.ctypes.data, GROUP, BLOCK * GROUP * b.codes.shape[1]
        if format == U8:
            sums = b.offsets.ctypes.data
    size, stride = steps * _STEP_BYTES[format], 4 * out_width
    chunk = max(1, tiles // (threads * CHUNKS_PER_THREAD))
    begin = _claim(t, section) * chunk
    while begin < tiles:
        for tile in range(begin, min(begin + chunk, tiles)):
            place, weights = out + 64 * tile, matrix[ADDRESS] + tile * size
            tile_rows(format, weights, x, x_stride, block_stride, scales, sums, steps, place, stride, rows, add)
            if matrix[BIAS] != 0:
                _add_bias(matrix[BIAS] + 64 * tile, place, stride, rows)
        begin = _claim(t, section) * chunk


@kernel()
def _add_bias(bias: int, out: int, stride: int, rows: int) -> None:
    """One tile's bias, float32, to all rows."""
    for row in range(rows):
        for lane in range(LANES):
            place = out + row * stride + 4 * lane
            write_float(place, read_float(place) + read_float(bias + 4 * lane))


@kernel()
def _prepare(t: Any, row: int, width: int, number: int) -> None:
    """Round x[row] to bytes if the matrix that follows is quantized."""
    if weights_in(t).matrices[number, FORMAT] >= U8:
        b = buffers_in(t)
        r.quantize(b.x[row, :width], row, b.codes, b.scales, b.sums, b.offsets)


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
