"""One rule from logits to a token: ties, filters, penalties, the distribution, and what a margin promises."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_models import BYTES
from transformers.generation import logits_process

from grimboost.adapters.choice import _filter, _penalize, choose_rows
from grimboost.adapters.scripted_target import ScriptedTarget
from grimboost.adapters.target import Chosen, Rows
from grimboost.stages.sampling_rule import SamplingRule

GREEDY = SamplingRule()
Logits = NDArray[np.float32]


def choose(
    logits: Logits, rule: SamplingRule = GREEDY, prefix: tuple[int, ...] = (0,), bound: float = 0.0
) -> Chosen:
    """One row behind `prefix`."""
    [chosen] = choose_rows(logits.copy()[None], rule, prefix, bound)
    return chosen


def noise(seed: int, size: int = 50, spread: float = 2.0) -> Logits:
    return np.random.default_rng(seed).normal(0.0, spread, size).astype(np.float32)


# ---------------------------------------------------------------- ties


@pytest.mark.parametrize("size", [10, 300, 5000])
def test_g1_of_equal_logits_the_lowest_id_wins(size: int) -> None:
    logits = np.zeros(size, np.float32)
    logits[7] = logits[9] = 5.0  # the output row of 7 is duplicated as 9
    assert choose(logits) == Chosen(7, 0.0)
    rule = SamplingRule(suppressed=(7,), suppressed_until=10)
    assert choose(logits, rule) == Chosen(9, 5.0)


def test_g1_a_duplicated_output_row_is_a_tie_that_the_lower_id_wins_in_every_split() -> None:
    weights = np.random.default_rng(3).normal(size=(len(BYTES), 8)).astype(np.float32)
    weights[7] = weights[9] = 3.0 * np.abs(weights).max(0)
    rows = np.abs(np.random.default_rng(4).normal(size=(6, 8))).astype(np.float32)
    logits = rows @ weights.T
    together = choose_rows(logits.copy(), GREEDY, range(6))
    assert [(one.id, one.margin) for one in together] == [(7, 0.0)] * 6
    assert together == [choose(logits[row], prefix=tuple(range(row + 1))) for row in range(6)]


def test_top_k_keeps_exactly_k_and_of_equal_ones_the_lowest_ids() -> None:
    kept, _ = _filter(np.array([1.0, 2.0, 1.0, 1.0]), SamplingRule(temperature=1.0, top_k=2), 0.0)
    assert kept.tolist() == [True, True, False, False]


def test_without_a_competitor_the_margin_is_infinite() -> None:
    logits = np.full(4, -math.inf, np.float32)
    logits[2] = 1.0
    assert choose(logits) == Chosen(2, math.inf)
    assert choose(logits, SamplingRule(temperature=1.0)) == Chosen(2, math.inf)
    assert choose(noise(1), SamplingRule(temperature=1.0, top_k=1)).margin == math.inf


@pytest.mark.parametrize("temperature", [1e-3, 1e-9, 1e-308])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    for seed in range(20):
        logits = noise(seed)
        want, got = choose(logits), choose(logits, SamplingRule(temperature=temperature, seed=seed))
        assert got.id == want.id
        if temperature > 1e-308:  # there the others are infinitely far behind
            assert got.margin == pytest.approx(want.margin, rel=1e-6, abs=20 * temperature)


# ---------------------------------------------------------------- filters and penalty, against transformers


def reference(logits: Logits, rule: SamplingRule, prefix: tuple[int, ...]) -> NDArray[np.float64]:
    """transformers' own processors in its order. Shape: [vocabulary], float64."""
    ids = torch.tensor([prefix])
    scores = torch.from_numpy(logits.copy())[None]
    if rule.repetition_penalty != 1.0:
        scores = logits_process.RepetitionPenaltyLogitsProcessor(rule.repetition_penalty)(ids, scores)
    scores = logits_process.TemperatureLogitsWarper(rule.temperature)(ids, scores.double())
    if rule.top_k:
        scores = logits_process.TopKLogitsWarper(rule.top_k)(ids, scores)
    if rule.top_p < 1.0:
        scores = logits_process.TopPLogitsWarper(rule.top_p)(ids, scores)
    if rule.min_p:
        scores = logits_process.MinPLogitsWarper(rule.min_p)(ids, scores)
    return np.asarray(scores[0].numpy(), np.float64)


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 5},
        {"top_k": 500},
        {"top_p": 0.8},
        {"top_p": 1e-6},
        {"min_p": 0.1},
        {"min_p": 1.0},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7},
        {"temperature": 0.3, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.2},
    ],
    ids=str,
)
def test_filters_keep_what_those_of_transformers_keep(options: dict[str, Any]) -> None:
    rule = SamplingRule(**{"temperature": 0.8} | options)
    for seed in range(30):
        logits, prefix = noise(seed), tuple(np.random.default_rng(seed).integers(0, 50, 12).tolist())
        want = reference(logits, rule, prefix)
        scores = _penalize(logits, rule, prefix)
        kept, _ = _filter(scores.astype(np.float64) / rule.temperature, rule, 0.0)
        assert kept.tolist() == (want > -math.inf).tolist()
        np.testing.assert_allclose(scores.astype(np.float64)[kept] / rule.temperature, want[kept])


