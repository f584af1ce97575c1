"""From a model reference to a target that is ready: model, tokenizer, segmenter, end ids and cost curve.

Everything here blocks; the engine calls it in a thread. It knows nothing of generations.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from grimboost.adapters.drafter import Drafter
from grimboost.adapters.segmentation import LongestMatchSegmenter, Segmenter
from grimboost.adapters.target import Precision, Target
from grimboost.diagnostics import get_logger
from grimboost.errors import MisuseError, ModelReferenceError
from grimboost.model_cache import cache_root
from grimboost.model_references import Progress, ResolvedModel, resolve
from grimboost.openmp import limit_spinning
from grimboost.plugins import builtin, check_interface, is_target_plugin, load_plugin
from grimboost.stages.configuration import CostCurve
from grimboost.versions import versions

if TYPE_CHECKING:
    from grimboost.adapters.target_tokenizer import EndIds, TargetTokenizer

log = get_logger(__name__)

Kernels = Literal["packed", "row-exact", "stock"]
"""`packed`: the project's own decoder. `row-exact`: transformers' forward on kernels that give each row its own
bits. `stock`: transformers as it is, with near-ties re-checked."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
KERNELS: tuple[Kernels, ...] = get_args(Kernels)
TRANSFORMERS_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")


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
    reference: str,
    precision: Precision | Literal["auto"] = "auto",
    kernels: Kernels | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> LoadedTarget:
    """Resolve and load. Raises `ModelReferenceError` or `MisuseError`.

    precision: `auto` is the fastest whose perplexity is within 2% of the unrounded weights' (`fp32` with
    transformers' forward). kernels: None for `packed`, and `row-exact` for a model that cannot be packed.
    threads: of the packed decoder; 0 for one per usable processor. A plug-in chooses all these by itself.
    """
    check_choices(precision, kernels, threads)
    if is_target_plugin(reference):
        return _load_plugin(reference, (precision, kernels, threads) == ("auto", None, 0), progress)
    resolved = resolve(reference, progress)
    if progress:
        progress("loading", 0, 1)
    from grimboost.adapters.target_tokenizer import load_tokenizer
    from grimboost.cost_curves import kept_or_measured

    tokenizer = load_tokenizer(resolved.directory)
    if kernels is None:
        kernels = _fitting_kernels(resolved, precision)
    if kernels == "packed":
        target = _load_packed(resolved, tokenizer, precision, threads, progress)
    else:
        plain: Precision = "fp32" if precision == "auto" else precision
        target = _load_transformers(resolved, tokenizer, plain, kernels == "row-exact")
    end_ids = tokenizer.end_ids(resolved.directory)
    for id, sources in resolved.end_ids.items():
        end_ids.setdefault(id, []).extend(sources)
    curve = kept_or_measured(target, cache_root() / "curves", progress)
    return LoadedTarget(target, curve, tokenizer, tokenizer.segmenter(), end_ids)


def _load_plugin(reference: str, chooses: bool, progress: Progress | None) -> LoadedTarget:
    """`chooses`: nobody else has chosen precision, kernels or threads."""
    if not chooses:
        raise MisuseError(f"{reference!r} is a plug-in: it has no use for precision, kernels or threads")
    from grimboost.cost_curves import kept_or_measured

    made: Target | LoadedTarget = load_plugin("target", reference)
    if isinstance(made, LoadedTarget):
        return made
    return LoadedTarget(made, kept_or_measured(made, cache_root() / "curves", progress))


def check_choices(precision: str, kernels: str | None, threads: int) -> None:
    """Raise `MisuseError` unless these can go together."""
    if precision != "auto" and precision not in PRECISIONS:
        raise MisuseError(f"precision is {precision!r}; known are auto, {', '.join(PRECISIONS)}")
    if kernels is not None and kernels not in KERNELS:
        raise MisuseError(f"kernels is {kernels!r}; known are {', '.join(KERNELS)}")
    if kernels in {"row-exact", "stock"} and precision not in {"auto", *TRANSFORMERS_PRECISIONS}:
        raise MisuseError(
            f"{kernels} kernels have no precision {precision!r}; they have {', '.join(TRANSFORMERS_PRECISIONS)}"
        )
    if threads < 0:
        raise MisuseError(f"threads is {threads}; give 0 for one per processor, or a number above it")


def _fitting_kernels(resolved: ResolvedModel, precision: str) -> Kernels:
    """The packed decoder, unless it cannot be this model and transformers may."""
    from grimboost.adapters.llama_shape import read_shape

    try:
        read_shape(resolved.directory)
    except ModelReferenceError as error:
        if precision not in {"auto", *TRANSFORMERS_PRECISIONS}:
            raise
        log.warning("this model cannot be packed, transformers runs it", reason=str(error))
        return "row-exact"
    return "packed"


def _load_packed(
    resolved: ResolvedModel,
    tokenizer: TargetTokenizer,
    precision: Precision | Literal["auto"],
    threads: int,
    progress: Progress | None,
) -> Target:
    from grimboost.adapters.llama_shape import read_shape
    from grimboost.adapters.packed_target import PackedTarget
    from grimboost.adapters.vocabulary import check_rows
    from grimboost.kernels.compiled import drop_others, is_kept
    from grimboost.packed_store import PackedStore

    if not is_kept():
        drop_others()
        if progress:
            progress("compiling kernels, once, for half a minute", 0, 1)
    check_rows(tokenizer.vocabulary, read_shape(resolved.directory).vocabulary, resolved.directory)
    store = PackedStore(cache_root())
    chosen = store.fastest(resolved, progress) if precision == "auto" else precision
    model = store.obtain(resolved, chosen, progress)
    return PackedTarget(model, tokenizer.vocabulary, resolved.name, resolved.digest, threads)


def _load_transformers(
    resolved: ResolvedModel, tokenizer: TargetTokenizer, precision: Precision, row_exact: bool
) -> Target:
    limit_spinning()
    from grimboost.adapters.weights import DTYPES, ReadWeights

    # the weights before transformers, so that they are read and packed while it is imported
    weights = ReadWeights(resolved.directory, DTYPES[precision], pack=row_exact)
    from grimboost.adapters.eager_target import load_eager

    return load_eager(
        resolved.directory, weights, tokenizer.vocabulary, resolved.name, precision, row_exact, resolved.digest
    )


def drafter_digest(drafter: Drafter | None) -> str:
    """What identifies a drafter for its certificate: its own `digest`, else its name, with our version if ours."""
    if drafter is None:
        return "none"
    ours = type(drafter).__module__.startswith("grimboost.")
    known = f"{drafter.name} {versions()['grimboost']}" if ours else drafter.name
    return str(getattr(drafter, "digest", known))


def make_drafter(drafter: Drafter | str | None, datastore: Path | str | None = "memory") -> Drafter | None:
    """A drafter by name or import path, or as it is; None for `none`. `datastore` as for `open_datastore`.

    Raises `MisuseError` for what is no drafter, and for a file that cannot be a datastore, or would serve nobody.
    """
    if drafter == "lookup":
        from grimboost.adapters.datastore import open_datastore
        from grimboost.adapters.lookup_drafter import LookupDrafter

        return LookupDrafter(open_datastore(datastore))
    made: Drafter | None = None
    if isinstance(drafter, str) and drafter not in builtin("drafter"):
        made = load_plugin("drafter", drafter)
    elif drafter is not None and not isinstance(drafter, str):
        check_interface("drafter", drafter)
        made = drafter
    if datastore not in {"memory", "none", None}:
        raise MisuseError(f"the datastore {datastore} would serve nobody; it belongs to the drafter 'lookup'")
    return made
