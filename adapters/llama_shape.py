"""What a Llama-shaped model's `config.json` says: sizes and rotary tables. It knows no weights.

Families: Llama (SmolLM2, the grimboost drafter), Qwen2 (biases on q, k, v), Qwen3 (norms on q and k heads).
Rotary embeddings: plain, `linear` and `llama3`; another kind is refused, never approximated.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from grimboost.errors import ModelReferenceError

FAMILIES = ("llama", "qwen2", "qwen3")


class LlamaShape(Struct, frozen=True):
    """Sizes in elements; `positions`: the context limit in tokens."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    size: int
    """Of a head."""
    mlp: int
    vocabulary: int
    positions: int
    epsilon: float
    tied: bool
    """The output head is the embedding."""
    head_norms: bool
    inverse_frequencies: tuple[float, ...]
    """Of the rotary embedding, radians per position, size / 2 of them."""

    def rotary_tables(self, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosines and sines [positions, size / 2], from angles in float32 as transformers has them."""
        angles = np.arange(positions, dtype=np.float32)[:, None] * np.array(self.inverse_frequencies, np.float32)
        return np.cos(angles), np.sin(angles)


def read_shape(directory: Path) -> LlamaShape:
    """The shape of the model in a directory. Raises `ModelReferenceError` if it is no such model."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        return shape_of(config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ModelReferenceError(f"cannot use the configuration in {directory}: {reason}") from error


def shape_of(config: dict[str, Any]) -> LlamaShape:
    """From the dictionary in `config.json`. Raises `ValueError`, `KeyError` or `TypeError` for what is wrong."""
    if not isinstance(config, dict):
        raise TypeError("it is no JSON object")
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"the model type is {family!r}; known are {', '.join(FAMILIES)}")
    if config.get("quantization_config"):
        raise ValueError("it is quantized; give unquantized safetensors")
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"the activation is {config['hidden_act']!r}, not 'silu'")
    if config.get("use_sliding_window"):
        raise ValueError("it uses a sliding window")
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    size = int(config.get("head_dim") or hidden // heads)
    shape = LlamaShape(
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        size=size,
        mlp=int(config["intermediate_size"]),
        vocabulary=int(config["vocab_size"]),
        positions=int(config.get("max_position_embeddings", 2048)),
        epsilon=float(config.get("rms_norm_eps", 1e-6)),
        tied=bool(config.get("tie_word_embeddings", False)),
        head_norms=family == "qwen3",
        inverse_frequencies=_inverse_frequencies(config, size),
    )
    _check(shape)
    return shape


def _check(shape: LlamaShape) -> None:
    for name in ("layers", "hidden", "heads", "kv_heads", "size", "mlp", "vocabulary", "positions"):
        if getattr(shape, name) < 1:
            raise ValueError(f"{name} is {getattr(shape, name)}")
    if shape.heads % shape.kv_heads:
        raise ValueError(f"{shape.heads} heads cannot share {shape.kv_heads} key and value heads evenly")
    if shape.size % 4:
        raise ValueError(f"the head size is {shape.size}, no multiple of 4")


def _inverse_frequencies(config: dict[str, Any], size: int) -> tuple[float, ...]:
    rope: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise TypeError(f"its rotary embedding is {rope!r}, no JSON object")
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = float(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
    if float(config.get("partial_rotary_factor") or rope.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ValueError("only a part of each head is rotated")
    powers = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    # powers in float64, rounded: what torch has; numpy's own in float32 are up to two units off
    plain = np.float32(1.0) / (theta ** powers.astype(np.float64)).astype(np.float32)
    if kind == "default":
        scaled = plain
    elif kind == "linear":
        scaled = plain / np.float32(rope["factor"])
    elif kind == "llama3":
        scaled = _llama3(plain, rope)
    else:
        raise ValueError(f"its rotary embedding is of the kind {kind!r}; known are default, linear, llama3")
    return tuple(float(value) for value in scaled)


def _llama3(plain: NDArray[np.float32], rope: dict[str, Any]) -> NDArray[np.float32]:
    """Llama 3.1's scaling: slow waves slower by `factor`, fast ones as they are, a ramp between."""
    factor, low, high = (float(rope[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(rope["original_max_position_embeddings"])
    waves = 2 * math.pi / plain
    ramp = ((original / waves - low) / (high - low)).clip(0.0, 1.0)
    return ((1 - ramp) * plain / factor + ramp * plain).astype(np.float32)
