"""Runs passes of a packed model: the memory that kernels work in, the team of threads, and caches of slots.

It knows no slots' ids, no sampling and no vocabulary beyond its size.
"""

import os
import threading
import time
import weakref
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from grimboost.adapters.pace import Pace
from grimboost.adapters.packed_model import PackedModel
from grimboost.errors import TargetError
from grimboost.kernels import decoder as d
from grimboost.kernels import pass_data as data
from grimboost.kernels import team
from grimboost.kernels.tiles import BLOCK, GROUP, LANES, Format

MOST_ROWS = 64
"""Rows of one pass. More are fed in several; by then the arithmetic costs more than reading the weights."""

FIRST_CAPACITY = 256
"""Positions that a new slot has room for; it doubles when they are used."""

MOST_THREADS = 8
"""Threads of a team that nobody has chosen. Measured only up to 2: sections of a small model are short."""


def usable_processors() -> int:
    """Threads for a team that nobody has chosen: one for each processor that this process may run on."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(count, MOST_THREADS)


class Row(NamedTuple):
    """A token at a position of a cache, and whether a choice is wanted behind it."""

    token: int
    position: int
    cache: "Cache"
    choose: bool


class Result(Struct, frozen=True, eq=False):
    """Behind each row with a choice: ids [n], their leads in logits [n], logits [n, vocabulary]; used up by the
    next pass."""

    ids: NDArray[np.int64]
    margins: NDArray[np.float32]
    logits: NDArray[np.float32]


class Cache:
    """Keys and values of one slot, in the tiles described in `grimboost.kernels.attention`; zeros where unused."""

    def __init__(self, model: PackedModel) -> None:
        shape = model.shape
        self._limit = -(-shape.positions // LANES) * LANES
        self._heads, self._size = shape.layers * shape.kv_heads, shape.size
        self._dtype = np.float32 if model.precision == "fp32" else np.float16
        self.keys, self.values = self._new(0)

    @property
    def capacity(self) -> int:
        """Positions there is room for."""
        return int(self.values.shape[2])

    def reserve(self, positions: int) -> None:
        """Make room for that many positions."""
        old = self.capacity
        if positions <= old:
            return
        capacity = min(self._limit, max(2 * old, FIRST_CAPACITY))
        while capacity < positions:
            capacity = min(self._limit, 2 * capacity)
        keys, values = self._new(capacity)
        keys[:, : old // LANES] = self.keys
        values[:, :, :old] = self.values
        self.keys, self.values = keys, values

    def _new(self, capacity: int) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        return (
            np.zeros((self._heads, capacity // LANES, self._size, LANES), self._dtype),
            np.zeros((self._heads, -(-self._size // LANES), capacity, LANES), self._dtype),
        )


class Runner:
    """Not for several threads at once. Its own threads end with it."""

    def __init__(self, model: PackedModel, vocabulary: int, threads: int) -> None:
        self._threads = threads if team.can_have_members() else 1
        self._model = model  # the kernels see addresses, somebody has to keep what lies there
        self._shape = _shape(model, vocabulary)
        self._weights, self._kept = _weights(model)
        self._work = data.Pass(
            job=np.zeros(3, np.int64),
            rows=np.zeros((MOST_ROWS, 5), np.int64),
            wanted=np.zeros(MOST_ROWS, np.int64),
            counters=np.zeros(d.sections(model.shape.layers) * d.COUNTER_STRIDE, np.int64),
            team=team.team_memory(self._threads),
        )
        self._buffers = _buffers(model, self._threads)
        self._meetings = 1
        self._pace = Pace(self._threads)
        team.prepare_team(self._work.team, self._threads)
        self._table = data.table_of(self._shape, self._weights, self._work, self._buffers)
        for rank in range(1, self._threads):
            # a member holds the arrays, not the runner: so that can be collected, and that ends the member
            kept = (self._weights, self._work, self._buffers)
            arguments = (rank, self._threads, self._table, kept)
            threading.Thread(target=_serve, args=arguments, name=f"grimboost team {rank}", daemon=True).start()
        self.close = weakref.finalize(self, _send_home, self._work.team, self._threads)

    @property
    def threads(self) -> int:
        """Threads that compute, the caller's among them."""
        return self._threads

    def run(self, rows: list[Row]) -> Result:
        """One pass over at most `MOST_ROWS` rows; positions of one cache ascend without a gap."""
        if not self.close.alive:
            raise TargetError("this packed model's threads have ended")
        work = self._work
        wanted = [place for place, row in enumerate(rows) if row.choose]
        work.rows[: len(rows)] = [
            (row.token, row.position, row.cache.keys.ctypes.data, row.cache.values.ctypes.data, row.cache.capacity)
            for row in rows
        ]
        work.wanted[: len(wanted)] = wanted
        work.job[:] = len(rows), len(wanted), self._meetings
        work.counters.fill(0)
        together = self._pace.together(len(rows))
        threads = self._threads if together else 1
        begin = time.perf_counter()
        if together:
            self._meetings += d.sections(self._shape.layers)
            team.wake(work.team, threads)
        d.serve(0, threads, self._table)
        self._pace.observe(len(rows), together, time.perf_counter() - begin)
        buffers, count = self._buffers, len(wanted)
        logits = buffers.logits[:count, : self._shape.vocabulary]
        return Result(buffers.ids[:count], buffers.margins[:count], logits)


