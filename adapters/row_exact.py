"""Row-exact kernels: what makes a transformers model give each row the same bits in any company.

Stock kernels do not: a matrix product over one row takes another code path than one over eight, and attention
over several rows masks what attention over one row never sees. Measured on two-core AVX-512 machines with
torch 2.13, in fp32 and bf16, the following is bit-identical for every row count from 1 to 32 and is faster
than stock at the same time (`docs/performance.md`):

- linear layers on oneDNN with weights packed once; fewer than four rows are padded to four (one and two rows
  take a path of their own there, and four cost no more);
- attention in fixed shapes: eight query rows, and keys up to the next multiple of 64 of *that row's* own
  position, so a row always meets the same shape. Keys behind it are masked, their memory is finite.

`is_exact` measures this on the machine at hand, for the model at hand: what no kernel here replaces has its
corners too (an activation over 100 features takes its last 4 on another path than over 128, and which ones are
last depends on the rows). An adapter may only claim what it finds. This module knows no slots.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from msgspec import Struct
from torch import Tensor, nn
from transformers import AttentionInterface, LlamaForCausalLM
from transformers.cache_utils import Cache, CacheLayerMixin

from grimboost.adapters.weights import packed

ATTENTION = "grimboost_rows"
QUERY_ROWS = 8
KEY_STEP = 64
LINEAR_ROWS = 4
MAX_ROWS = 32
"""Passes over more rows are prefill: there the shape is free."""


def is_available(dtype: torch.dtype) -> bool:
    """Whether oneDNN is there and takes this precision."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def round_up(length: int, step: int = KEY_STEP) -> int:
    """The next multiple of `step`."""
    return -(-length // step) * step


class PackedLinear(nn.Module):
    """A linear layer over oneDNN-packed weights. Input [..., rows, in], output [..., rows, out]."""

    def __init__(self, linear: nn.Linear, ready: Tensor | None = None) -> None:
        """`ready`: the weight in oneDNN's layout, if somebody has packed it before."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.packed = packed(linear.weight.detach()) if ready is None else ready

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[-2]
        if rows >= LINEAR_ROWS:
            return self._product(x)
        padded = torch.cat((x, x[..., :1, :].expand(*x.shape[:-2], LINEAR_ROWS - rows, -1)), -2)
        return self._product(padded)[..., :rows, :]

    def _product(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return result


def pack_linears(module: nn.Module, ready: Mapping[str, Tensor] | None = None, path: str = "") -> None:
    """Replace every `nn.Linear` below `module` by a packed one; the plain weights are let go."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, PackedLinear(child, (ready or {}).get(f"{path}{name}.weight")))
        else:
            pack_linears(child, ready, f"{path}{name}.")


class GrowingLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, written in place. Returned views are padded to a multiple of 64 rows.

    Shapes [1, heads, capacity, head size]; what lies behind the length is finite and never attended to.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[2]
        if round_up(end) > self.keys.shape[2]:
            self.keys = self._grown(self.keys, end)
            self.values = self._grown(self.values, end)
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, : round_up(end)], self.values[:, :, : round_up(end)]

    def _grown(self, old: Tensor, end: int) -> Tensor:
        capacity = round_up(max(end, 2 * old.shape[2], 256))
        new = old.new_zeros((*old.shape[:2], capacity, old.shape[3]))
        new[:, :, : self.length] = old[:, :, : self.length]
        return new

    def crop(self, tokens_to_remove: int) -> None:
        """transformers' convention: a negative count of tokens to remove."""
        self.length += tokens_to_remove

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


class RowBlock(Struct, frozen=True):
    """Rows `start` to `stop` of a pass, which see `keys` key rows through `mask` [QUERY_ROWS, keys]."""

    start: int
    stop: int
    keys: int
    mask: Tensor


