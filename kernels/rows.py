"""What the packed decoder does to one row at a time: norm, rounding to bytes, rotary embedding, softmax, gate.

Every function handles one row by itself, so a row's result cannot depend on its company. Arithmetic is
float32, rounded operation by operation, but for sums and maxima (`reorder`), whose order depends on the
length alone. It knows no layers, caches or threads.
"""

from typing import Any

import numpy as np

from grimboost.kernels.compiled import kernel
from grimboost.kernels.rounding import round_group
from grimboost.kernels.tiles import BLOCK, GROUP, float_of_bits

_ROUNDER = np.float32(12582912.0)
"""1.5 * 2^23: adding and taking it away rounds a float32 below 2^22 to the nearest integer, ties to even."""

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_LOWEST, _HIGHEST = np.float32(-87.0), np.float32(88.0)


@kernel(reorder=True)
def sum_of_squares(x: Any) -> Any:
    """x: float32 [n]."""
    total = np.float32(0.0)
    for i in range(x.shape[0]):
        total += x[i] * x[i]
    return total


@kernel(reorder=True)
def sum_of(x: Any) -> Any:
    """x: float32 [n]."""
    total = np.float32(0.0)
    for i in range(x.shape[0]):
        total += x[i]
    return total


@kernel(reorder=True)
def largest(x: Any) -> Any:
    """x: float32 [n], n > 0."""
    found = x[0]
    for i in range(x.shape[0]):
        found = max(found, x[i])
    return found


@kernel()
def rms_norm(x: Any, weight: Any, epsilon: Any, out: Any) -> None:
    """Root mean square norm (Zhang and Sennrich 2019). All float32 [n]; `x` and `out` may be one."""
    size = weight.shape[0]
    scale = np.float32(1.0) / np.sqrt(sum_of_squares(x[:size]) / np.float32(size) + epsilon)
    for i in range(size):
        out[i] = weight[i] * (x[i] * scale)


@kernel()
def quantize(x: Any, row: int, codes: Any, scales: Any, sums: Any, offsets: Any) -> None:
    """Round a row to signed bytes with one scale per group, as llama.cpp's Q8_0 does.

    x: float32 [n], n a multiple of 32. The result goes where `grimboost.kernels.tiles` wants the row: codes:
    int8 [blocks, groups, 8, 32]; scales and sums (scale times the sum of the codes): float32, offsets: int32,
    -128 times the sum of the codes: [blocks, groups, 8].
    """
    block, lane = row // BLOCK, row % BLOCK
    groups = codes.shape[1]
    first = block * groups * BLOCK + lane
    source, target = x.ctypes.data, codes.ctypes.data + first * GROUP
    scale, total, offset = (
        scales.ctypes.data + 4 * first,
        sums.ctypes.data + 4 * first,
        offsets.ctypes.data + 4 * first,
    )
    for group in range(x.shape[0] // GROUP):
        near = group * BLOCK
        round_group(
            source + 4 * GROUP * group,
            target + GROUP * near,
            scale + 4 * near,
            total + 4 * near,
            offset + 4 * near,
        )


@kernel()
def exponential(x: Any) -> Any:
    """exp of a float32 within one or two units in the last place, in [-87, 88] (Cephes' polynomial)."""
    x = min(max(x, _LOWEST), _HIGHEST)
    power = (x * _LOG2_E + _ROUNDER) - _ROUNDER
    x = (x - power * _LN2_HIGH) - power * _LN2_LOW
    value = np.float32(1.9875691500e-4)
    value = value * x + np.float32(1.3981999507e-3)
    value = value * x + np.float32(8.3334519073e-3)
    value = value * x + np.float32(4.1665795894e-2)
    value = value * x + np.float32(1.6666665459e-1)
    value = value * x + np.float32(5.0000001201e-1)
    value = (value * x) * x + x + np.float32(1.0)
    return value * float_of_bits(np.int32((np.int32(power) + 127) << 23))


@kernel()
def gated(gate: Any, up: Any, out: Any) -> None:
    """SiLU(gate) * up (Shazeer 2020, "GLU Variants"). All float32 [n]."""
    for i in range(out.shape[0]):
        out[i] = (gate[i] / (np.float32(1.0) + exponential(-gate[i]))) * up[i]


@kernel()
def softmax_unnormalized(scores: Any, scale: Any) -> Any:
    """exp(scale * (scores - largest)) in place; returns the sum. scores: float32 [n], n > 0."""
    top = largest(scores)
    for i in range(scores.shape[0]):
        scores[i] = exponential((scores[i] - top) * scale)
    return sum_of(scores)


@kernel()
def rotate(x: Any, cosines: Any, sines: Any) -> None:
    """Rotary position embedding in place, halves paired (Su et al. 2021). x: [2n]; cosines, sines: [n]."""
    half = cosines.shape[0]
    for i in range(half):
        first, second = x[i], x[half + i]
        x[i] = first * cosines[i] - second * sines[i]
        x[half + i] = second * cosines[i] + first * sines[i]


@kernel()
def best_two(logits: Any) -> Any:
    """Largest logit's place (lowest on a tie) and its lead over the runner-up. logits: float32 [n].

    NaN never wins; without any other number the place is 0.
    """
    place, best, second = 0, np.float32(-np.inf), np.float32(-np.inf)
    block = 64
    hidden = np.isnan(sum_of(logits))  # NaN may hide what is largest in its block
    for start in range(0, logits.shape[0], block):
        end = min(start + block, logits.shape[0])
        if hidden or largest(logits[start:end]) > second:
            for i in range(start, end):
                if logits[i] > best:
                    place, best, second = i, logits[i], best
                elif logits[i] > second:
                    second = logits[i]
    return place, best - second
