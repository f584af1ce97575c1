"""What is done to one row, against numpy in float64 or, where rounding is promised, bit for bit."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from grimboost.kernels import rows as r
from grimboost.kernels.tiles import BLOCK, GROUP

Floats = NDArray[np.float32]
SIZES = [4, 16, 20, 32, 63, 64, 65, 576, 1536]


def noise(size: int, seed: int = 0, spread: float = 1.0) -> Floats:
    return np.random.default_rng(seed).normal(0.0, spread, size).astype(np.float32)


def ulps(got: Any, want: NDArray[np.float64]) -> Any:
    """How far float32 values are from the exact ones, in units in the last place."""
    return np.abs(np.float64(got) - want) / np.spacing(np.abs(want).astype(np.float32))


# ---------------------------------------------------------------- norm


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("spread", [1e-12, 1.0, 1e12])
def test_norm(size: int, spread: float) -> None:
    x, weight = noise(size, 1, spread), noise(size, 2)
    before, out = x.copy(), np.full(size + 3, np.nan, np.float32)
    r.rms_norm(x, weight, np.float32(1e-5), out)
    wide = np.float64(x)
    want = weight * wide / np.sqrt((wide**2).mean() + np.float64(np.float32(1e-5)))
    np.testing.assert_allclose(out[:size], want, rtol=1e-6, atol=0)
    assert np.isnan(out[size:]).all()
    np.testing.assert_array_equal(x, before)
    r.rms_norm(x, weight, np.float32(1e-5), x)
    np.testing.assert_array_equal(x, out[:size])


def test_norm_of_zeros_is_zeros() -> None:
    out = noise(32)
    r.rms_norm(np.zeros(32, np.float32), noise(32), np.float32(1e-6), out)
    assert not out.any()


def test_norm_reads_as_many_as_there_are_weights() -> None:
    x = noise(48)
    x[32:] = np.nan
    out = np.zeros(32, np.float32)
    r.rms_norm(x, noise(32, 3), np.float32(1e-6), out)
    assert np.isfinite(out).all()


# ---------------------------------------------------------------- rounding to bytes


class Rounded:
    """The memory that `quantize` writes to, filled with what it must not leave in its row."""

    def __init__(self, groups: int, blocks: int = 2) -> None:
        self.codes = np.full((blocks, groups, BLOCK, GROUP), 77, np.int8)
        self.scales = np.full((blocks, groups, BLOCK), np.nan, np.float32)
        self.sums = np.full((blocks, groups, BLOCK), np.nan, np.float32)
        self.offsets = np.full((blocks, groups, BLOCK), 77, np.int32)

    def put(self, x: Floats, row: int) -> list[Any]:
        """Codes [groups, 32], scales, sums and offsets [groups] of the row."""
        r.quantize(x, row, self.codes, self.scales, self.sums, self.offsets)
        block, lane = divmod(row, BLOCK)
        arrays: list[Any] = [self.codes, self.scales, self.sums, self.offsets]
        return [array[block, :, lane] for array in arrays]


def plainly_rounded(x: Floats) -> tuple[NDArray[np.float32], Floats]:
    """Codes [groups, 32] and scales [groups] by numpy's own float32."""
    groups = x.reshape(-1, GROUP)
    size = np.abs(groups).max(-1)
    inverse = np.divide(np.float32(127), size, out=np.zeros_like(size), where=size > 0)
    return np.rint(groups * inverse[:, None]), size / np.float32(127)


@pytest.mark.parametrize("row", [0, 3, 7, 8, 15])
@pytest.mark.parametrize("spread", [1e-30, 1e-3, 1.0, 1e30])
def test_rows_are_rounded_as_numpy_rounds_them(row: int, spread: float) -> None:
    x = noise(6 * GROUP, row, spread)
    memory = Rounded(6)
    codes, scales, sums, offsets = memory.put(x, row)
    want, scale = plainly_rounded(x)
    np.testing.assert_array_equal(codes, want)
    np.testing.assert_array_equal(scales, scale)
    np.testing.assert_array_equal(offsets, -128 * want.sum(-1))
    np.testing.assert_array_equal(sums, scale * want.sum(-1))
    assert np.isnan(memory.scales).sum() == memory.scales.size - 6
    assert (memory.codes == 77).all(-1).sum() == memory.scales.size - 6
    assert (memory.offsets == 77).sum() == memory.scales.size - 6


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=GROUP, max_size=GROUP))
def test_rounding_errs_by_half_a_step_at_most(values: list[float]) -> None:
    x = np.array(values, np.float32)
    codes, scales, sums, offsets = Rounded(1).put(x, 0)
    # where 127 over the largest is no float32 any more, all that is left is below any sum that matters
    error = np.abs(np.float64(scales) * codes[0] - np.float64(x))
    assert (error <= np.float64(scales) / 2 * (1 + 1e-6) + 1e-35).all()
    assert np.abs(codes).max() <= 127
    assert (sums, offsets) == (scales * np.float32(codes.sum(dtype=int)), -128 * codes.sum(dtype=int))


