"""The simulation of the certificate says span by span what the certificate does: else its numbers mean nothing."""

import importlib.util
from itertools import product
from math import inf, isinf
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grimboost.stages.certificate import Certificate, Terms
from grimboost.stages.e_process import Watch, rate_upper, wilson_upper

ROOT = Path(__file__).parent.parent


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_certificate", ROOT / "bench" / "certificate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bench = _loaded()
EPSILON, DELTA = 0.05, 0.1
TERMS = Terms(EPSILON, DELTA, (0.5,))
NEEDED = bench.certificate_needs(800, EPSILON, DELTA)
gaps = st.lists(st.integers(1, 200), min_size=len(NEEDED), max_size=len(NEEDED))


class Scripted:
    """Gaps between slips in the place of random ones."""

    def __init__(self, gaps: list[int]) -> None:
        self._gaps = iter(gaps)

    def geometric(self, _rate: float, runs: int) -> Any:
        return np.full(runs, next(self._gaps, 10**9))


@given(gaps)
def test_it_opens_where_the_certificate_does(gaps: list[int]) -> None:
    places = np.cumsum([gaps], axis=1)
    slips, certificate, at = set(places[0].tolist()), Certificate(TERMS), inf
    for span in range(1, 801):
        certificate.observe(0.9, span in slips, False)
        if certificate.opened:
            at = span
            break
    assert bench.openings(places, NEEDED, 800)[0] == at


@given(st.lists(st.integers(1, 2000), max_size=15))
def test_it_closes_where_the_watch_does(gaps: list[int]) -> None:
    watch, at = Watch(bench.EPSILON), 0
    expected = inf
    for gap in gaps:
        at += gap
        watch.clean += gap - 1
        if watch.observe(True):
            expected = at
            break
    assert bench.closings(Scripted(gaps), 0.1, 1, 10**6)[0] == expected


def slow_sums(gaps: list[int]) -> float:
    """Shiryaev-Roberts, span by span."""
    epsilon, at = bench.EPSILON, 0
    rates = np.minimum(epsilon * np.array(bench.WATCHED), (1 + epsilon) / 2)
    sums = np.zeros(len(rates))
    for gap in gaps:
        for place in range(gap):
            at += 1
            slip = place == gap - 1
            sums = (sums + 1) * (rates / epsilon if slip else (1 - rates) / (1 - epsilon))
        if sums.mean() >= 100 * bench.ALARM:
            return at
    return inf


@pytest.mark.parametrize("gaps", [[5, 5, 5, 5, 5], [300] * 12, [2000] * 3, [100, 1, 500, 40, 40, 30]])
def test_the_other_detector_is_what_it_is_called(gaps: list[int]) -> None:
    assert bench.closings(Scripted(gaps), 0.1, 1, 10**6, restarting=False)[0] == slow_sums(gaps)


def test_some_of_these_close_and_some_do_not() -> None:
    assert not isinf(slow_sums([5] * 5))
    assert isinf(slow_sums([2000] * 3))


def test_the_exact_probability_is_that_of_all_outcomes() -> None:
    terms, needed = Terms(0.3, 0.4, (0.5,)), bench.certificate_needs(12, 0.3, 0.4)
    total = 0.0
    for slips in product((False, True), repeat=12):
        certificate = Certificate(terms)
        opened = False
        for slip in slips:
            certificate.observe(0.9, slip, False)
            opened |= certificate.opened
        total += opened * 0.3 ** sum(slips) * 0.7 ** (12 - sum(slips))
    assert 0.0 < total < 0.4
    assert bench.exact_opening(needed, 0.3, 12) == pytest.approx(total)


def test_needs_reach_beyond_the_horizon_and_wilson_is_looked_at_after_every_span() -> None:
    assert NEEDED[-2] <= 800 < NEEDED[-1]
    for slips, needed in enumerate(bench.wilson_needs(9000)):
        assert wilson_upper(int(needed), slips, 0.05) <= bench.EPSILON < wilson_upper(int(needed) - 1, slips, 0.05)


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.floats(0.02, 0.9))
def test_a_bound_on_answers_fails_where_the_certificate_s_is_below(losses: list[bool], rate: float) -> None:
    uppers = [rate_upper(count, sum(losses[:count]), 0.05) for count in range(1, len(losses) + 1)]
    near = min(abs(upper - rate) for upper in uppers)
    failed = bench.exclusions(np.full((1, len(losses)), rate), np.array([losses]))[0]
    assert near < 1e-9 or failed == (min(uppers) < rate)


@given(st.integers(0, 10**6))
def test_thresholds_pass_where_the_certificate_s_do(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bands = rng.choice(4, size=9000, p=(0.7, 0.1, 0.1, 0.1))
    slips = rng.random(9000) < 0.0002 * (1 + bands)
    needed = bench.certificate_needs(9000)
    assert bench.passes(bands, slips, needed) == bench.certified_passes(bands, slips)


def test_bad_answers_have_their_share_alone_and_in_spells() -> None:
    for stay in (0.1, 0.6):
        rates, bad = bench.bad_answers(np.random.default_rng(1), 500, 200, 0.1, stay)
        assert bad.mean() == pytest.approx(0.1, abs=0.01)
        assert rates.mean() == pytest.approx(0.1, abs=0.01)
        assert bad[:, 1:][bad[:, :-1]].mean() == pytest.approx(stay, abs=0.05)
