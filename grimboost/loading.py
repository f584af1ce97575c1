"""From a model reference to a target that is ready: model, tokenizer, segmenter, end ids and cost curve.

Everything here blocks; the engine calls it in a thread. It knows nothing of generations.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from grimboost.adapters.drafter import Drafter
from grimboost.adapters.segmentation import LongestMatchSegmenter, Segmenter
from grimboost.adapters.target import Precision, Target
from grimboost.errors import MisuseError
from grimboost.model_cache import cache_root
from grimboost.model_references import Progress, resolve
from grimboost.openmp import limit_spinning
from grimboost.stages.configuration import CostCurve

if TYPE_CHECKING:
    from grimboost.adapters.target_tokenizer import EndIds, TargetTokenizer

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
DRAFTERS = ("lookup", "none")


class LoadedTarget:
    """A target with what belongs to it. Without a tokenizer, prompts are token ids."""

    def __init__(
        self,
        target: Target,
        curve: CostCurve,
        tokenizer: TargetTokenizer | None = None,
        segmenter: Segmenter | None = None,
        end_ids: EndIds | None = None,
    ) -> None:
        self.target = target
        self.curve = curve
        self.tokenizer = tokenizer
        self.segmenter = segmenter or LongestMatchSegmenter(target.vocabulary)
        self.end_ids = end_ids or {}
        self.tokenizer_digest = hashlib.sha256(tokenizer.json.encode()).hexdigest() if tokenizer else ""


def load_target(
    reference: str, precision: Precision = "fp32", row_exact: bool = True, progress: Progress | None = None
) -> LoadedTarget:
    """Resolve and load. Raises `ModelReferenceError` or `MisuseError`."""
    if precision not in PRECISIONS:
        raise MisuseError(f"precision is {precision!r}; known are {', '.join(PRECISIONS)}")
    resolved = resolve(reference, progress)
    if progress:
        progress("loading", 0, 1)
    # Heavy imports only now, so that a wrong reference answers at once; and the weights before transformers,
    # so that they are read and packed while it is imported.
    limit_spinning()
    from grimboost.adapters.weights import DTYPES, ReadWeights

    weights = ReadWeights(resolved.directory, DTYPES[precision], pack=row_exact)
    from grimboost.adapters.eager_target import load_eager
    from grimboost.adapters.segmentation import TokenizerSegmenter
    from grimboost.adapters.target_tokenizer import load_tokenizer
    from grimboost.cost_curves import kept_or_measured

    tokenizer = load_tokenizer(resolved.directory)
    vocabulary = tokenizer.vocabulary
    target = load_eager(
        resolved.directory, weights, vocabulary, resolved.name, precision, row_exact, resolved.digest
    )
    end_ids = tokenizer.end_ids(resolved.directory)
    for id, sources in resolved.end_ids.items():
        end_ids.setdefault(id, []).extend(sources)
    curve = kept_or_measured(target, cache_root() / "curves", progress)
    segmenter = TokenizerSegmenter(tokenizer.json, vocabulary)
    return LoadedTarget(target, curve, tokenizer, segmenter, end_ids)


def make_drafter(drafter: Drafter | str | None, datastore: Path | str | None = "memory") -> Drafter | None:
    """A drafter by name, or as it is; None for `none`. `datastore` as for `open_datastore`.

    Raises `MisuseError` for an unknown name, and for a file that cannot be a datastore, or would serve nobody.
    """
    if drafter == "lookup":
        from grimboost.adapters.datastore import open_datastore
        from grimboost.adapters.lookup_drafter import LookupDrafter

        return LookupDrafter(open_datastore(datastore))
    if isinstance(drafter, str) and drafter not in DRAFTERS:
        raise MisuseError(f"drafter is {drafter!r}; known are {', '.join(DRAFTERS)}")
    if datastore not in {"memory", "none", None}:
        raise MisuseError(f"the datastore {datastore} would serve nobody; it belongs to the drafter 'lookup'")
    return None if isinstance(drafter, str) else drafter