def test_the_largest_of_a_group_becomes_127_and_ties_go_to_even() -> None:
    x = np.zeros(2 * GROUP, np.float32)
    x[:6] = 127.0, 0.5, 1.5, 2.5, -0.5, -1.5
    x[GROUP:] = -254.0
    codes, scales, *_ = Rounded(2).put(x, 0)
    assert codes[0, :6].tolist() == [127, 0, 2, 2, 0, -2]
    assert set(codes[1].tolist()) == {-127}
    assert scales.tolist() == [1.0, 2.0]


def test_a_group_of_zeros_is_zeros_beside_others() -> None:
    x = noise(3 * GROUP)
    x[GROUP : 2 * GROUP] = [0.0, -0.0] * 16
    codes, scales, sums, offsets = Rounded(3).put(x, 9)
    assert not codes[1].any()
    assert (scales[1], sums[1], offsets[1]) == (0.0, 0.0, 0)
    assert codes[0].any()
    assert codes[2].any()


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_group(odd: float) -> None:
    x = noise(3 * GROUP)
    want = Rounded(3).put(x, 0)
    x[GROUP + 5] = odd
    got = Rounded(3).put(x, 0)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one[::2], other[::2])
    assert not np.isfinite(got[1][1])  # and is not lost


@pytest.mark.parametrize("size", [1e-38, 3e-39, 1e-45])
def test_groups_below_the_normal_numbers_stay_tiny(size: float) -> None:
    x = np.full(GROUP, size, np.float32)
    x[::2] = 0.0
    codes, scales, sums, offsets = Rounded(1).put(x, 0)
    assert abs(scales[0]) < 1e-38
    assert abs(sums[0]) < 1e-25
    assert np.abs(scales[0] * (codes[0] * np.float64(255.0)).sum()) < 1e-30
    assert abs(float(offsets[0])) <= 128 * 127 * GROUP


# ---------------------------------------------------------------- exponentials


def test_exponential_is_within_two_units_of_the_exact_one() -> None:
    x = np.concatenate((np.linspace(-87, 88, 40_001), np.linspace(-1, 1, 10_001))).astype(np.float32)
    got = np.array([r.exponential(value) for value in x], np.float32)
    assert ulps(got, np.exp(np.float64(x))).max() <= 2.0
    assert r.exponential(np.float32(0.0)) == 1.0


def test_exponential_is_clipped_and_never_zero_or_infinite() -> None:
    lowest, highest = (r.exponential(np.float32(value)) for value in (-87.0, 88.0))
    for far in (-88.0, -1e30, -np.inf):
        assert r.exponential(np.float32(far)) == lowest > 0
    for far in (89.0, 1e30, np.inf):
        assert r.exponential(np.float32(far)) == highest < np.inf


@pytest.mark.parametrize("size", SIZES)
def test_gate(size: int) -> None:
    gate, up, out = noise(size, 1, 4.0), noise(size, 2), np.zeros(size, np.float32)
    r.gated(gate, up, out)
    wide = np.float64(gate)
    np.testing.assert_allclose(out, wide / (1 + np.exp(-wide)) * up, rtol=1e-6, atol=0)


def test_gate_at_its_ends() -> None:
    gate = np.array([0.0, -0.0, 100.0, 1e30, -100.0, -1e4, 80.0], np.float32)
    out = np.zeros(7, np.float32)
    r.gated(gate, np.full(7, 2.0, np.float32), out)
    assert out[:4].tolist() == [0.0, 0.0, 200.0, np.float32(2e30)]
    assert np.abs(out[4:6]).max() < 1e-33
    assert out[6] == 160.0


