"""From logits to a token: one rule for verification, plain decoding and every adapter.

Greedy takes the largest logit, on a tie the lowest id (case G1). Sampling adds Gumbel noise keyed by (seed,
position) to the filtered, scaled logits and takes the largest (Gumbel-max; Maddison et al. 2014,
arXiv:1411.0030), which samples exactly from softmax and depends on nothing but that key. Filters follow the
order of transformers' warpers. It does not know what a cache is.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grimboost.adapters.target import Chosen
from grimboost.stages.keyed_random import Purpose, gumbels
from grimboost.stages.sampling_rule import SamplingRule

Floats = NDArray[np.floating]
Mask = NDArray[np.bool_]


def is_plain_greedy(rule: SamplingRule, first: int) -> bool:
    """Whether the largest logit is chosen from position `first` on, whatever came before."""
    return rule.greedy and rule.repetition_penalty == 1.0 and first >= rule.suppressed_until


def choose_rows(
    logits: NDArray[np.float32], rule: SamplingRule, history: Sequence[int], bound: float = 0.0
) -> list[Chosen]:
    """Choose after each of the last rows of a slot.

    logits: [rows, vocabulary], float32, ids without a meaning already at -inf; used up. `history`: all tokens
    of the slot, the rows' own included, so that row i has its prefix `history[: len(history) - rows + 1 + i]`.
    `bound` (logits) is how much noise a margin has to account for near the edge of a filter.

    A margin is honest: a change of every logit by less than half of it (and of `bound`) changes no choice.
    """
    rows = logits.shape[0]
    first = len(history) - rows + 1
    if is_plain_greedy(rule, first):
        return _largest(logits)
    return [_choose(logits[row], rule, history[: first + row], bound) for row in range(rows)]


def _largest(scores: Floats) -> list[Chosen]:
    """Largest score of each row, lowest id first, and its lead. scores: [rows, vocabulary], changed."""
    rows = np.arange(len(scores))
    ids = scores.argmax(-1)
    best = scores[rows, ids]
    scores[rows, ids] = -math.inf
    with np.errstate(invalid="ignore"):  # without any finite score there is no lead: NaN
        leads = best - scores.max(-1)
    return [Chosen(int(id), float(lead)) for id, lead in zip(ids, leads, strict=True)]


def _choose(logits: NDArray[np.float32], rule: SamplingRule, prefix: Sequence[int], bound: float) -> Chosen:
    """One row. The token chosen takes position len(prefix)."""
    scores = _penalize(logits, rule, prefix)
    # the penalty stretches what noise the logits have, and with it what a lead is worth
    stretch = max(rule.repetition_penalty, 1.0 / rule.repetition_penalty)
    if rule.greedy:
        [largest] = _largest(scores[None])
        return Chosen(largest.id, largest.margin / stretch)
    # the largest becomes 0: a tiny temperature then overflows to -inf only, which is greedy
    with np.errstate(over="ignore"):
        scaled = (scores.astype(np.float64) - scores.max()) / rule.temperature
    kept, doubtful = _filter(scaled, rule, bound * stretch / rule.temperature)
    noisy = scaled + gumbels(rule.seed, len(prefix), Purpose.TARGET_CHOICE, len(scaled))
    [chosen] = _largest(np.where(kept, noisy, -math.inf)[None])
    if doubtful[chosen.id]:
        return Chosen(chosen.id, 0.0)
    if doubtful.any():  # a token at the edge of a filter might have been in, and have won
        rival = float(np.where(doubtful, noisy, -math.inf).max())
        lead = max(0.0, min(chosen.margin, float(noisy[chosen.id]) - rival))
        return Chosen(chosen.id, lead * rule.temperature / stretch)
    return Chosen(chosen.id, chosen.margin * rule.temperature / stretch)


def _penalize(logits: NDArray[np.float32], rule: SamplingRule, prefix: Sequence[int]) -> NDArray[np.float32]:
    """Repetition penalty and suppressed ids, for exactly this prefix (case G6)."""
    scores = logits.copy()
    if rule.repetition_penalty != 1.0 and prefix:
        seen = np.unique(np.asarray(prefix))
        values, penalty = scores[seen], np.float32(rule.repetition_penalty)
        scores[seen] = np.where(values < 0, values * penalty, values / penalty)
    if len(prefix) < rule.suppressed_until and rule.suppressed:
        scores[list(rule.suppressed)] = -math.inf
    return scores


def _filter(scaled: Floats, rule: SamplingRule, slack: float) -> tuple[Mask, Mask]:
    """Which ids top-k, top-p and min-p keep, and which of all ids are within `slack` of a filter's edge.

    scaled: [vocabulary] logits over temperature, float64. Both results: [vocabulary], bool.
    """
    kept = scaled > -math.inf
    doubtful = np.zeros_like(kept)
    if 0 < rule.top_k < np.count_nonzero(kept):
        inside, last_in, first_out = _first_k(scaled, rule.top_k)
        if slack > 0.0:
            with np.errstate(invalid="ignore"):  # -inf less -inf
                doubtful |= np.where(inside, scaled - first_out < slack, last_in - scaled < slack) & kept
        kept &= inside
    if rule.top_p < 1.0:
        inside, near = _nucleus(np.where(kept, scaled, -math.inf), rule.top_p, slack)
        doubtful |= near
        kept &= inside
    if rule.min_p > 0.0:
        distance = scaled - np.where(kept, scaled, -math.inf).max() - math.log(rule.min_p)
        if slack > 0.0:
            doubtful |= (np.abs(distance) < slack) & kept
        kept &= distance >= 0
    return kept, doubtful


def _first_k(scaled: Floats, k: int) -> tuple[Mask, float, float]:
    """The k largest, on a tie the lowest ids; the last score among them, and the first outside. k < vocabulary."""
    edge = len(scaled) - k
    parted = np.partition(scaled, (edge - 1, edge))
    inside = scaled > parted[edge]
    tied = np.flatnonzero(scaled == parted[edge])
    inside[tied[: k - np.count_nonzero(inside)]] = True
    return inside, float(parted[edge]), float(parted[edge - 1])


def _nucleus(scaled: Floats, top_p: float, slack: float) -> tuple[Mask, Mask]:
    """What top-p keeps (Holtzman et al. 2020, arXiv:1904.09751), and which ids are within `slack` of its edge.

    Only ids that may matter are sorted. The others, each below `floor`, have less than half of what lies beyond
    top-p together: they are outside, and so far behind that no slack brings one of them near the edge.
    """
    probabilities = np.exp(scaled - scaled.max())
    probabilities /= probabilities.sum()
    floor = (1.0 - top_p - slack / 4) / (2 * len(scaled)) * math.exp(-slack)
    ids = np.flatnonzero(probabilities >= floor) if floor > 0.0 else np.arange(len(scaled))
    ids = ids[np.argsort(-scaled[ids], kind="stable")]  # on a tie the lowest first
    ordered, probabilities = scaled[ids], probabilities[ids]
    inside, near = np.zeros(len(scaled), np.bool_), np.zeros(len(scaled), np.bool_)
    inside[ids] = probabilities.cumsum() - probabilities < top_p
    if slack > 0.0:
        near[ids] = _near_top_p(ordered, probabilities, top_p, slack) & (probabilities > 0)
    return inside, near


def _near_top_p(ordered: Floats, probabilities: Floats, top_p: float, slack: float) -> Mask:
    """Ranks that noise could move over the edge of top-p: by changing place with others, or the mass before.

    ordered, probabilities: [n], descending. Differences of logits change by less than `slack`, and
    then the probability of any set by less than a quarter of it.
    """
    mass = np.concatenate((np.zeros(1), probabilities.cumsum()))
    falling = -ordered
    surely_before = np.searchsorted(falling, falling - slack, side="right")
    perhaps_before = np.searchsorted(falling, falling + slack)
    surely_in = mass[perhaps_before] - probabilities + slack / 4 < top_p
    surely_out = mass[surely_before] - slack / 4 >= top_p
    return np.asarray(~(surely_in | surely_out))
