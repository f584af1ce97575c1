"""Tiny models of the Llama family for the packed decoder, and what its arithmetic is in numpy's float64.

Norms and biases, which transformers begins with ones and zeros, are random here: what is forgotten shows.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_models import BYTES, SHAPES, tiny_llama
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from grimboost.adapters import packed_runner
from grimboost.adapters.packed_model import PackedModel, pack_loaded
from grimboost.adapters.packed_runner import MOST_ROWS, Cache, Row, Runner
from grimboost.adapters.packed_target import PackedTarget
from grimboost.adapters.target import Precision
from grimboost.kernels.tiles import GROUP, QUANTIZED

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8", "int4")
FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
FAMILY_SHAPES: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "attention biases": {"attention_bias": True},
    "biases everywhere": {"attention_bias": True, "mlp_bias": True, "intermediate_size": 100},
    "narrow": {"hidden_size": 40, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 12},
    "odd sizes": {"hidden_size": 72, "intermediate_size": 52, "head_dim": 20, "vocab_size": 271},
    "qwen2": {"family": "qwen2"},
    "qwen2 tied": {"family": "qwen2", "tie_word_embeddings": True, "num_key_value_heads": 4},
    "qwen3": {"family": "qwen3", "head_dim": 32},
    "qwen3 biased": {"family": "qwen3", "head_dim": 20, "attention_bias": True, "tie_word_embeddings": True},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}},
    "llama3 rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}
"""Arguments of `family_model`."""


def family_model(family: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """A transformers model in fp32 with random weights; `changes` are of its configuration."""
    sizes = {
        "vocab_size": len(BYTES),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 640,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
    }
    kind, model_of = FAMILIES[family]
    torch.manual_seed(seed)
    model = model_of(kind(**sizes | changes)).float().eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def tiny_packed_target(precision: Precision, threads: int = 2, **shape: Any) -> PackedTarget:
    """A packed target over `tiny_llama`."""
    return PackedTarget(pack_loaded(tiny_llama(**shape), precision), BYTES, "tiny", threads=threads)


@functools.cache
def packed(precision: Precision, name: str = "grouped heads") -> PackedModel:
    """A shape of `SHAPES` or `FAMILY_SHAPES`, packed."""
    model = tiny_llama(**SHAPES[name]) if name in SHAPES else family_model(**FAMILY_SHAPES[name])
    return pack_loaded(model, precision)


def packed_logits(
    model: PackedModel, ids: Sequence[int], parts: Sequence[int] = (MOST_ROWS,), threads: int = 1
) -> NDArray[np.float32]:
    """Logits [rows, vocabulary] of one slot fed in passes of so many rows, over and over."""
    runner, cache = Runner(model, model.shape.vocabulary, threads), Cache(model)
    cache.reserve(len(ids))
    found, at, sizes = [], 0, itertools.cycle(parts)
    while at < len(ids):
        rows = [Row(id, at + place, cache, True) for place, id in enumerate(ids[at : at + next(sizes)])]
        found.append(runner.run(rows).logits.copy())
        at += len(rows)
    runner.close()
    return np.concatenate(found)


class _Together:
    """The whole team runs every pass, however slow that is beside a busy neighbour."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def together(self, _rows: int) -> bool:
        return self._threads > 1

    def observe(self, *_: object) -> None:
        pass


