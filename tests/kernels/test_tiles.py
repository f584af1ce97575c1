"""Tile products bit for bit against the same sums in numpy, in every format and for every number of rows."""

from typing import Any

import numba
import numpy as np
import pytest
from exact_arithmetic import QuantizedRows, Tile, fused
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from grimboost.kernels import tiles
from grimboost.kernels.products import tile_rows
from grimboost.kernels.tiles import BLOCK, GROUP, LANES, QUANTIZED, STEP, Format

Floats = NDArray[np.float32]
ROWS = range(1, 18)
MARGIN = 3
"""Floats beside each row's result that nobody may touch."""

PLAIN = [format for format in Format if format not in QUANTIZED]


def multiply(tile: Tile, x: Any, rows: int, add: Floats | None = None, kernel: Any = tile_rows) -> Floats:
    """The kernel's product of the first `rows` of `x` [rows, inputs], or `QuantizedRows`: [rows, 16]."""
    out = np.full((rows + 1, LANES + MARGIN), np.nan, np.float32)
    if add is not None:
        out[:rows, :LANES] = add[:rows]
    data = np.ascontiguousarray(tile.packed.data)
    scales: Any = np.zeros(1, np.float32)
    sums: Any = scales
    if isinstance(x, QuantizedRows):
        codes, scales, sums = x.codes, x.scales, x.offsets if tile.format == Format.U8 else x.sums
        row, block = GROUP, BLOCK * GROUP * codes.shape[1]
    else:
        codes = np.ascontiguousarray(x)
        row, block = 4 * codes.shape[1], 4 * BLOCK * codes.shape[1]
    places = (codes.ctypes.data, row, block, scales.ctypes.data, sums.ctypes.data, tile.packed.steps)
    kernel(
        int(tile.format), data.ctypes.data, *places, out.ctypes.data, 4 * out.shape[1], rows, int(add is not None)
    )
    assert np.isnan(out[:, LANES:]).all()
    assert np.isnan(out[rows]).all()
    return out[:rows, :LANES]


def same_bits(got: Floats, want: Floats) -> None:
    np.testing.assert_array_equal(got.view(np.int32), np.ascontiguousarray(want, np.float32).view(np.int32))


def random_rows(
    generator: np.random.Generator, groups: int, extreme: bool = False, count: int = ROWS[-1]
) -> QuantizedRows:
    if extreme:
        codes = generator.choice(np.array([-127, -126, 0, 127], np.int8), (count, groups, GROUP))
        scales = generator.choice(np.array([0.0, 1e-30, 1.0, 1e4], np.float32), (count, groups))
    else:
        codes = generator.integers(-127, 127, (count, groups, GROUP), np.int8, endpoint=True)
        scales = generator.uniform(0.0, 0.1, (count, groups)).astype(np.float32)
    return QuantizedRows(codes, scales)


@pytest.mark.parametrize("inputs", [32, 64, 96, 576, 1536])
@pytest.mark.parametrize("format", PLAIN, ids=lambda format: format.name)
def test_float_tiles_add_input_after_input_and_round_once(format: Format, inputs: int) -> None:
    generator = np.random.default_rng(inputs)
    tile = Tile(format, inputs, generator)
    x = generator.normal(size=(ROWS[-1], inputs)).astype(np.float32)
    before = generator.normal(size=(ROWS[-1], LANES)).astype(np.float32)
    want = tile.float_products(x)
    for rows in ROWS:
        same_bits(multiply(tile, x, rows), want[:rows])
        same_bits(multiply(tile, x, rows, before), before[:rows] + want[:rows])


@pytest.mark.parametrize("extreme", [False, True], ids=["random", "extreme"])
@pytest.mark.parametrize("groups", [1, 2, 3, 18, 48])
@pytest.mark.parametrize("format", QUANTIZED, ids=lambda format: format.name)
def test_quantized_tiles_add_exact_integers(format: Format, groups: int, extreme: bool) -> None:
    generator = np.random.default_rng(groups)
    tile = Tile(format, groups * GROUP, generator, extreme)
    x = random_rows(generator, groups, extreme)
    before = generator.normal(size=(ROWS[-1], LANES)).astype(np.float32)
    want = tile.products(x)
    for rows in ROWS:
        same_bits(multiply(tile, x, rows), want[:rows])
        same_bits(multiply(tile, x, rows, before), before[:rows] + want[:rows])


