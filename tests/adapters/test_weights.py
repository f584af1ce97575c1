"""Which files make a model: those that transformers would read, and no stray ones."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import tiny_llama

from grimboost.adapters.weights import ReadWeights, build_llama
from grimboost.errors import ModelReferenceError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tiny_llama().save_pretrained(tmp_path)
    return tmp_path


def read(directory: Path) -> ReadWeights:
    weights = ReadWeights(directory, torch.float32, pack=False)
    weights.join()
    return weights


@pytest.mark.parametrize("name", ["model_old.safetensors", "training_state.safetensors", "zz.safetensors"])
def test_a_stray_file_changes_nothing(directory: Path, name: str) -> None:
    expected = read(directory).tensors
    save_file({"model.norm.weight": expected["model.norm.weight"] * -3}, directory / name)
    found = read(directory).tensors
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_shards_are_those_that_the_index_names(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for shard, keys in shards.items():
        save_file({key: tensors[key].contiguous() for key in keys}, directory / shard)
    index = {"weight_map": {key: shard for shard, keys in shards.items() for key in keys}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read(directory).tensors.keys() == tensors.keys()


def test_a_head_of_its_own_is_kept_although_the_configuration_ties_it(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    weights = read(directory)
    model = build_llama(directory, weights)
    assert torch.equal(model.lm_head.weight, weights.tensors["lm_head.weight"])


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": "abc"},
        {"rms_norm_eps": "x"},
        {"num_attention_heads": 0},
        {"vocab_size": -1},
        {"head_dim": 7},
    ],
)
def test_a_configuration_that_makes_no_model_is_one_clear_error(
    directory: Path, change: dict[str, object]
) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelReferenceError, match="cannot load the model"):
        build_llama(directory, ReadWeights(directory, torch.float32, pack=False))


def test_a_directory_without_weights_is_one_clear_error(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelReferenceError, match="cannot read the weights"):
        read(directory)
