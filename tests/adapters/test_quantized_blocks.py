"""Blocks of a GGUF file are those of the file, and the ones rounded here are about as near as 4 and 8 bits go."""

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import safe_open
from tiny_gguf import SHAPES, write_gguf

from grimboost.adapters.gguf_files import convert
from grimboost.adapters.gguf_header import read_header
from grimboost.adapters.quantized_blocks import GROUP, LARGEST, Blocks, quantize, read_blocks
from grimboost.errors import ModelReferenceError
from grimboost.model_references import resolve

HUGGING_FACE = {f"model.layers.{layer}.self_attn.{name}_proj.weight" for layer in range(2) for name in "qkvo"} | {
    f"model.layers.{layer}.mlp.{name}_proj.weight" for layer in range(2) for name in ("gate", "up", "down")
}


def mixed(name: str) -> Kind:
    """All three kinds in one file, and matrices that are not quantized."""
    if "norm" in name or "blk.1.attn_v" in name:
        return Kind.F32
    if "token_embd" in name:
        return Kind.F16
    first = {"attn_q": Kind.Q4_0, "attn_k": Kind.Q4_0, "ffn_up": Kind.Q8_0, "output.": Kind.Q8_0}
    return next((kind for part, kind in first.items() if part in name), Kind.Q4_1)


def noise(out: int, columns: int, seed: int = 0, spread: float = 0.1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((out, columns), np.float32) * np.float32(spread)


def error(weight: NDArray[np.float32], blocks: Blocks) -> float:
    """Root mean square, as a part of the weights' own."""
    return float(np.linalg.norm(blocks.values() - weight) / np.linalg.norm(weight))


# ---------------------------------------------------------------- the header


def test_the_header_is_what_the_gguf_package_reads(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", kinds=mixed)
    header, _ = read_header(file)
    reader = gguf.GGUFReader(file)
    lists = {key for key, field in reader.fields.items() if field.types[0] == gguf.GGUFValueType.ARRAY}
    entries = {key for key in reader.fields if not key.startswith("GGUF.")}
    assert entries - set(header.scalars) == lists
    assert all(value == reader.fields[key].contents() for key, value in header.scalars.items())
    assert [(name, place.kind, place.offset) for name, place in header.tensors.items()] == [
        (tensor.name, tensor.tensor_type, tensor.data_offset) for tensor in reader.tensors
    ]
    assert {name: place.shape for name, place in header.tensors.items()} == SHAPES


# ---------------------------------------------------------------- blocks of a file


@pytest.mark.parametrize("heads", [(2, 1), (4, 2), (4, 4)])
def test_blocks_equal_the_converted_weights(tmp_path: Path, heads: tuple[int, int]) -> None:
    shapes = SHAPES | {
        f"blk.{layer}.attn_{x}.weight": (64 // heads[0] * heads[1], 64) for layer in "01" for x in "kv"
    }
    shapes["output.weight"] = shapes["token_embd.weight"]
    file = write_gguf(tmp_path / "tiny.gguf", kinds=mixed, heads=heads, shapes=shapes)
    convert(file, tmp_path / "model", ["llama"], lambda done, total: None)
    blocks = read_blocks(file)
    assert set(blocks) == HUGGING_FACE - {"model.layers.1.self_attn.v_proj.weight"} | {"lm_head.weight"}
    assert {one.bits for one in blocks.values()} == {4, 8}
    with safe_open(str(tmp_path / "model" / "model.safetensors"), "numpy") as weights:
        for name, one in blocks.items():
            assert np.array_equal(one.values(), weights.get_tensor(name)), name


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0])
def test_each_kind_is_what_the_gguf_package_makes_of_it(tmp_path: Path, kind: Kind) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", kinds=lambda name: Kind.F32 if "norm" in name else kind)
    expected = next(tensor for tensor in gguf.GGUFReader(file).tensors if tensor.name == "blk.0.ffn_down.weight")
    one = read_blocks(file)["model.layers.0.mlp.down_proj.weight"]
    assert (one.columns, one.codes.shape, one.scale.shape) == (96, (64, 96), (64, 3))
    assert (one.codes.dtype, one.scale.dtype) == (np.uint8, np.float16)
    assert one.codes.max() < 2**one.bits
    assert (one.minimum is None) == (one.bits == 8) == (kind == Kind.Q8_0)
    assert np.array_equal(one.values(), gguf.dequantize(expected.data, kind))


@pytest.mark.parametrize("kept", [0, 3, 20, 500, 3000, -3000])
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, kept: int) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", kinds=lambda name: Kind.F32 if "norm" in name else Kind.Q8_0)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ModelReferenceError, match=r"tiny\.gguf cannot be read"):
        read_blocks(file)


def test_another_architecture_has_another_row_order_and_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelReferenceError, match="'qwen2', not 'llama'"):
        read_blocks(write_gguf(tmp_path / "tiny.gguf", architecture="qwen2"))
    with pytest.raises(ModelReferenceError, match=r"none\.gguf cannot be read"):
        read_blocks(tmp_path / "none.gguf")


