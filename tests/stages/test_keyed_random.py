"""Random numbers depend on (seed, position, purpose) and on nothing else (case G5)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grimboost.stages.keyed_random import Purpose, gumbels, uniforms

seeds = st.integers(0, 2**64 - 1)
positions = st.integers(0, 2**31)
purposes = st.sampled_from(Purpose)
keys = st.tuples(seeds, positions, purposes)

PINNED = {
    (0, 0, Purpose.TARGET_CHOICE): [0.8133540609793565, 0.7513314251083366, 0.6716490436969985],
    (7, 3, Purpose.TARGET_CHOICE): [0.34038383804135675, 0.11123498753933492, 0.25887473135739747],
    (2**64 - 1, 5, Purpose.DRAFTER_CHOICE): [0.21466528412804842, 0.13043359727430792, 0.01773371230104448],
}


@pytest.mark.parametrize("key", PINNED, ids=lambda key: "-".join(str(part) for part in key))
def test_the_stream_is_pinned(key):
    """A change here changes every sampled output with a seed, and the replay of every sampled log."""
    assert uniforms(*key, len(PINNED[key])).tolist() == PINNED[key]


@given(keys, st.integers(1, 50))
def test_numbers_lie_in_the_open_interval_and_their_noise_is_finite(key, count):
    numbers = uniforms(*key, count)
    assert numbers.shape == (count,)
    assert (numbers > 0.0).all() and (numbers < 1.0).all()
    assert np.isfinite(gumbels(*key, count)).all()


@pytest.mark.parametrize("bits", [0, 2**64 - 1])
def test_the_interval_is_open_for_extreme_bits(bits, monkeypatch):
    class Stuck:
        def __init__(self, **_):
            pass

        def random_raw(self, count):
            return np.full(count, bits, dtype=np.uint64)

    monkeypatch.setattr(np.random, "Philox", Stuck)
    [number] = uniforms(0, 0, Purpose.TARGET_CHOICE, 1)
    assert 0.0 < number < 1.0
    assert math.isfinite(gumbels(0, 0, Purpose.TARGET_CHOICE, 1)[0])


@given(keys, st.integers(1, 20), st.integers(0, 20))
def test_a_number_does_not_depend_on_how_many_are_drawn_with_it(key, count, more):
    assert uniforms(*key, count + more)[:count].tolist() == uniforms(*key, count).tolist()


@given(keys, keys)
def test_no_two_keys_share_a_number(one, other):
    if one != other:
        assert not set(uniforms(*one, 8).tolist()) & set(uniforms(*other, 8).tolist())


@given(seeds, positions, purposes)
def test_neighbours_in_each_part_of_the_key_share_no_number(seed, position, purpose):
    base = set(uniforms(seed, position, purpose, 64).tolist())
    other_purpose = next(one for one in Purpose if one is not purpose)
    for near in ((seed ^ 1, position, purpose), (seed, position + 1, purpose), (seed, position, other_purpose)):
        assert not base & set(uniforms(*near, 64).tolist())


@given(st.integers(2**63, 2**64 - 2))
def test_large_seeds_are_told_apart_to_the_last_bit(seed):
    """A key made from a list of Python integers became floats from 2**63 on, and neighbours one stream."""
    one, next_one = (uniforms(near, 0, Purpose.TARGET_CHOICE, 4).tolist() for near in (seed, seed + 1))
    assert one != next_one


def test_one_number_per_position_is_uniform_over_positions():
    numbers = [uniforms(11, position, Purpose.TARGET_CHOICE, 1)[0] for position in range(4000)]
    counts, _ = np.histogram(numbers, bins=10, range=(0.0, 1.0))
    assert ((counts - 400) ** 2 / 400).sum() < 33.7  # chi-square, 9 degrees of freedom, one in 10,000


def test_the_largest_of_log_p_plus_noise_is_a_sample_from_p():
    p = np.array([0.5, 0.3, 0.15, 0.05])
    noise = [gumbels(3, position, Purpose.TARGET_CHOICE, 4) for position in range(4000)]
    drawn = (np.log(p) + noise).argmax(-1)
    expected = 4000 * p
    assert ((np.bincount(drawn, minlength=4) - expected) ** 2 / expected).sum() < 21.1  # 3 degrees, one in 10,000
