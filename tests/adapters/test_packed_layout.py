"""Matrices in tiles: what goes in is what the kernels find, value for value."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from grimboost.adapters.packed_layout import pack_blocks, pack_floats, stack_blocks, to_bfloat16
from grimboost.adapters.quantized_blocks import Blocks, quantize
from grimboost.kernels.tiles import BYTES_PER_STEP, GROUP, LANES, Format

Floats = NDArray[np.float32]
SIZES = [(1, 1), (16, 32), (17, 33), (48, 64), (5, 100), (64, 20)]


def random_matrix(rows: int, columns: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


def rounded(matrix: Floats, format: Format) -> Floats:
    """By torch and numpy."""
    if format == Format.BF16:
        return torch.from_numpy(matrix).bfloat16().float().numpy()
    return matrix.astype(np.float16).astype(np.float32) if format == Format.F16 else matrix


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("format", [Format.F32, Format.BF16, Format.F16], ids=lambda format: format.name)
def test_floats_come_back_rounded_once_and_padded_with_zeros(format: Format, size: tuple[int, int]) -> None:
    matrix = random_matrix(*size)
    packed = pack_floats(matrix, format)
    assert packed.inputs % GROUP == 0
    assert packed.tiles * LANES - size[0] in range(LANES)
    assert packed.data.nbytes == packed.tiles * packed.steps * BYTES_PER_STEP[format]
    values = packed.values()
    np.testing.assert_array_equal(values[: size[0], : size[1]], rounded(matrix, format))
    values[: size[0], : size[1]] = 0.0
    assert not values.any()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_blocks_come_back_code_for_code(size: tuple[int, int], bits: int) -> None:
    blocks = quantize(random_matrix(*size), bits)
    packed = pack_blocks(blocks)
    assert packed.format == (Format.U4 if bits == 4 else Format.U8)
    assert (packed.inputs, packed.tiles) == (blocks.codes.shape[1], -(-size[0] // LANES))
    assert packed.data.nbytes == packed.tiles * packed.steps * BYTES_PER_STEP[packed.format]
    values = packed.values()
    np.testing.assert_array_equal(values[: size[0], : size[1]], blocks.values())
    assert not values[size[0] :].any()  # outputs that nobody asked for are zeros


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([4, 8]), st.integers(1, 40), st.integers(1, 4), st.integers(0, 2**32))
def test_blocks_of_any_codes_come_back(bits: int, rows: int, groups: int, seed: int) -> None:
    """A GGUF file may hold codes, scales and minima that no rounding here makes."""
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, 2**bits, (rows, groups * GROUP), np.uint8)
    scale, minimum = generator.choice(np.array([0.0, -1.5, 6e-8, 65504.0], np.float16), (2, rows, groups))
    blocks = Blocks(bits, groups * GROUP, codes, scale, minimum if bits == 4 else None)
    np.testing.assert_array_equal(pack_blocks(blocks).values()[:rows], blocks.values())


@pytest.mark.parametrize("bits", [4, 8])
def test_stacked_blocks_are_the_matrices_one_below_the_other(bits: int) -> None:
    parts = [quantize(random_matrix(rows, 70, rows), bits) for rows in (3, 16, 20)]
    stacked = stack_blocks(parts)
    want = np.concatenate([part.values() for part in parts])
    np.testing.assert_array_equal(stacked.values(), want)
    np.testing.assert_array_equal(pack_blocks(stacked).values()[:39, :70], want)


def test_an_output_lies_where_its_tile_and_lane_say() -> None:
    """Written down once by hand: output 18 is lane 2 of tile 1."""
    matrix = np.zeros((32, 32), np.float32)
    matrix[18, 5] = 1.0
    data = pack_floats(matrix, Format.F32).data.view(np.float32)
    assert np.argwhere(data).tolist() == [[1, 5 * LANES + 2]]
    blocks = quantize(matrix, 8)
    group = pack_blocks(blocks).data[1]
    assert group[:32].view(np.float16)[2] == blocks.scale[18, 0]
    codes = group[32:].reshape(8, LANES, 4)
    assert codes[5 // 4, 2, 5 % 4] == 255
    assert (codes != 128).sum() == 1


def test_four_bits_share_a_byte_with_the_code_sixteen_inputs_on() -> None:
    codes = np.zeros((16, 32), np.uint8)
    codes[3, 6], codes[3, 22] = 9, 12
    ones = np.ones((16, 1), np.float16)
    data = pack_blocks(Blocks(4, 32, codes, ones, ones)).data[0, 64:].reshape(4, LANES, 4)
    assert data[1, 3, 2] == 9 | 12 << 4
    assert (data != 0).sum() == 1


def test_quantized_formats_are_made_of_blocks() -> None:
    with pytest.raises(ValueError, match="U4 is made of blocks"):
        pack_floats(random_matrix(4, 32), Format.U4)


@settings(max_examples=300, deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bfloat16_rounds_as_torch_does(value: float) -> None:
    got = to_bfloat16(np.array([value], np.float32))
    want = torch.tensor([value], dtype=torch.float32).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert got == want


@pytest.mark.parametrize("bits", [0x3F808000, 0x3F818000, 0x3F808001, 0x3F817FFF, 0x7F7F7FFF, 0x00008000])
def test_bfloat16_ties_go_to_even(bits: int) -> None:
    value = np.array([bits], np.uint32).view(np.float32)
    assert to_bfloat16(value) == torch.from_numpy(value).bfloat16().view(torch.int16).numpy().view(np.uint16)