# ---------------------------------------------------------------- rounded here


@pytest.mark.parametrize(("bits", "at_most"), [(4, 0.075), (8, 0.0056)])
@pytest.mark.parametrize("spread", [1e-3, 0.1, 1000.0])
def test_rounding_is_as_near_as_it_should_be(bits: int, at_most: float, spread: float) -> None:
    weight = noise(500, 96, spread=spread)
    assert error(weight, quantize(weight, bits)) < at_most


def test_four_bits_are_nearer_than_the_format_of_gguf() -> None:
    weight = noise(500, 96)
    plain = gguf.dequantize(gguf.quantize(weight, Kind.Q4_1), Kind.Q4_1)
    assert error(weight, quantize(weight, 4)) < 0.94 * np.linalg.norm(plain - weight) / np.linalg.norm(weight)


@pytest.mark.parametrize("bits", [4, 8])
def test_what_is_on_the_grid_already_stays(bits: int) -> None:
    weight = quantize(noise(20, 64), bits)
    codes = np.where(np.arange(64) % GROUP == 0, 1, weight.codes)
    codes[:, 1::GROUP] = 2**bits - 1  # the ends of the range are in use, so the line can be found again
    codes[:, 2::GROUP] = 0 if bits == 4 else 1
    weight = Blocks(bits, 64, codes.astype(np.uint8), weight.scale, weight.minimum)
    assert np.abs(quantize(weight.values(), bits).values() - weight.values()).max() < 1e-3 * 0.1


@pytest.mark.parametrize("bits", [4, 8])
def test_columns_that_fill_up_a_group(bits: int) -> None:
    weight = noise(6, 40)
    blocks = quantize(weight, bits)
    assert (blocks.columns, blocks.codes.shape, blocks.scale.shape) == (40, (6, 64), (6, 2))
    assert blocks.values().shape == (6, 40)
    assert error(weight, blocks) < {4: 0.08, 8: 0.006}[bits]
    if bits == 8:
        assert (blocks.codes[:, 40:] == 128).all()


@given(bits=st.sampled_from([4, 8]), seed=st.integers(0, 99), exponent=st.integers(-12, 4), same=st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_weight_is_further_off_than_its_groups_range_allows(
    bits: int, seed: int, exponent: int, same: bool
) -> None:
    """Also where fp16 is coarse or nothing is left of it, and where all weights of a group are the same."""
    weight = noise(3, 32, seed, 10.0**exponent).clip(-LARGEST, LARGEST)
    if same:
        weight[1] = weight[1, 0]
    weight[2] = 0
    blocks = quantize(weight, bits)
    coarse = np.abs(weight).max() * 2.0**-10 + 6e-8 * 2**bits  # of fp16: relative, and the smallest one
    steps = np.ptp(weight, axis=1, keepdims=True) / 15 if bits == 4 else np.abs(weight).max(1, keepdims=True) / 127
    assert (np.abs(blocks.values() - weight) <= 1.5 * steps + coarse).all()
    assert not blocks.values()[2].any()


def test_the_size_of_the_matrix_changes_no_row() -> None:
    weight = noise(5000, 64)
    whole, part = quantize(weight, 4), quantize(weight[2040:2060], 4)
    assert np.array_equal(whole.values()[2040:2060], part.values())


@pytest.mark.parametrize(
    ("weight", "bits", "message"),
    [
        (noise(2, 32), 5, "bits is 5"),
        (noise(2, 32)[0], 4, "no matrix"),
        (noise(0, 32), 4, "no matrix"),
        (noise(2, 32) * np.float32("inf"), 4, "not finite"),
        (noise(2, 32) + np.float32("nan"), 8, "not finite"),
        (noise(2, 32) + np.float32(70000), 8, "beyond 32768"),
    ],
)
def test_what_cannot_be_rounded_is_refused(weight: NDArray[np.float32], bits: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quantize(weight, bits)


def test_nothing_heavy_is_imported() -> None:
    program = (
        "import sys; import grimboost.adapters.quantized_blocks; "
        "print([name for name in ('torch', 'transformers', 'gguf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---------------------------------------------------------------- the real model


@pytest.mark.model
def test_the_real_models_blocks_equal_its_converted_weights() -> None:
    try:
        model = resolve("smollm2-135m")
    except ModelReferenceError as error:
        pytest.skip(f"the default target cannot be had here: {error}")
    assert model.gguf
    blocks = read_blocks(model.gguf)
    with safe_open(str(model.directory / "model.safetensors"), "numpy") as weights:
        matrices = {name for name in weights.keys() if "norm" not in name}  # noqa: SIM118 (it is no dict)
        assert set(blocks) == matrices
        for name, one in blocks.items():
            assert np.array_equal(one.values(), weights.get_tensor(name)), name