@pytest.mark.parametrize("format", QUANTIZED, ids=lambda format: format.name)
@pytest.mark.parametrize("code", [0, 255])
@pytest.mark.parametrize("value", [-127, 127])
def test_the_largest_sums_are_exact(format: Format, code: int, value: int) -> None:
    generator = np.random.default_rng(0)
    tile = Tile(format, 64, generator)
    tile.set(code=code)
    x = QuantizedRows(np.full((9, 2, GROUP), value, np.int8), np.ones((9, 2), np.float32))
    same_bits(multiply(tile, x, 9), tile.products(x))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(list(Format)), st.integers(1, 40), st.integers(0, 2**32), st.data())
def test_a_row_does_not_see_its_neighbours(format: Format, rows: int, seed: int, data: st.DataObject) -> None:
    """Whatever stands in the other rows of the same call, NaN and infinity included."""
    generator = np.random.default_rng(seed)
    tile = Tile(format, 64, generator)
    row = data.draw(st.integers(0, rows - 1))
    if format in QUANTIZED:
        x = random_rows(generator, 2, count=rows)
        alone = multiply(tile, QuantizedRows(x.row_codes[row : row + 1], x.row_scales[row : row + 1]), 1)
        x.scales[np.arange(len(x.scales)) != row // BLOCK] = np.inf
        x.scales[row // BLOCK, :, np.arange(BLOCK) != row % BLOCK] = np.nan
        got = multiply(tile, x, rows)
    else:
        plain = generator.normal(size=(rows, 64)).astype(np.float32)
        alone = multiply(tile, plain[row : row + 1], 1)
        plain[np.arange(rows) != row] = data.draw(st.sampled_from([np.nan, np.inf, 0.0]))
        got = multiply(tile, plain, rows)
    same_bits(got[row], alone[0])


def test_bfloat16_and_float16_cover_their_range() -> None:
    """Subnormals are widened as they are, not flushed to zero."""
    for format, values in (
        (Format.F16, [6e-8, 65504.0, -6.1e-5, 0.0, 1.0]),
        (Format.BF16, [1e-38, 3e38, -1e-40, 0.0, 1.0]),
    ):
        tile = Tile(format, 32, np.random.default_rng(0))
        tile.set(np.tile(np.array([*values, *[0.0] * (32 - len(values))], np.float32), (LANES, 1)))
        x = np.zeros((1, 32), np.float32)
        for place in range(len(values)):
            x[:], x[0, place] = 0.0, 0.5
            same_bits(multiply(tile, x, 1), tile.float_products(x))
    assert STEP * 8 == GROUP  # pack_floats pads to groups, whatever the format


def compiled_anew() -> Any:
    """`tile_rows` as this process would compile it now, not as it is kept on disk."""
    kept: Any = tile_rows
    return numba.njit(error_model="numpy")(kept.py_func)


def test_without_vnni_the_bits_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generic vector code is compiled here too, under another name, from the same source."""
    monkeypatch.setattr(tiles, "_HAS_VNNI", False)
    generic = compiled_anew()
    generator = np.random.default_rng(5)
    for format in QUANTIZED:
        for groups, extreme in ((1, True), (2, False), (18, True), (18, False)):
            tile = Tile(format, groups * GROUP, generator, extreme)
            x = random_rows(generator, groups, extreme)
            for rows in (1, 2, 3, 4, 8, 15):
                same_bits(multiply(tile, x, rows, kernel=generic), tile.products(x)[:rows])
    [code] = generic.inspect_llvm().values()
    assert "vpdpbusd" not in code


@pytest.mark.skipif(not tiles._HAS_VNNI, reason="this processor has none")
def test_with_vnni_it_is_used() -> None:
    fresh = compiled_anew()
    fresh.compile("void(" + ", ".join(["int64"] * 12) + ")")
    [code] = fresh.inspect_llvm().values()
    assert "vpdpbusd" in code


def test_the_reference_itself_rounds_once() -> None:
    x = np.array([1.0 + 2.0**-12], np.float32)
    minus = np.array([-1.0], np.float32)
    assert fused(x, x, minus) == np.float32(2.0**-11 + 2.0**-24)
    assert x * x + minus == np.float32(2.0**-11)
    generator = np.random.default_rng(1)
    size = np.float32(2.0) ** generator.integers(-30, 30, (3, 10_000)).astype(np.float32)
    x, y, z = generator.normal(size=(3, 10_000)).astype(np.float32) * size
    got = fused(x, y, z)
    exact = np.longdouble(x) * np.longdouble(y) + np.longdouble(z)
    assert (np.abs(got - exact) <= np.spacing(np.abs(got)).astype(np.float64) / 2).all()