class RowPlan:
    """How attention of one pass is cut into fixed shapes; made once, used by every layer."""

    def __init__(self, past: int, rows: int, dtype: torch.dtype) -> None:
        self.past, self.rows = past, rows
        self.blocks = tuple(self._blocks(dtype)) if rows <= MAX_ROWS else ()
        self.mask = self._prefill_mask(dtype) if not self.blocks and past else None

    def _blocks(self, dtype: torch.dtype) -> Sequence[RowBlock]:
        blocks = []
        start = 0
        while start < self.rows:
            keys = round_up(self.past + start + 1)
            stop = min(self.rows, start + QUERY_ROWS, keys - self.past)
            visible = torch.arange(self.past + start + 1, self.past + start + 1 + QUERY_ROWS)
            visible.clamp_(max=self.past + stop)  # padding rows repeat the last real one's view
            blocks.append(RowBlock(start, stop, keys, _mask(visible, keys, dtype)))
            start = stop
        return blocks

    def _prefill_mask(self, dtype: torch.dtype) -> Tensor:
        visible = torch.arange(self.past + 1, self.past + self.rows + 1)
        return _mask(visible, self.past + self.rows, dtype)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [1, heads, rows, size]; key, value [1, kv heads, padded, size]. Result as query."""
        if self.blocks:
            parts = [self._attend_block(block, query, key, value, scale) for block in self.blocks]
            return parts[0] if len(parts) == 1 else torch.cat(parts, 2)
        length = self.past + self.rows
        key, value = key[:, :, :length], value[:, :, :length]
        return F.scaled_dot_product_attention(
            query, key, value, self.mask, is_causal=self.mask is None, scale=scale, enable_gqa=True
        )

    @staticmethod
    def _attend_block(block: RowBlock, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        rows = block.stop - block.start
        part = query[:, :, block.start : block.stop]
        if rows < QUERY_ROWS:
            part = F.pad(part, (0, 0, 0, QUERY_ROWS - rows))
        key, value = key[:, :, : block.keys], value[:, :, : block.keys]
        full = F.scaled_dot_product_attention(part, key, value, block.mask, scale=scale, enable_gqa=True)
        return full[:, :, :rows]


def _mask(visible: Tensor, keys: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [rows, keys]: row i sees its first visible[i] keys."""
    hidden = torch.arange(keys) >= visible[:, None]
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


def _row_attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    *,
    scaling: float,
    plan: RowPlan,
    **_: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls in place of its own attention."""
    return plan.attend(query, key, value, scaling).transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, _row_attention)


def is_exact(model: LlamaForCausalLM, dtype: torch.dtype) -> bool:
    """Measure, on this machine and this model's shapes, that a row's result does not depend on its company."""
    generator = torch.Generator().manual_seed(0)
    config = model.config
    heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    shapes: dict[tuple[int, int], PackedLinear] = {}
    for module in model.modules():
        if isinstance(module, PackedLinear):
            shapes.setdefault((module.in_features, module.out_features), module)
    return (
        all(_linear_is_exact(linear, dtype, generator) for linear in shapes.values())
        and _attention_is_exact(dtype, heads, kv_heads, size, generator)
        and _layer_is_exact(model, dtype, generator)
    )


def _linear_is_exact(linear: PackedLinear, dtype: torch.dtype, generator: torch.Generator) -> bool:
    x = torch.randn(1, 17, linear.in_features, generator=generator).to(dtype)
    together = linear(x)
    return all(torch.equal(linear(x[:, i : i + n]), together[:, i : i + n]) for i, n in ((0, 1), (3, 2), (8, 9)))


def _attention_is_exact(
    dtype: torch.dtype, heads: int, kv_heads: int, size: int, generator: torch.Generator
) -> bool:
    rows = 12
    key, value = (torch.randn(1, kv_heads, 640, size, generator=generator).to(dtype) for _ in range(2))
    query = torch.randn(1, heads, rows, size, generator=generator).to(dtype)
    for past in (3, 58, 505):
        together = RowPlan(past, rows, dtype).attend(query, key, value, size**-0.5)
        for row in (0, 4, 11):
            alone = RowPlan(past + row, 1, dtype).attend(query[:, :, row : row + 1], key, value, size**-0.5)
            if not torch.equal(alone, together[:, :, row : row + 1]):
                return False
    return True


def _layer_is_exact(model: LlamaForCausalLM, dtype: torch.dtype, generator: torch.Generator) -> bool:
    """The first layer with all that is around it, for every number of rows; the others have the same shapes."""
    ids = torch.randint(model.config.vocab_size, (1, MAX_ROWS), generator=generator)
    layers = model.config.num_hidden_layers
    model.config.num_hidden_layers = 1
    try:
        cache = Cache(layers=[GrowingLayer()])
        parts = [_hidden(model, ids[:, row : row + 1], cache, dtype) for row in range(MAX_ROWS)]
        alone = torch.cat(parts, 1)
        return all(
            torch.equal(_hidden(model, ids[:, :rows], Cache(layers=[GrowingLayer()]), dtype), alone[:, :rows])
            for rows in range(2, MAX_ROWS + 1)
        )
    finally:
        model.config.num_hidden_layers = layers


def _hidden(model: LlamaForCausalLM, ids: Tensor, cache: Cache, dtype: torch.dtype) -> Tensor:
    """[1, rows] ids -> [1, rows, hidden], in one pass at the end of `cache`."""
    plan = RowPlan(cache.get_seq_length(), ids.shape[1], dtype)
    hidden: Tensor = model.model(input_ids=ids, cache=cache, use_cache=True, plan=plan)[0]
    return hidden
