"""Configurations of Llama-shaped models: what is read, what transformers would make of it, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from grimboost.adapters.llama_shape import LlamaShape, read_shape, shape_of
from grimboost.errors import ModelReferenceError

SMOLLM2 = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_a_configuration_of_an_older_transformers() -> None:
    shape = shape_of(SMOLLM2)
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.size) == (30, 576, 9, 3, 64)
    assert (shape.mlp, shape.vocabulary, shape.positions) == (1536, 49152, 8192)
    assert (shape.epsilon, shape.tied, shape.head_norms) == (1e-5, True, False)
    assert len(shape.inverse_frequencies) == 32
    assert shape.inverse_frequencies[-1] == pytest.approx(100000 ** (-62 / 64), rel=1e-6)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", [LlamaConfig, Qwen2Config, Qwen3Config])
def test_what_transformers_saves_is_what_it_has(family: Any, tied: bool, tmp_path: Path) -> None:
    config = family(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=3e-5, tie_word_embeddings=tied
    )
    config.save_pretrained(tmp_path)
    shape = read_shape(tmp_path)
    assert shape == shape_of(config.to_dict())
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.tied) == (64, 4, 2, tied)
    assert (shape.epsilon, shape.head_norms) == (3e-5, family is Qwen3Config)
    assert shape.size == (config.head_dim if family is Qwen3Config else 16)  # Qwen3's is a size of its own
    assert shape.positions == config.max_position_embeddings


# ---------------------------------------------------------------- rotary embeddings


@pytest.mark.parametrize("size", [4, 20, 64, 128])
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default"},
        {"rope_type": "default", "rope_theta": 500000.0},
        {"rope_type": "linear", "factor": 4.0},
        LLAMA3,
        {**LLAMA3, "factor": 8.0, "original_max_position_embeddings": 8192, "rope_theta": 500000.0},
    ],
    ids=str,
)
def test_rotary_tables_are_those_of_transformers(rope: dict[str, Any], size: int) -> None:
    config = LlamaConfig(
        hidden_size=4 * size,
        num_attention_heads=4,
        head_dim=size,
        max_position_embeddings=2048,
        rope_parameters={"rope_theta": 10000.0} | rope,
    )
    rotary = LlamaRotaryEmbedding(config)
    shape = shape_of(config.to_dict())
    frequencies = np.array(shape.inverse_frequencies, np.float32)
    np.testing.assert_allclose(frequencies, rotary.inv_freq.numpy(), rtol=3e-7)
    cosines, sines = shape.rotary_tables(2048)
    assert cosines.dtype == np.float32
    assert cosines.shape == (2048, size // 2)
    want = rotary(torch.zeros(1), torch.arange(2048)[None])
    # an angle of 2047 has a unit in the last place of 1.2e-4
    for got, exact in zip((cosines, sines), want, strict=True):
        np.testing.assert_allclose(got, exact[0, :, : size // 2].numpy(), atol=2.5e-4)
        np.testing.assert_allclose(got[:64], exact[0, :64, : size // 2].numpy(), atol=8e-6)


@pytest.mark.parametrize("theta", [10000.0, 100000.0, 500000.0])
def test_default_frequencies_are_bit_for_bit_those_of_transformers(theta: float) -> None:
    config = LlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": theta})
    frequencies = np.array(shape_of(config.to_dict()).inverse_frequencies, np.float32)
    np.testing.assert_array_equal(frequencies, LlamaRotaryEmbedding(config).inv_freq.numpy())


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_a_scaling_is_found_under_its_old_names_too(name: str, key: str) -> None:
    plain, scaled = shape_of(SMOLLM2), shape_of(SMOLLM2 | {name: {key: "linear", "factor": 2.0}})
    assert np.allclose(np.array(plain.inverse_frequencies), 2 * np.array(scaled.inverse_frequencies))


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model_type": "mistral"}, "the model type is 'mistral'"),
        ({"model_type": None}, "the model type is None"),
        ({"quantization_config": {"bits": 4}}, "it is quantized"),
        ({"hidden_act": "gelu"}, "the activation is 'gelu'"),
        ({"use_sliding_window": True}, "sliding window"),
        ({"num_key_value_heads": 2}, "9 heads cannot share 2"),
        ({"head_dim": 22}, "the head size is 22"),
        ({"num_hidden_layers": 0}, "layers is 0"),
        ({"vocab_size": -1}, "vocabulary is -1"),
        ({"intermediate_size": "wide"}, "invalid literal"),
        ({"max_position_embeddings": None}, "NoneType"),
        ({"partial_rotary_factor": 0.5}, "only a part of each head"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "only a part of each head"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'low_freq_factor' is missing"),
        ({"rope_scaling": {"type": "linear"}}, "'factor' is missing"),
        ({"rope_scaling": "linear"}, "its rotary embedding is 'linear'"),
        *(
            ({"rope_scaling": {"rope_type": kind, "factor": 2.0}}, f"of the kind '{kind}'")
            for kind in ("dynamic", "yarn", "longrope", "proportional")
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_its_reason(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2 | changes))
    with pytest.raises(ModelReferenceError, match=sentence) as raised:
        read_shape(tmp_path)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("name", ["hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"])
def test_what_is_missing_is_named(name: str, tmp_path: Path) -> None:
    config = {key: value for key, value in SMOLLM2.items() if key != name}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelReferenceError, match=f"'{name}' is missing"):
        read_shape(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"llama"', "null", "\xff"])
def test_a_file_that_is_no_configuration(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelReferenceError, match="cannot use the configuration"):
        read_shape(tmp_path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelReferenceError, match="cannot use the configuration"):
        read_shape(tmp_path)


def test_a_shape_that_nothing_fills_in() -> None:
    shape = shape_of({key: SMOLLM2[key] for key in SMOLLM2 if key not in {"num_key_value_heads", "rope_theta"}})
    assert isinstance(shape, LlamaShape)
    assert shape.kv_heads == 9
    assert shape.inverse_frequencies[1] == pytest.approx(10000 ** (-2 / 64), rel=1e-6)
