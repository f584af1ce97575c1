"""What a pass of the packed decoder works on: sizes, weights, the rows at hand, and room for results.

Tuples of arrays, because that is what compiled functions take. They compute nothing.
"""

from typing import Any, NamedTuple


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