@pytest.fixture
def whole_team(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes are run by all threads, and never by one because that has been faster lately."""
    monkeypatch.setattr(packed_runner, "Pace", _Together)


def transformers_logits(model: Any, ids: Sequence[int]) -> NDArray[np.float32]:
    """[rows, vocabulary], by transformers' own forward."""
    with torch.inference_mode():
        logits: NDArray[np.float32] = model(input_ids=torch.tensor([list(ids)])).logits[0].float().numpy()
        return logits


def random_ids(count: int, seed: int = 0, below: int = len(BYTES)) -> list[int]:
    return [int(id) for id in np.random.default_rng(seed).integers(0, below, count)]


class Emulation:
    """The packed decoder's forward over a whole sequence: its weights and roundings, numpy's float64."""

    def __init__(self, model: PackedModel) -> None:
        self._model, self._shape = model, model.shape
        self._weights = [matrix.values().astype(np.float64) for matrix in model.matrices]
        self._exact_cache = model.precision == "fp32"

    def logits(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """[rows, vocabulary]."""
        s, norms = self._shape, iter(self._model.norms)
        stream = self._weights[-1][list(ids), : s.hidden]
        for layer in range(s.layers):
            x = self._multiply(4 * layer, self._norm(stream, next(norms)))
            stream = stream + self._multiply(4 * layer + 1, self._attention(layer, x))[:, : s.hidden]
            x = self._multiply(4 * layer + 2, self._norm(stream, next(norms)))
            half = self._weights[4 * layer + 3].shape[1]
            gate, up = x[:, :half], x[:, half : 2 * half]
            gated = gate / (1 + np.exp(-gate)) * up
            stream = stream + self._multiply(4 * layer + 3, gated)[:, : s.hidden]
        return self._multiply(4 * s.layers, self._norm(stream, next(norms)))[:, : s.vocabulary]

    def _norm(self, x: NDArray[np.float64], weight: NDArray[np.float32]) -> NDArray[np.float64]:
        scaled: NDArray[np.float64] = weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + self._shape.epsilon)
        return scaled

    def _multiply(self, place: int, x: NDArray[np.float64]) -> NDArray[np.float64]:
        weights, bias = self._weights[place], self._model.biases[place]
        padded = np.zeros((len(x), weights.shape[1]))
        padded[:, : x.shape[1]] = x
        if self._model.matrices[place].format in QUANTIZED:
            padded = _rounded(padded)
        product: NDArray[np.float64] = padded @ weights.T
        return product if bias is None else product + bias

    def _attention(self, layer: int, qkv: NDArray[np.float64]) -> NDArray[np.float64]:
        s, rows = self._shape, len(qkv)
        parts = qkv[:, : (s.heads + 2 * s.kv_heads) * s.size].reshape(rows, -1, s.size).swapaxes(0, 1)
        queries, keys, values = np.split(parts, [s.heads, s.heads + s.kv_heads])
        if s.head_norms:
            queries = self._norm(queries, self._model.head_norms[2 * layer])
            keys = self._norm(keys, self._model.head_norms[2 * layer + 1])
        turn = np.exp(1j * np.outer(np.arange(rows), s.inverse_frequencies))
        queries, keys = (_rotated(part, turn) for part in (queries, keys))
        if not self._exact_cache:
            keys, values = (part.astype(np.float16).astype(np.float64) for part in (keys, values))
        out = np.zeros((rows, s.heads, s.size))
        for row, head in itertools.product(range(rows), range(s.heads)):
            shared = head // (s.heads // s.kv_heads)
            scores = keys[shared, : row + 1] @ queries[head, row] / np.sqrt(s.size)
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ values[shared, : row + 1] / weights.sum()
        return out.reshape(rows, -1)


def _rotated(part: NDArray[np.float64], turn: NDArray[np.complex128]) -> NDArray[np.float64]:
    half = part.shape[-1] // 2
    turned = (part[..., :half] + 1j * part[..., half:]) * turn
    return np.concatenate((turned.real, turned.imag), -1)


def _rounded(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Groups of 32 as signed bytes with a scale of their own."""
    groups = x.reshape(len(x), -1, GROUP)
    size = np.abs(groups).max(-1, keepdims=True)
    codes = np.rint(groups * np.divide(127.0, size, out=np.zeros_like(size), where=size > 0))
    rounded: NDArray[np.float64] = (codes * size / 127.0).reshape(x.shape)
    return rounded
