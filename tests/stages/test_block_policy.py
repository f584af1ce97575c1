"""How many spans a pass checks."""

from hypothesis import given
from hypothesis import strategies as st

from grimboost.stages.block_policy import GAIN_REQUIRED, AcceptanceEstimate, Company, block_length
from grimboost.stages.configuration import CostCurve

FLAT = CostCurve((1, 2, 4, 8, 16), (1.0, 1.0, 1.0, 1.0, 1.0))
LINEAR = CostCurve((1, 2, 16), (1.0, 2.0, 16.0))
probabilities = st.lists(st.floats(0.0, 0.995), max_size=12)
curves = st.lists(st.floats(0.1, 10.0), min_size=5, max_size=5).map(
    lambda steps: CostCurve((1, 2, 4, 8, 16), tuple(sum(steps[: n + 1]) for n in range(5)))
)


def rate(curve, chances, count):
    """Expected tokens per millisecond of a block of `count` spans, written out."""
    reach, expected = 1.0, 1.0
    for chance in chances[:count]:
        reach *= chance
        expected += reach
    return expected / curve.cost(count + 1)


@given(curves, probabilities)
def test_no_other_block_promises_more_tokens_per_millisecond(curve, chances):
    best = block_length(curve, chances)
    assert 0 <= best <= len(chances)
    others = [rate(curve, chances, count) for count in range(len(chances) + 1)]
    assert rate(curve, chances, best) >= max(others) / GAIN_REQUIRED
    if best:
        assert rate(curve, chances, best) > GAIN_REQUIRED * others[0]


@given(probabilities)
def test_speculation_is_off_where_a_row_costs_as_much_as_a_pass(chances):
    assert block_length(LINEAR, chances) == 0


@given(probabilities.filter(len))
def test_no_chance_no_block(chances):
    assert block_length(FLAT, [0.0, *chances]) == 0


@given(st.integers(0, 12))
def test_free_rows_take_every_likely_span(count):
    assert block_length(FLAT, [0.9] * count) == count


@given(curves, probabilities, st.integers(0, 12))
def test_an_unlikely_span_ends_the_block_before_it(curve, chances, place):
    cut = [*chances[:place], 0.0, *chances[place:]]
    assert block_length(curve, cut) <= min(place, len(chances))


def test_in_company_a_block_is_worth_what_it_adds_to_the_whole_pass():
    """One row is nearly free, eight cost much: alone it drafts, beside seven others it does not."""
    curve = CostCurve((1, 2, 8, 16), (1.0, 1.05, 4.0, 8.0))
    assert block_length(curve, [0.6]) == 1
    assert block_length(curve, [0.9], Company(7, 7)) == 0
    assert block_length(FLAT, [0.9], Company(7, 7)) == 1


def test_what_waiting_for_drafts_costs_is_charged_to_blocks_alone():
    slow = CostCurve((1, 2, 4), (100.0, 104.0, 110.0))
    quick = CostCurve((1, 2, 4), (4.0, 4.2, 5.0))
    assert block_length(slow, [0.2], waited=0.8) == block_length(quick, [0.2]) == 1
    assert block_length(quick, [0.2], waited=0.8) == 0
    assert block_length(quick, [0.9, 0.9], waited=0.8) == 2


def test_in_company_the_pass_waits_for_the_drafts_of_all():
    flat = CostCurve((1, 16, 32), (5.0, 5.0, 5.0))
    assert block_length(flat, [0.9] * 4, waited=1.0) == 4
    assert block_length(flat, [0.9] * 4, Company(7, 7), waited=1.0) == 0
    assert block_length(flat, [0.9] * 4, Company(7, 7), waited=0.01) == 4


@given(curves, probabilities)
def test_no_company_is_being_alone(curve, chances):
    assert block_length(curve, chances, Company()) == block_length(curve, chances)


def test_a_gain_below_the_uncertainty_of_the_curve_is_no_gain():
    just_below, just_above = GAIN_REQUIRED - 1.001, GAIN_REQUIRED - 0.999
    assert (block_length(FLAT, [just_below]), block_length(FLAT, [just_above])) == (0, 1)


observations = st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans()), max_size=60)


@given(observations, st.floats(0.0, 1.0))
def test_a_probability_stays_within_its_bounds_whatever_was_seen(seen, confidence):
    estimate = AcceptanceEstimate()
    for stated, accepted in seen:
        estimate.observe(stated, accepted)
    assert 0.0 <= estimate.probability(confidence) <= 0.995
    assert estimate.ratio >= 0.0


def test_nothing_seen_leaves_confidence_as_it_is():
    assert AcceptanceEstimate().probability(0.7) == 0.7


@given(st.floats(0.1, 0.99))
def test_a_drafter_that_is_always_wrong_is_believed_less_and_less(confidence):
    estimate, ratios = AcceptanceEstimate(), []
    for _ in range(60):
        estimate.observe(confidence, False)
        ratios.append(estimate.ratio)
    assert ratios == sorted(ratios, reverse=True)
    assert block_length(FLAT, [estimate.probability(confidence)]) == (confidence * ratios[-1] > GAIN_REQUIRED - 1)


def test_a_drafter_that_recovers_is_believed_again():
    estimate = AcceptanceEstimate()
    for _ in range(100):
        estimate.observe(0.9, False)
    for _ in range(100):
        estimate.observe(0.9, True)
    assert estimate.probability(0.9) > 0.9
