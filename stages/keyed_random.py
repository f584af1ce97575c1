"""Random numbers keyed by (seed, position, purpose), the same in any batch, order or replay.

Counter-based generator Philox 4x64 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") from
NumPy, raw output only, whose stream NumPy keeps stable across releases. It keeps no state between calls.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Purpose(IntEnum):
    """What a number is drawn for; two purposes never share numbers."""

    TARGET_CHOICE = 1
    DRAFTER_CHOICE = 2


def uniforms(seed: int, position: int, purpose: Purpose, count: int) -> NDArray[np.float64]:
    """`count` numbers in the open interval (0, 1) for one token position. Shape: [count]."""
    key = np.array([seed, purpose], dtype=np.uint64)  # a list with a seed of 2**63 or more becomes floats
    generator = np.random.Philox(key=key, counter=[0, position, 0, 0])
    bits = generator.random_raw(count)
    numbers: NDArray[np.float64] = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return numbers


def gumbels(seed: int, position: int, purpose: Purpose, count: int) -> NDArray[np.float64]:
    """Standard Gumbel noise; the argmax of log p + noise is a sample from p (Gumbel 1954). Shape: [count]."""
    noise: NDArray[np.float64] = -np.log(-np.log(uniforms(seed, position, purpose, count)))
    return noise