def sorted_filter(scaled: NDArray[np.float64], rule: SamplingRule, slack: float) -> tuple[list[bool], list[bool]]:
    """What `_filter` promises, by sorting the whole vocabulary."""
    ranked = np.argsort(-scaled, kind="stable")
    kept, doubtful = scaled > -math.inf, np.zeros(len(scaled), np.bool_)
    if 0 < rule.top_k < kept.sum():
        last_in, first_out = scaled[ranked[rule.top_k - 1]], scaled[ranked[rule.top_k]]
        inside = np.isin(np.arange(len(scaled)), ranked[: rule.top_k])
        doubtful |= np.where(inside, scaled < first_out + slack, scaled > last_in - slack) & kept
        kept &= inside
    if rule.top_p < 1.0:
        left = ranked[kept[ranked]]
        probabilities = np.exp(scaled[left] - scaled[left[0]])
        probabilities /= probabilities.sum()
        for place, id in enumerate(left):
            before, own = probabilities[:place].sum(), probabilities[place]
            surely_before = probabilities[scaled[left] >= scaled[id] + slack].sum() if slack else before
            perhaps_before = probabilities[scaled[left] > scaled[id] - slack].sum() - own if slack else before
            surely_in, surely_out = (
                perhaps_before + slack / 4 < rule.top_p,
                surely_before - slack / 4 >= rule.top_p,
            )
            doubtful[id] |= slack > 0 and own > 0 and not surely_in and not surely_out
            kept[id] = before < rule.top_p
    if rule.min_p > 0.0:
        distance = scaled - scaled[kept].max() - math.log(rule.min_p)
        doubtful |= (np.abs(distance) < slack) & kept
        kept &= distance >= 0
    return kept.tolist(), doubtful.tolist()


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([1.0, 4.0, 20.0]),
    st.builds(
        SamplingRule,
        temperature=st.just(1.0),
        top_k=st.sampled_from([0, 1, 5, 59, 60]),
        top_p=st.sampled_from([1.0, 0.999, 0.9, 0.4, 1e-6]),
        min_p=st.sampled_from([0.0, 0.01, 0.3]),
    ),
    st.sampled_from([0.0, 0.07, 0.83]),  # no multiples of 0.1, so that no distance is just that
)
def test_filters_that_sort_only_what_matters_keep_what_a_full_sort_keeps(
    seed: int, spread: float, rule: SamplingRule, slack: float
) -> None:
    generator = np.random.default_rng(seed)
    scaled = np.round(generator.normal(0.0, spread, 60), 1)  # rounded, so that some are tied
    scaled[generator.random(60) < 0.2] = -math.inf
    scaled[0] = 0.0
    scaled -= scaled.max()
    kept, doubtful = _filter(scaled, rule, slack)
    assert (kept.tolist(), doubtful.tolist()) == sorted_filter(scaled, rule, slack)


