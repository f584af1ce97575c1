"""From logits to a token: one rule for verification, plain decoding and every adapter.

Greedy takes the largest logit, on a tie the lowest id (case G1). Sampling adds Gumbel noise keyed by (seed,
position) to the filtered, scaled logits and takes the largest (Gumbel-max; Maddison et al. 2014,
arXiv:1411.0030), which samples exactly from softmax and depends on nothing but that key. Filters follow the
order of transformers' warpers. It does not know what a cache is.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from grimboost.adapters.target import Chosen
from grimboost.stages.keyed_random import Purpose, gumbels
from grimboost.stages.sampling_rule import SamplingRule


def choose_rows(logits: Tensor, rule: SamplingRule, history: Sequence[int], bound: float = 0.0) -> list[Chosen]:
    """Choose after each of the last rows of a slot.

    logits: [rows, vocabulary], float32, ids without a meaning already at -inf; used up. `history`: all tokens
    of the slot, the rows' own included, so that row i has its prefix `history[: len(history) - rows + 1 + i]`.
    `bound` (logits) is how much noise a margin has to account for near the edge of a filter.

    A margin is honest: a change of every logit by less than half of it (and of `bound`) changes no choice.
    """
    rows = logits.shape[0]
    first = len(history) - rows + 1
    if rule.greedy and rule.repetition_penalty == 1.0 and first >= rule.suppressed_until:
        return _largest(logits)
    return [_choose(logits[row], rule, history[: first + row], bound) for row in range(rows)]


def _largest(scores: Tensor) -> list[Chosen]:
    """Largest score of each row, lowest id first, and its lead. scores: [rows, vocabulary], changed."""
    ids = scores.argmax(-1, keepdim=True)
    best = scores.gather(-1, ids)
    second = scores.scatter_(-1, ids, -math.inf).amax(-1, keepdim=True)
    margins = (best - second).squeeze(-1).tolist()
    return [Chosen(id, margin) for id, margin in zip(ids.squeeze(-1).tolist(), margins, strict=True)]


def _choose(logits: Tensor, rule: SamplingRule, prefix: Sequence[int], bound: float) -> Chosen:
    """One row. The token chosen takes position len(prefix)."""
    scores = _penalize(logits, rule, prefix)
    # the penalty stretches what noise the logits have, and with it what a lead is worth
    stretch = max(rule.repetition_penalty, 1.0 / rule.repetition_penalty)
    if rule.greedy:
        [largest] = _largest(scores[None])
        return Chosen(largest.id, largest.margin / stretch)
    # the largest becomes 0: a tiny temperature then overflows to -inf only, which is greedy
    scaled = (scores.double() - scores.max()) / rule.temperature
    kept, doubtful = _filter(scaled, rule, bound * stretch / rule.temperature)
    noise = torch.from_numpy(gumbels(rule.seed, len(prefix), Purpose.TARGET_CHOICE, scaled.shape[0]))
    noisy = scaled + noise
    [chosen] = _largest(torch.where(kept, noisy, -math.inf)[None])
    if doubtful[chosen.id]:
        return Chosen(chosen.id, 0.0)
    if doubtful.any():  # a token at the edge of a filter might have been in, and have won
        rival = float(torch.where(doubtful, noisy, -math.inf).max())
        lead = max(0.0, min(chosen.margin, float(noisy[chosen.id]) - rival))
        return Chosen(chosen.id, lead * rule.temperature / stretch)
    return Chosen(chosen.id, chosen.margin * rule.temperature / stretch)


def _penalize(logits: Tensor, rule: SamplingRule, prefix: Sequence[int]) -> Tensor:
    """Repetition penalty and suppressed ids, for exactly this prefix (case G6)."""
    scores = logits.clone()
    if rule.repetition_penalty != 1.0 and prefix:
        seen = torch.tensor(sorted(set(prefix)))
        values = scores[seen]
        scores[seen] = torch.where(values < 0, values * rule.repetition_penalty, values / rule.repetition_penalty)
    if len(prefix) < rule.suppressed_until and rule.suppressed:
        scores[list(rule.suppressed)] = -math.inf
    return scores


def _filter(scaled: Tensor, rule: SamplingRule, slack: float) -> tuple[Tensor, Tensor]:
    """Which ids top-k, top-p and min-p keep, and which of all ids are within `slack` of a filter's edge.

    scaled: [vocabulary] logits over temperature, float64. Both results: [vocabulary], bool.
    """
    kept = scaled > -math.inf
    doubtful = torch.zeros_like(kept)
    if 0 < rule.top_k < int(kept.sum()):
        edges = scaled.topk(rule.top_k + 1).values
        inside = _first_k(scaled, rule.top_k)
        doubtful |= torch.where(inside, scaled - edges[-1] < slack, edges[-2] - scaled < slack) & kept
        kept &= inside
    if rule.top_p < 1.0:
        ordered, order = torch.where(kept, scaled, -math.inf).sort(descending=True, stable=True)
        probabilities = ordered.softmax(-1)
        if slack > 0.0:
            doubtful[order] |= _near_top_p(ordered, probabilities, rule.top_p, slack) & (probabilities > 0)
        kept[order] &= probabilities.cumsum(-1) - probabilities < rule.top_p
    if rule.min_p > 0.0:
        distance = scaled - torch.where(kept, scaled, -math.inf).max() - math.log(rule.min_p)
        doubtful |= (distance.abs() < slack) & kept
        kept &= distance >= 0
    return kept, doubtful


def _near_top_p(ordered: Tensor, probabilities: Tensor, top_p: float, slack: float) -> Tensor:
    """Ranks that noise could move over the edge of top-p: by changing place with others, or the mass before.

    ordered, probabilities: [vocabulary], descending. Differences of logits change by less than `slack`, and
    then the probability of any set by less than a quarter of it.
    """
    mass = torch.cat((probabilities.new_zeros(1), probabilities.cumsum(-1)))
    falling = -ordered
    surely_before = torch.searchsorted(falling, falling - slack, right=True)
    perhaps_before = torch.searchsorted(falling, falling + slack)
    surely_in = mass[perhaps_before] - probabilities + slack / 4 < top_p
    surely_out = mass[surely_before] - slack / 4 >= top_p
    return ~(surely_in | surely_out)


def _first_k(scaled: Tensor, k: int) -> Tensor:
    """The k largest, on a tie the lowest ids. Shape: [vocabulary], bool."""
    order = scaled.sort(descending=True, stable=True).indices
    inside = torch.zeros_like(scaled, dtype=torch.bool)
    inside[order[:k]] = True
    return inside
