"""The calibration: monotone, near the identity while little is seen, sharp near 1, and it forgets."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grimboost.stages.calibration import (
    BINS,
    EDGES,
    MEMORY,
    Calibration,
    CalibrationCounts,
    CalibrationCurve,
    isotonic,
)

unit = st.floats(0.0, 1.0)
observations = st.lists(st.tuples(unit | st.sampled_from(EDGES), st.booleans()), max_size=80)
weighted = st.lists(st.tuples(unit, st.floats(0.1, 10.0)), min_size=1, max_size=12)


def calibrated(seen):
    calibration = Calibration()
    for confidence, agreed in seen:
        calibration.observe(confidence, agreed)
    return calibration


def clean(confidence, count, calibration=None):
    calibration = calibration or Calibration()
    for _ in range(count):
        calibration.observe(confidence, True, confidence)
    return calibration


@given(observations, unit, unit)
def test_a_surer_drafter_is_never_believed_less_and_all_stays_a_probability(seen, one, other):
    curve = calibrated(seen).curve()
    low, high = curve.of(min(one, other)), curve.of(max(one, other))
    assert 0.0 <= low <= high <= 1.0


@given(unit)
def test_nothing_seen_is_the_identity(confidence):
    assert Calibration().curve().of(confidence) == CalibrationCurve().of(confidence) == confidence


@given(unit, unit, st.booleans())
def test_one_observation_moves_little_and_in_its_own_direction(confidence, elsewhere, agreed):
    curve = calibrated([(confidence, agreed)]).curve()
    assert abs(curve.of(elsewhere) - elsewhere) <= 0.2 + 1e-9
    moved = curve.of(confidence) - min(confidence, 0.9999)
    assert moved >= -1e-12 if agreed else moved <= 1e-12


@given(st.floats(0.5, 1.0), st.sampled_from([400, 1000, 4000]))
def test_clean_spans_are_worth_about_one_error_in_as_many(confidence, count):
    value = clean(confidence, count).curve().of(confidence)
    assert value >= 1.0 - 2.0 / count
    assert value < 1.0
    assert value >= 0.995


def test_confidence_is_told_apart_up_to_four_nines():
    calibration = clean(0.99995, 9000)
    for place in range(1000):
        calibration.observe(0.9993, place % 100 != 0, 0.9993)
    curve = calibration.curve()
    assert curve.of(0.99995) >= 0.9999
    assert curve.of(0.9993) == pytest.approx(0.99, abs=0.001)


def test_a_drafter_that_says_more_than_it_knows_is_corrected_and_one_that_says_less_too():
    calibration = Calibration()
    for place in range(1000):
        calibration.observe(0.95, place % 2 == 0)
        calibration.observe(0.3, place % 10 != 0)
    curve = calibration.curve()
    assert curve.of(0.95) == curve.of(0.3) == pytest.approx(0.7, abs=0.01)  # surer is not believed less
    assert curve.of(0.1) < 0.3


def test_a_bin_that_was_never_seen_gives_way():
    assert clean(0.6, 400).curve().of(0.97) >= 0.995


def test_texts_change_and_old_observations_fade():
    calibration = clean(0.9, 3 * MEMORY)
    assert MEMORY / 2 <= sum(calibration.counts.seen) < MEMORY
    for _ in range(MEMORY):
        calibration.observe(0.9, False, 0.9)
    assert calibration.curve().of(0.9) < 0.34
    never = clean(0.9, MEMORY - 1)
    assert sum(never.counts.seen) == MEMORY - 1


@pytest.mark.parametrize(("given", "as_if"), [(-0.5, 0.0), (1.5, 1.0), (float("nan"), 0.0), (float("inf"), 1.0)])
def test_a_confidence_that_is_none_is_clipped(given, as_if):
    curve = calibrated([(0.2, False), (0.99, True)]).curve()
    assert curve.of(given) == curve.of(as_if)
    one, other = calibrated([(given, True)]), calibrated([(as_if, True)])
    assert one.counts == other.counts


@given(weighted)
def test_pooling_gives_the_nearest_rising_sequence(pairs):
    """Against the minimum-maximum formula of the same thing (Robertson, Wright & Dykstra 1988)."""
    values, weights = zip(*pairs, strict=True)
    size = len(values)

    def mean(left, right):
        part = range(left, right + 1)
        return sum(values[i] * weights[i] for i in part) / sum(weights[i] for i in part)

    slow = [max(min(mean(a, b) for b in range(place, size)) for a in range(place + 1)) for place in range(size)]
    assert isotonic(values, weights) == pytest.approx(slow)


@given(observations)
def test_counts_are_all_there_is_and_survive_json(seen):
    calibration = calibrated(seen)
    kept = msgspec.json.decode(msgspec.json.encode(calibration.counts), type=CalibrationCounts)
    assert kept == calibration.counts
    again = Calibration(kept)
    assert again.curve() == calibration.curve()
    assert (again.error(), again.raw_error()) == (calibration.error(), calibration.raw_error())
    curve = calibration.curve()
    assert msgspec.json.decode(msgspec.json.encode(curve), type=CalibrationCurve) == curve


@given(observations, st.randoms(use_true_random=False))
def test_the_curve_does_not_depend_on_the_order(seen, random):
    shuffled = list(seen)
    random.shuffle(shuffled)
    one, other = calibrated(seen), calibrated(shuffled)
    assert (one.counts.seen, one.counts.agreed, one.curve()) == (
        other.counts.seen,
        other.counts.agreed,
        other.curve(),
    )


def test_errors_are_how_far_promises_lie_from_what_came():
    calibration = Calibration()
    for place in range(100):
        calibration.observe(0.9, place % 2 == 0, 0.6)
        calibration.observe(0.2, place % 5 == 0, 0.2)
    assert calibration.raw_error() == pytest.approx((0.4 + 0.0) / 2)
    assert calibration.error() == pytest.approx((0.1 + 0.0) / 2)
    assert Calibration().error() == Calibration().raw_error() == 0.0


def test_what_was_stated_is_by_default_what_the_curve_said_before():
    calibration = clean(0.5, 400)
    before = calibration.curve().of(0.5)
    stated = sum(calibration.counts.stated)
    calibration.observe(0.5, False)
    assert sum(calibration.counts.stated) - stated == pytest.approx(before)


def test_calibrating_helps_where_the_drafter_is_overconfident():
    calibration = Calibration()
    for place in range(2000):
        calibration.observe(0.97, place % 5 != 0)
    assert calibration.error() < 0.01
    assert calibration.raw_error() > 0.1


@pytest.mark.parametrize(
    "wrong",
    [
        {"seen": [1.0], "agreed": [1.0], "raw": [1.0], "stated": [1.0]},
        {"seen": [1.0] * BINS, "agreed": [2.0] * BINS, "raw": [1.0] * BINS, "stated": [1.0] * BINS},
        {"seen": [1.0] * BINS, "agreed": [-1.0] * BINS, "raw": [1.0] * BINS, "stated": [1.0] * BINS},
        {"seen": [1.0] * BINS, "agreed": [1.0] * BINS, "raw": [1.0] * BINS},
        {"seen": [1.0] * BINS},
        {"unknown": []},
    ],
)
def test_counts_that_cannot_be_are_refused(wrong):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(wrong), type=CalibrationCounts)


@pytest.mark.parametrize(
    ("raw", "values"), [((0.1,), ()), ((0.1, 0.2), (0.5, 0.4)), ((0.2, 0.1), (0.4, 0.5)), ((0.5,), (1.5,))]
)
def test_curves_that_cannot_be_are_refused(raw, values):
    with pytest.raises(ValueError, match="calibration curve"):
        CalibrationCurve(raw, values)
