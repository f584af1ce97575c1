"""Wagers about a rate: the mixture against a slow product, exactness of the shortcut, bounds, the watch."""

from itertools import product
from math import exp, inf, log, prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grimboost.stages.e_process import (
    ALARM,
    DECADES,
    GRID,
    RATIOS,
    WATCHED,
    Watch,
    log_e_value,
    rate_upper,
    spans_needed,
    wilson_upper,
)

epsilons = st.sampled_from([0.0001, 0.001, 0.01, 0.05, 0.2, 0.5])
outcomes = st.lists(st.booleans(), max_size=60)
chances = st.floats(0.0, 1.0)


def slow_e_value(epsilon, slips):
    """Span by span, wager by wager, without logarithms."""
    rates = [epsilon * 10 ** (-DECADES * (place + 0.5) / GRID) for place in range(GRID)]
    wagers = [prod(q / epsilon if slip else (1 - q) / (1 - epsilon) for slip in slips) for q in rates]
    return sum(wagers) / GRID


def counted(slips):
    return len(slips), sum(slips)


@given(epsilons, outcomes)
def test_the_mixture_is_the_mean_of_products_in_any_order(epsilon, slips):
    expected = slow_e_value(epsilon, slips)
    assert exp(log_e_value(epsilon, *counted(slips))) == pytest.approx(expected, rel=1e-9)
    assert slow_e_value(epsilon, sorted(slips)) == pytest.approx(expected, rel=1e-9)


@given(epsilons, st.integers(0, 500), st.integers(0, 2000))
def test_a_clean_span_raises_the_e_value_and_a_slip_lowers_it(epsilon, slips, clean):
    now = log_e_value(epsilon, slips + clean, slips)
    assert log_e_value(epsilon, slips + clean + 1, slips) >= now - 1e-9
    assert log_e_value(epsilon, slips + clean + 1, slips + 1) <= now + 1e-9


def expected(epsilon, conditional, seen=()):
    """Mean of the e-value over all outcomes, where the chance of a slip depends on all that was seen."""
    if len(seen) == len(conditional):
        return slow_e_value(epsilon, seen)
    chance = conditional[len(seen)][sum(seen)]
    return chance * expected(epsilon, conditional, (*seen, True)) + (1 - chance) * expected(
        epsilon, conditional, (*seen, False)
    )


@settings(max_examples=30)
@given(epsilons, st.lists(st.lists(chances, min_size=6, max_size=6), min_size=5, max_size=5))
def test_in_the_mean_nothing_is_won_at_epsilon_or_above_whatever_the_past(epsilon, drawn):
    conditional = [[epsilon + (1 - epsilon) * chance for chance in row] for row in drawn]
    assert expected(epsilon, conditional) <= 1 + 1e-9
    assert expected(epsilon, [[epsilon] * 6] * 5) == pytest.approx(1.0)


@given(epsilons, st.lists(chances, min_size=5, max_size=5))
def test_nor_where_rates_only_reach_epsilon_in_the_mean(epsilon, drawn):
    """Chances fixed beforehand, some of them below epsilon."""
    mean = sum(drawn) / len(drawn)
    rates = [chance * epsilon / mean if mean > epsilon else chance + epsilon - mean for chance in drawn]
    assume(max(rates) <= 1)
    assert sum(rates) / len(rates) == pytest.approx(epsilon)
    total = 0.0
    for slips in product((False, True), repeat=5):
        total += prod(p if slip else 1 - p for p, slip in zip(rates, slips, strict=True)) * slow_e_value(
            epsilon, slips
        )
    assert total <= 1 + 1e-9


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 0.05), (0.01, 0.2), (0.2, 0.01)])
def test_the_spans_needed_are_the_first_that_suffice(epsilon, delta):
    for slips in range(5):
        needed = spans_needed(epsilon, delta, slips)
        enough = [spans for spans in range(slips, needed + 5) if log_e_value(epsilon, spans, slips) >= -log(delta)]
        assert enough[0] == needed
        assert needed > slips / epsilon


def test_clean_spans_to_show_one_in_a_thousand():
    assert 3200 < spans_needed(0.001, 0.05, 0) <= 3400


@given(st.integers(0, 40), st.integers(0, 3000), st.floats(0.001, 0.5))
def test_the_bound_is_where_the_e_value_excludes_and_above_what_was_seen(slips, clean, delta):
    spans = slips + clean
    upper = rate_upper(spans, slips, delta)
    assert 0.0 < upper <= 1.0
    if clean:
        assert upper > slips / spans
    if upper < 1.0 - 1e-9:
        assert log_e_value(min(upper * 1.001, 1 - 1e-12), spans, slips) >= -log(delta)
        assert log_e_value(upper * 0.999, spans, slips) < -log(delta)


