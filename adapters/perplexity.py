"""Perplexity of a packed model on a text: how much a precision costs in quality.

The text is the language reference in Python's own `pydoc_data`, which every machine has. It knows no slots.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from grimboost.adapters.packed_model import PackedModel
from grimboost.adapters.packed_runner import MOST_ROWS, Cache, Row, Runner
from grimboost.adapters.target_tokenizer import TargetTokenizer

WINDOW = 1024
"""Tokens that are read in one piece; each sees those before it in the same piece."""


def sample_ids(tokenizer: TargetTokenizer, count: int) -> list[int]:
    """The first tokens of the language reference, without control tokens."""
    from pydoc_data.topics import topics

    ids: list[int] = []
    for name in sorted(topics):
        ids += tokenizer.prompt_ids(topics[name], template="none")
        if len(ids) >= count:
            break
    return ids[:count]


def perplexity(runner: Runner, model: PackedModel, ids: Sequence[int]) -> float:
    """exp of the mean negative log-likelihood of each token behind those before it in its window."""
    losses = list(_losses(runner, model, ids))
    return math.exp(sum(losses) / len(losses))


def _losses(runner: Runner, model: PackedModel, ids: Sequence[int]) -> Iterator[float]:
    window = min(WINDOW, model.shape.positions)
    for start in range(0, len(ids) - 1, window):
        piece = ids[start : start + window]
        cache = Cache(model)
        cache.reserve(len(piece))
        for begin in range(0, len(piece) - 1, MOST_ROWS):
            part = piece[begin : begin + MOST_ROWS]
            following = piece[begin + 1 : begin + 1 + len(part)]
            rows = [Row(token, begin + place, cache, True) for place, token in enumerate(part)]
            logits = runner.run(rows).logits[: len(following)].astype(np.float64)
            top = logits.max(-1)
            total = top + np.log(np.exp(logits - top[:, None]).sum(-1))
            yield from (total - logits[np.arange(len(following)), following]).tolist()