def _serve(rank: int, threads: int, table: NDArray[np.int64], _kept: object) -> None:
    d.serve(rank, threads, table)


def _send_home(memory: Any, threads: int) -> None:
    memory[team.ENDING] = 1
    team.wake(memory, threads)


def _shape(model: PackedModel, vocabulary: int) -> data.Shape:
    shape = model.shape
    return data.Shape(
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        size=shape.size,
        mlp_width=model.matrices[3].inputs,
        hidden_width=model.matrices[0].inputs,
        attention_width=model.matrices[1].inputs,
        vocabulary=vocabulary,
        cache_format=int(Format.F32 if model.precision == "fp32" else Format.F16),
        head_norms=int(shape.head_norms),
        epsilon=np.float32(shape.epsilon),
    )


def _weights(model: PackedModel) -> tuple[data.Weights, list[NDArray[np.uint8]]]:
    """The kernels' table, and the arrays whose addresses stand in it."""
    table = np.zeros((len(model.matrices), 5), np.int64)
    kept = []
    for place, (matrix, bias) in enumerate(zip(model.matrices, model.biases, strict=True)):
        kept.append(np.ascontiguousarray(matrix.data))
        address = 0 if bias is None else bias.ctypes.data
        table[place] = kept[-1].ctypes.data, int(matrix.format), matrix.steps, matrix.tiles, address
    cosines, sines = model.shape.rotary_tables(model.shape.positions)
    norms, head_norms = np.ascontiguousarray(model.norms), np.ascontiguousarray(model.head_norms)
    return data.Weights(table, norms, head_norms, cosines, sines), kept


def _buffers(model: PackedModel, threads: int) -> data.Buffers:
    shape, matrices = model.shape, model.matrices
    widest = max(matrix.inputs for matrix in matrices)
    blocks, groups = MOST_ROWS // BLOCK, widest // GROUP

    def floats(*sizes: int) -> NDArray[np.float32]:
        return np.zeros(sizes, np.float32)

    group = shape.heads // shape.kv_heads
    return data.Buffers(
        residual=floats(MOST_ROWS, LANES * matrices[1].tiles),
        # not a power of two apart: rows would push each other out of the processor's cache
        x=floats(MOST_ROWS, widest + LANES),
        codes=np.zeros((blocks, groups, BLOCK, GROUP), np.int8),
        scales=floats(blocks, groups, BLOCK),
        sums=floats(blocks, groups, BLOCK),
        offsets=np.zeros((blocks, groups, BLOCK), np.int32),
        qkv=floats(MOST_ROWS, LANES * matrices[0].tiles),
        attended=floats(MOST_ROWS, matrices[1].inputs),
        gate_up=floats(MOST_ROWS, LANES * matrices[2].tiles),
        scores=floats(threads, group, -(-shape.positions // LANES) * LANES + LANES),
        mixed=floats(threads, group, -(-shape.size // LANES) * LANES),
        logits=floats(MOST_ROWS, LANES * matrices[-2].tiles),
        ids=np.zeros(MOST_ROWS, np.int64),
        margins=floats(MOST_ROWS),
    )