@pytest.mark.parametrize("size", [1, *SIZES])
@pytest.mark.parametrize("spread", [1e-6, 1.0, 300.0])
def test_softmax(size: int, spread: float) -> None:
    scores = noise(size, 3, spread)
    scale = np.float32(0.125)
    weights = np.exp((np.float64(scores) - scores.max()) * np.float64(scale))
    total = r.softmax_unnormalized(scores, scale)
    np.testing.assert_allclose(scores, weights, rtol=1e-5, atol=2e-38)
    np.testing.assert_allclose(total, weights.sum(), rtol=1e-5)
    assert scores.max() == 1.0


@pytest.mark.parametrize("size", SIZES)
def test_sums_and_maxima(size: int) -> None:
    x = noise(size, 4)
    np.testing.assert_allclose(r.sum_of(x), np.float64(x).sum(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(r.sum_of_squares(x), (np.float64(x) ** 2).sum(), rtol=1e-5)
    assert r.largest(x) == x.max()
    assert r.largest(-np.abs(x)) == -np.abs(x).min()


# ---------------------------------------------------------------- rotary embedding


@pytest.mark.parametrize("size", [4, 16, 20, 64, 128])
def test_rotation_turns_halves_of_a_head(size: int) -> None:
    x, angles = noise(size), noise(size // 2, 5, 3.0)
    first, second = np.float64(x[: size // 2]), np.float64(x[size // 2 :])
    turned = (first + 1j * second) * np.exp(1j * np.float64(angles))
    r.rotate(x, np.cos(angles), np.sin(angles))
    np.testing.assert_allclose(x, np.concatenate((turned.real, turned.imag)), atol=2e-6)


def test_rotation_by_nothing_changes_no_bit() -> None:
    x = noise(64)
    before = x.copy()
    r.rotate(x, np.ones(32, np.float32), np.zeros(32, np.float32))
    np.testing.assert_array_equal(x, before)


# ---------------------------------------------------------------- the greedy choice

LOGITS = st.sampled_from([-math.inf, -2.5, -1.0, 0.0, 0.5, 0.5000001, 3.0])


def plainly_best(logits: Floats) -> tuple[int, float]:
    """Of equal ones the lowest place; NaN counts as nothing."""
    numbers = np.where(np.isnan(logits), -np.inf, logits)
    place = int(numbers.argmax())
    others = np.delete(numbers, place)
    with np.errstate(invalid="ignore"):
        return place, numbers[place] - (others.max() if len(others) else np.float32(-np.inf))


def same_choice(logits: Floats) -> None:
    place, lead = r.best_two(logits)
    want, margin = plainly_best(logits)
    assert place == want
    np.testing.assert_equal(np.float32(lead), np.float32(margin))


@settings(max_examples=300, deadline=None)
@given(st.lists(LOGITS, min_size=1, max_size=200))
def test_g1_the_best_is_the_first_of_the_largest(values: list[float]) -> None:
    same_choice(np.array(values, np.float32))


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 128, 129, 271, 49_152])
def test_the_best_of_many(size: int) -> None:
    for seed in range(20):
        same_choice(noise(size, seed))
        same_choice(np.round(noise(size, seed), 1))  # with ties


@pytest.mark.parametrize("size", [1, 2, 64, 65, 200])
@pytest.mark.parametrize("value", [0.0, -3.0, -np.inf, np.inf])
def test_equal_logits(size: int, value: float) -> None:
    same_choice(np.full(size, value, np.float32))


@pytest.mark.parametrize("places", [(0, 1), (5, 64), (63, 64), (64, 65), (0, 199), (100, 150)])
def test_g1_a_tie_across_blocks(places: tuple[int, int]) -> None:
    logits = noise(200)
    logits[list(places)] = 9.0
    assert r.best_two(logits) == (places[0], 0.0)


def test_nan_never_wins() -> None:
    for seed in range(200):
        generator = np.random.default_rng(seed)
        logits = noise(int(generator.integers(1, 300)), seed)
        logits[generator.random(len(logits)) < generator.choice([0.01, 0.3, 0.9, 1.0])] = np.nan
        if not np.isnan(logits).all():
            same_choice(logits)
        else:
            assert r.best_two(logits)[0] == 0
