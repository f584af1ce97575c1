"""The eager target: transformers' own forward with transformers' cache, for models of the Llama family.

With `row_exact` (the default) its linear layers and attention run on the kernels of
`grimboost.adapters.row_exact` and, where these measure as exact on this machine, the target is row-invariant.
Without, every kernel is transformers' own; that is not row-invariant, and the facts say so.

It calls `forward`, never `generate`, and feeds each slot of a batch by itself. It knows nothing of bytes.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.cache_utils import Cache, DynamicCache

from grimboost.adapters import row_exact
from grimboost.adapters.choice import choose_rows
from grimboost.adapters.slots import SlotTable, SlottedTarget
from grimboost.adapters.target import Chosen, Precision, Rows, Slot, TargetFacts
from grimboost.adapters.vocabulary import Vocabulary, check_rows
from grimboost.adapters.weights import DTYPES, ReadWeights, build_llama
from grimboost.diagnostics import get_logger
from grimboost.stages.sampling_rule import SamplingRule

log = get_logger(__name__)

TIE_BOUNDS = {"fp32": 2e-4, "bf16": 1.0}
"""Without row-exact kernels: largest change of a margin between block and single rows that was measured
(7e-5 in fp32, 0.75 in bf16; `bench/near_ties.py`), rounded up by a factor of 2 to 3 and 1.3."""


class EagerTarget(SlottedTarget[Cache]):
    """A `LlamaForCausalLM` with slots."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        vocabulary: Vocabulary,
        name: str = "model",
        precision: Precision = "fp32",
        row_exact_kernels: bool = True,
        digest: str = "",
        packed: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`packed`: linear weights by name that are in oneDNN's layout already."""
        config = model.config
        self._model = model.eval().requires_grad_(False)
        self._vocabulary = vocabulary
        self._dtype = DTYPES[precision]
        self._packed = row_exact_kernels and self._pack(config, packed or {})
        limit = int(config.max_position_embeddings)
        bound = 0.0 if self._packed else TIE_BOUNDS[precision]
        way = "row-exact" if self._packed else "stock"
        kernels = f"{way} torch{torch.__version__} {torch.get_num_threads()} threads"
        self._facts = TargetFacts(name, precision, limit, self._packed, bound, digest=digest, kernels=kernels)
        self._slots: SlotTable[Cache] = SlotTable(limit)

    def open(self, rule: SamplingRule) -> Slot:
        return self._slots.add(rule, self._new_cache())

    def step(self, batch: Sequence[Rows]) -> list[list[Chosen]]:
        self._slots.check(batch)
        with torch.inference_mode():
            return [self._feed(rows) for rows in batch]

    def rollback(self, slot: Slot, length: int) -> None:
        removed = self._slots.cut(slot, length)
        if removed:
            self._slots[slot].cache.crop(-removed)

    def without_row_invariance(self) -> "EagerTarget":
        """Make the facts say less than measured: near-ties are then re-checked. For tests of that path."""
        precision = self._facts.precision
        self._facts = replace(self._facts, row_invariant=False, tie_bound=TIE_BOUNDS[precision])
        return self

    def _pack(self, config: Any, packed: Mapping[str, Tensor]) -> bool:
        if not row_exact.is_available(self._dtype):
            log.warning("oneDNN cannot do this precision here, the target is not row-invariant")
            return False
        row_exact.pack_linears(self._model, packed)
        config._attn_implementation = row_exact.ATTENTION
        with torch.inference_mode():
            exact = row_exact.is_exact(self._model, self._dtype)
        if not exact:
            log.warning("this model's rows are not exact on this machine; near-ties will be re-checked")
        return exact

    def _new_cache(self) -> Cache:
        if self._model.config._attn_implementation != row_exact.ATTENTION:
            return DynamicCache(config=self._model.config)
        return Cache(layers=[row_exact.GrowingLayer() for _ in range(self._model.config.num_hidden_layers)])

    def _feed(self, rows: Rows) -> list[Chosen]:
        entry = self._slots[rows.slot]
        past = len(entry.tokens)
        options: dict[str, Any] = {}
        fed = rows.tokens
        if self._model.config._attn_implementation == row_exact.ATTENTION:
            # one to three rows cost more than four, and nothing looks at rows behind the last real one
            fed += fed[-1:] * (row_exact.LINEAR_ROWS - len(fed))
            options["plan"] = row_exact.RowPlan(past, len(fed), self._dtype)
        ids = torch.tensor([fed])
        try:
            hidden = self._model.model(input_ids=ids, cache=entry.cache, use_cache=True, **options)[0]
        except Exception:
            for layer in entry.cache.layers:  # some layers have grown: a second try would find them ahead
                layer.crop(past - layer.get_seq_length())
            raise
        if len(fed) > len(rows.tokens):
            entry.cache.crop(len(rows.tokens) - len(fed))
        entry.tokens.extend(rows.tokens)
        if not rows.choose:
            return []
        real = hidden[:, : len(rows.tokens)]
        logits = self._logits(real[:, -rows.choose :])
        return choose_rows(logits.numpy(), entry.rule, entry.tokens, self._facts.tie_bound)

    def _logits(self, hidden: Tensor) -> Tensor:
        """[1, rows, hidden] -> [rows, vocabulary] fp32; padding rows of the embedding can never win (A5)."""
        logits: Tensor = self._model.lm_head(hidden)[0].float()
        logits[:, len(self._vocabulary) :] = -math.inf
        return logits


def load_eager(
    directory: Path,
    weights: ReadWeights,
    vocabulary: Vocabulary,
    name: str,
    precision: Precision = "fp32",
    row_exact_kernels: bool = True,
    digest: str = "",
) -> EagerTarget:
    """A target over weights that have been read. Raises `ModelReferenceError` if they make no Llama model."""
    model = build_llama(directory, weights)
    check_rows(vocabulary, model.config.vocab_size, directory)
    return EagerTarget(model, vocabulary, name, precision, row_exact_kernels, digest, weights.packed)
