"""Packing whole models: which tensor goes where, what is refused, and the file that keeps them."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_models import one_thread, tiny_llama  # noqa: F401
from tiny_packed import FAMILY_SHAPES, PRECISIONS, family_model
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig

from grimboost.adapters.llama_shape import LlamaShape, shape_of
from grimboost.adapters.packed_model import (
    MAGIC,
    VERSION,
    PackedModel,
    load,
    pack_loaded,
    pack_model,
    read_tensors,
    save,
)
from grimboost.adapters.quantized_blocks import quantize
from grimboost.adapters.target import Precision
from grimboost.errors import ModelReferenceError
from grimboost.kernels.tiles import Format

Floats = NDArray[np.float32]
both_ends = pytest.mark.parametrize("precision", PRECISIONS)
each_shape = pytest.mark.parametrize("changes", FAMILY_SHAPES.values(), ids=FAMILY_SHAPES)


def parts_of(model: Any) -> tuple[LlamaShape, dict[str, Floats]]:
    tensors = {name: tensor.detach().numpy().copy() for name, tensor in model.state_dict().items()}
    return shape_of(model.config.to_dict()), tensors


def near(packed: Floats, weight: Floats, precision: Precision) -> None:
    """What is packed is the weight, rounded as the precision has it."""
    if precision == "fp32":
        np.testing.assert_array_equal(packed, weight)
        return
    # 8 bits: half of 1/127; 4 bits: half of 1/15 of a group's range, and the scale's own rounding
    step = {"bf16": 2**-8 * np.abs(weight), "int8": np.abs(weight).max() / 254, "int4": np.ptp(weight) / 28}
    assert (np.abs(packed - weight) <= step[precision] * 1.01).all()


# ---------------------------------------------------------------- packing


@both_ends
@each_shape
def test_every_tensor_is_where_it_belongs(changes: dict[str, Any], precision: Precision) -> None:
    shape, tensors = parts_of(family_model(**changes))
    packed = pack_model(shape, tensors, {}, precision)
    mlp_up, hidden = -(-shape.mlp // 32) * 32, shape.hidden
    wide: Precision = "int8" if precision == "int4" else precision
    for layer in range(shape.layers):
        layout: dict[int, list[tuple[str, int, int | None]]] = {
            0: [(f"self_attn.{one}_proj", hidden, None) for one in "qkv"],
            1: [("self_attn.o_proj", shape.heads * shape.size, None)],
            2: [("mlp.gate_proj", hidden, mlp_up), ("mlp.up_proj", hidden, mlp_up)],
            3: [("mlp.down_proj", shape.mlp, None)],
        }
        for place, names in layout.items():
            values, row = packed.matrices[4 * layer + place].values(), 0
            bias = packed.biases[4 * layer + place]
            for name, columns, height in names:
                weight = tensors[f"model.layers.{layer}.{name}.weight"]
                near(values[row : row + len(weight), :columns], weight, precision)
                expected = tensors.get(f"model.layers.{layer}.{name}.bias", np.zeros(len(weight), np.float32))
                got = np.zeros(len(weight)) if bias is None else bias[row : row + len(weight)]
                np.testing.assert_array_equal(got, expected)
                end = row + (height or len(weight))
                padding = values[row + len(weight) : end]
                assert not padding.any()
                row = end
            assert bias is None or len(bias) == len(values)
    head = tensors["model.embed_tokens.weight" if shape.tied else "lm_head.weight"]
    near(packed.matrices[-2].values()[: len(head), :hidden], head, wide)
    embedding = tensors["model.embed_tokens.weight"]
    near(packed.matrices[-1].values()[: len(embedding), :hidden], embedding, wide)
    assert (packed.matrices[-1] is packed.matrices[-2]) is shape.tied
    for place, norm in enumerate(packed.norms):
        layer, which = divmod(place, 2)
        name = f"layers.{layer}.{('input', 'post_attention')[which]}_layernorm"
        name = "norm" if layer == shape.layers else name
        np.testing.assert_array_equal(norm, tensors[f"model.{name}.weight"])
    assert packed.head_norms.shape == (2 * shape.layers if shape.head_norms else 0, shape.size)
    for place, norm in enumerate(packed.head_norms):
        name = f"model.layers.{place // 2}.self_attn.{'qk'[place % 2]}_norm.weight"
        np.testing.assert_array_equal(norm, tensors[name])


def test_formats_follow_the_precision() -> None:
    model = family_model()
    formats = {
        precision: [one.format for one in pack_loaded(model, precision).matrices] for precision in PRECISIONS
    }
    assert formats == {
        "fp32": [Format.F32] * 10,
        "bf16": [Format.BF16] * 10,
        "int8": [Format.U8] * 10,
        "int4": [*[Format.U4] * 8, Format.U8, Format.U8],
    }
    sizes = [pack_loaded(model, precision).weight_bytes for precision in PRECISIONS]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_blocks_of_the_source_are_taken_code_for_code(precision: Precision) -> None:
    """Where the bits are those asked for; other blocks are not rounded a second time but made of the tensor."""
    shape, tensors = parts_of(family_model(intermediate_size=96, num_hidden_layers=1))
    bits = 4 if precision == "int4" else 8
    other = np.random.default_rng(0).normal(size=(96, 64)).astype(np.float32)
    blocks = {
        "model.layers.0.mlp.up_proj.weight": quantize(other, bits),
        "model.layers.0.mlp.gate_proj.weight": quantize(other, 12 - bits),
    }
    packed = pack_model(shape, tensors, blocks, precision)
    values = packed.matrices[2].values()
    np.testing.assert_array_equal(values[96:192], quantize(other, bits).values())
    gate = tensors["model.layers.0.mlp.gate_proj.weight"]
    np.testing.assert_array_equal(values[:96], quantize(gate, bits).values())
    plain = pack_model(shape, tensors, {}, precision)
    for place in (0, 1, 3, 4, 5):
        np.testing.assert_array_equal(packed.matrices[place].data, plain.matrices[place].data)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_blocks_are_padded_like_tensors(precision: Precision) -> None:
    shape, tensors = parts_of(family_model(intermediate_size=100))
    bits = 4 if precision == "int4" else 8
    names = [f"model.layers.{layer}.mlp.{one}_proj.weight" for layer in range(2) for one in ("gate", "up")]
    blocks = {name: quantize(tensors[name], bits) for name in names}
    packed, plain = (pack_model(shape, tensors, given, precision) for given in (blocks, {}))
    for place in (2, 6):
        np.testing.assert_array_equal(packed.matrices[place].values(), plain.matrices[place].values())


def test_progress_is_told_layer_by_layer() -> None:
    shape, tensors = parts_of(family_model(num_hidden_layers=3))
    told: list[tuple[int, int]] = []
    pack_model(shape, tensors, {}, "bf16", lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_tensors_of_any_dtype_are_read_as_float32(tmp_path: Path) -> None:
    model = tiny_llama("bf16")
    model.save_pretrained(tmp_path)
    tensors = read_tensors(tmp_path.glob("*.safetensors"))
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}
    want = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    assert sorted(tensors) == sorted(want)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, want[name])


# ---------------------------------------------------------------- what is refused


@both_ends
@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.norm.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.1.post_attention_layernorm.weight",
        "model.layers.0.self_attn.q_norm.weight",
    ],
)
def test_a_missing_tensor_is_named(name: str, precision: Precision) -> None:
    shape, tensors = parts_of(family_model("qwen3"))
    del tensors[name]
    with pytest.raises(ModelReferenceError, match=f"no tensor {name}"):
        pack_model(shape, tensors, {}, precision)


@both_ends
@pytest.mark.parametrize("change", ["rows", "columns", "one less dimension"])
@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.norm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.1.self_attn.o_proj.weight",
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
        "model.layers.0.self_attn.v_proj.bias",
    ],
)
def test_a_tensor_of_another_shape_is_named(name: str, change: str, precision: Precision) -> None:
    """Rows too: whatever is behind a matrix that is too short would be read as weights."""
    shape, tensors = parts_of(family_model("qwen2"))
    tensor = tensors[name]
    if change == "rows" or tensor.ndim == 1:
        tensors[name] = tensor[:-1]
    else:
        tensors[name] = tensor[:, :-1] if change == "columns" else tensor[0]
    with pytest.raises(ModelReferenceError, match=f"{name} has the shape"):
        pack_model(shape, tensors, {}, precision)


@pytest.mark.parametrize(
    "cut", [(slice(0, 95), slice(None)), (slice(None), slice(0, 32))], ids=["rows", "columns"]
)
def test_blocks_of_another_shape_are_refused(cut: tuple[slice, slice]) -> None:
    shape, tensors = parts_of(family_model(intermediate_size=96))
    name = "model.layers.0.mlp.up_proj.weight"
    with pytest.raises(ModelReferenceError, match=f"{name} has the shape"):
        pack_model(shape, tensors, {name: quantize(tensors[name][cut], 8)}, "int8")


@both_ends
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"])
def test_weights_that_are_not_finite_are_refused(name: str, odd: float, precision: Precision) -> None:
    shape, tensors = parts_of(family_model())
    tensors[name].flat[3] = odd
    with pytest.raises(ModelReferenceError, match=f"{name} has values that are not finite"):
        pack_model(shape, tensors, {}, precision)


def test_weights_too_large_for_a_scale_are_refused() -> None:
    shape, tensors = parts_of(family_model())
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name][0, 0] = 1e6
    pack_model(shape, tensors, {}, "bf16")
    with pytest.raises(ModelReferenceError, match=f"{name} cannot be rounded"):
        pack_model(shape, tensors, {}, "int8")


def test_a_model_of_another_family_is_refused() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=9))
    with pytest.raises(ModelReferenceError, match="the model type is 'gpt2'"):
        pack_loaded(model, "fp32")
    rope = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 8}
    model.config = LlamaConfig(rope_parameters=rope)
    with pytest.raises(ModelReferenceError, match="of the kind 'yarn'"):
        pack_loaded(model, "fp32")


# ---------------------------------------------------------------- the file


def same(one: PackedModel, other: PackedModel) -> None:
    assert (one.shape, one.precision) == (other.shape, other.precision)
    assert [m.format for m in one.matrices] == [m.format for m in other.matrices]
    for mine, its in zip(one.matrices, other.matrices, strict=True):
        np.testing.assert_array_equal(mine.data, its.data)
    for bias, its_bias in zip(one.biases, other.biases, strict=True):
        assert (bias is None) == (its_bias is None)
        if bias is not None:
            np.testing.assert_array_equal(bias, its_bias)
    np.testing.assert_array_equal(one.norms, other.norms)
    np.testing.assert_array_equal(one.head_norms, other.head_norms)


@both_ends
@each_shape
def test_what_is_saved_is_loaded(changes: dict[str, Any], precision: Precision, tmp_path: Path) -> None:
    model = pack_loaded(family_model(**changes), precision)
    save(model, tmp_path / "model.pack")
    found = load(tmp_path / "model.pack")
    same(found, model)
    assert found.weight_bytes == model.weight_bytes
    assert (found.matrices[-1] is found.matrices[-2]) is model.shape.tied
    for matrix in found.matrices:
        assert matrix.data.ctypes.data % 64 == 0
        assert matrix.data.flags.c_contiguous
    save(found, tmp_path / "again.pack")
    assert (tmp_path / "again.pack").read_bytes() == (tmp_path / "model.pack").read_bytes()


@pytest.fixture
def packed_file(tmp_path: Path) -> Path:
    file = tmp_path / "model.pack"
    save(pack_loaded(family_model("qwen3", attention_bias=True), "int8"), file)
    return file


def refused(file: Path, data: bytes, reason: str = "cannot read the packed weights") -> None:
    file.write_bytes(data)
    with pytest.raises(ModelReferenceError, match=reason) as raised:
        load(file)
    assert str(file) in str(raised.value)


def test_a_file_cut_anywhere_is_refused(packed_file: Path) -> None:
    data = packed_file.read_bytes()
    for length in (
        0,
        1,
        8,
        9,
        15,
        16,
        17,
        18,
        100,
        2000,
        4095,
        4096,
        4097,
        len(data) // 2,
        len(data) - 64,
        len(data) - 1,
    ):
        refused(packed_file, data[:length])
    refused(packed_file, data + b"\0")


def test_damage_in_the_header_is_noticed_wherever_it_is(packed_file: Path) -> None:
    """Sizes and offsets become addresses: none may be wrong."""
    data = packed_file.read_bytes()
    end = data.index(b"\0" * 64)
    assert b'"places"' in data[:end]
    with packed_file.open("r+b") as stream:
        for place in (*range(40), *range(40, end, 37)):
            for bit in (0, 6):
                stream.seek(place)
                stream.write(bytes([data[place] ^ 1 << bit]))
                stream.flush()
                with pytest.raises(ModelReferenceError, match="cannot read the packed weights"):
                    load(packed_file)
            stream.seek(place)
            stream.write(data[place : place + 1])
    load(packed_file)


def test_a_file_of_another_kind_or_version_is_refused(packed_file: Path) -> None:
    data = packed_file.read_bytes()
    assert data.startswith(MAGIC)
    other = data.replace(VERSION.to_bytes(2, "little"), (VERSION + 1).to_bytes(2, "little"), 1)
    assert other != data
    refused(packed_file, other, "not a packed model of this version")
    refused(packed_file, b"GGUF" + data[4:], "not a packed model of this version")
    refused(packed_file, msgspec.json.encode({"model_type": "llama"}))
    with pytest.raises(ModelReferenceError, match="cannot read"):
        load(packed_file.parent / "missing.pack")
    with pytest.raises(ModelReferenceError, match="cannot read"):
        load(packed_file.parent)