@pytest.mark.parametrize("bound", [rate_upper, wilson_upper])
def test_without_evidence_every_rate_is_possible(bound):
    assert bound(0, 0, 0.05) == 1.0
    assert bound(7, 7, 0.05) == 1.0
    assert bound(10**6, 0, 0.05) < 1e-4


def test_the_bound_and_the_spans_needed_say_the_same():
    needed = spans_needed(0.01, 0.05, 2)
    assert rate_upper(needed, 2, 0.05) <= 0.01 < rate_upper(needed - 1, 2, 0.05)


@pytest.mark.parametrize(("spans", "slips"), [(100, 10), (1000, 0), (50, 49)])
def test_wilson_is_the_rate_from_which_what_was_seen_lies_z_deviations_off(spans, slips):
    bound, z = wilson_upper(spans, slips, 0.05), 1.6448536269514722
    assert bound - slips / spans == pytest.approx(z * (bound * (1 - bound) / spans) ** 0.5)


def slow_wagers(epsilon, slips):
    """Every wager of the watch after every span."""
    rates = [min(epsilon * factor, (1 + epsilon) / 2) for factor in WATCHED]
    wagers = [1.0] * len(rates)
    for slip in slips:
        factors = [q / epsilon if slip else (1 - q) / (1 - epsilon) for q in rates]
        wagers = [max(1.0, wager) * factor for wager, factor in zip(wagers, factors, strict=True)]
        yield wagers


def first(alarms):
    return next((place for place, alarm in enumerate(alarms) if alarm), None)


def watched(epsilon, slips):
    watch = Watch(epsilon)
    return first(watch.observe(slip) for slip in slips)


@given(epsilons, st.lists(st.integers(0, 40), max_size=12), st.integers(0, 50))
def test_the_watch_equals_wagers_kept_span_by_span(epsilon, gaps, rest):
    slips = [slip for gap in gaps for slip in (*[False] * gap, True)] + [False] * rest
    slow = first(sum(wagers) / len(wagers) >= ALARM for wagers in slow_wagers(epsilon, slips))
    assert watched(epsilon, slips) == slow


@given(epsilons, st.lists(st.booleans(), max_size=40))
def test_the_watch_keeps_the_wagers_after_the_last_slip(epsilon, slips):
    slips, watch = [*slips, True], Watch(epsilon)
    for slip in slips:
        watch.observe(slip)
    *_, wagers = slow_wagers(epsilon, slips)
    assert watch.levels == pytest.approx([log(wager) for wager in wagers])
    assert watch.clean == 0


@given(epsilons, st.lists(st.booleans(), max_size=40), st.integers(0, 40))
def test_a_watch_goes_on_from_what_was_kept(epsilon, slips, cut):
    whole, part = Watch(epsilon), Watch(epsilon)
    for slip in slips:
        whole.observe(slip)
    for slip in slips[:cut]:
        part.observe(slip)
    part = Watch(epsilon, part.levels, part.clean)
    for slip in slips[cut:]:
        part.observe(slip)
    assert (part.levels, part.clean) == (whole.levels, whole.clean)


@given(epsilons, st.integers(0, 10**6))
def test_clean_spans_raise_no_alarm_and_leave_no_credit(epsilon, clean):
    """A long good past does not delay the alarm: wagers restart at 1."""
    fresh, after = Watch(epsilon), Watch(epsilon, clean=clean)
    for _ in range(20):
        assert fresh.observe(True) == after.observe(True)


def test_the_alarm_comes_soon_at_five_epsilon_and_with_three_slips_in_a_row():
    every_200th = [place % 200 == 199 for place in range(5000)]
    at = watched(0.001, every_200th)
    assert at is not None
    assert at < 2500
    assert watched(0.001, [True] * 3) == 2
    assert watched(0.001, [place % 2000 == 1999 for place in range(100_000)]) is None


def test_wagers_of_the_watch_win_nothing_at_epsilon_or_below():
    for epsilon, factor, rate in product((0.0001, 0.01, 0.5), WATCHED, (0.0, 0.5, 1.0)):
        q, p = min(epsilon * factor, (1 + epsilon) / 2), epsilon * rate
        assert epsilon < q < 1
        assert p * q / epsilon + (1 - p) * (1 - q) / (1 - epsilon) <= 1 + 1e-12


def test_the_grid_spans_three_decades_below_epsilon():
    assert len(RATIOS) == GRID
    assert 0.001 < min(RATIOS) < max(RATIOS) < 1.0
    assert max(WATCHED) < inf