def test_g6_each_row_is_penalized_for_exactly_its_prefix() -> None:
    logits = np.array([[4.0, 3.8, 3.6, 0.0]] * 4, np.float32)
    rule = SamplingRule(repetition_penalty=1.3)
    assert [one.id for one in choose_rows(logits.copy(), rule, (3, 0, 1, 0))] == [0, 1, 2, 2]
    assert [one.id for one in choose_rows(logits[:2].copy(), rule, (3, 0, 0))] == [1, 1]


def test_g6_suppressed_ids_come_back_at_their_position() -> None:
    logits = np.array([[0.0, 9.0, 5.0]] * 4, np.float32)
    rule = SamplingRule(suppressed=(1,), suppressed_until=4)
    assert [one.id for one in choose_rows(logits, rule, (0, 0, 0, 0, 0))] == [2, 2, 1, 1]


# ---------------------------------------------------------------- the distribution


@pytest.mark.parametrize(
    ("draws", "options"), [(20_000, {}), (6_000, {"top_k": 3}), (6_000, {"top_p": 0.75, "seed": 2**63})], ids=str
)
def test_g5_samples_have_the_distribution_of_the_softmax(draws: int, options: dict[str, Any]) -> None:
    rule = SamplingRule(**{"temperature": 1.0, "seed": 7} | options)
    logits = np.array([1.0, 0.2, 2.0, -1.0, 0.7], np.float32)
    counts = np.zeros(5)
    for chosen in choose_rows(np.broadcast_to(logits, (draws, 5)), rule, (0,) * draws):
        counts[chosen.id] += 1
    weights = np.exp(reference(logits, rule, (0,)))
    expected = weights / weights.sum() * draws
    assert counts[expected == 0].sum() == 0
    alive = expected > 0
    chi_square = (((counts - expected) ** 2)[alive] / expected[alive]).sum()
    degrees = int(alive.sum()) - 1
    p_value = float(torch.special.gammaincc(torch.tensor(degrees / 2), torch.tensor(chi_square / 2)))
    assert p_value > 1e-3


def test_g5_neighbouring_seeds_and_positions_are_independent_draws() -> None:
    logits = np.zeros(1000, np.float32)
    ids = {
        choose(logits, SamplingRule(temperature=1.0, seed=seed), (0,) * place).id
        for seed in (5, 6)
        for place in (1, 2)
    }
    assert len(ids) == 4


# ---------------------------------------------------------------- margins

RULES = st.builds(
    SamplingRule,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 3]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.3]),
    min_p=st.sampled_from([0.0, 0.2]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.6]),
    seed=st.integers(0, 50),
)
LOGITS = st.lists(
    st.sampled_from([-2.0, -1.0, -0.5, -0.1, 0.0, 0.05, 0.1, 0.5, 1.0, 1.05, 2.0]), min_size=2, max_size=7
)


@settings(max_examples=300, deadline=None)
@given(LOGITS, RULES)
def test_a_change_of_less_than_half_the_margin_changes_no_choice(values: list[float], rule: SamplingRule) -> None:
    """Whatever pulls hardest: the chosen id down, a rival up, all others up, down or not at all."""
    bound = 0.4
    logits = np.array(values, np.float32)
    chosen = choose(logits, rule, (0, 1), bound)
    reach = 0.999 * min(chosen.margin, bound) / 2
    for rival, others in itertools.product(set(range(len(values))) - {chosen.id}, (-reach, 0.0, reach)):
        moved = logits + np.float32(others)
        moved[chosen.id] = logits[chosen.id] - reach
        moved[rival] = logits[rival] + reach
        assert choose(moved, rule, (0, 1), bound).id == chosen.id


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 5), min_size=1, max_size=6), RULES)
def test_g5_any_split_into_passes_chooses_the_same(seed: int, sizes: list[int], rule: SamplingRule) -> None:
    def decode(parts: list[int]) -> list[Chosen]:
        target = ScriptedTarget(
            BYTES, logits=lambda prefix: noise(seed + sum(prefix) * 31 + len(prefix), len(BYTES))
        )
        slot, at, chosen = target.open(rule), 0, list[Chosen]()
        for size in parts:
            [some] = target.step([Rows(slot, tuple((at + place) % 7 for place in range(size)), size)])
            chosen, at = chosen + some, at + size
        return chosen

    assert decode(sizes) == decode([1] * sum(sizes))
