"""The packed decoder: its arithmetic in every precision, rows that never see their company, and its threads."""

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_models import BYTES, SHAPES, one_thread, tiny_llama  # noqa: F401
from tiny_packed import (
    FAMILY_SHAPES,
    PRECISIONS,
    Emulation,
    family_model,
    packed,
    packed_logits,
    random_ids,
    transformers_logits,
    whole_team,  # noqa: F401
)

from grimboost.adapters.packed_model import load, pack_loaded, save
from grimboost.adapters.packed_runner import MOST_ROWS, Cache, Row, Runner
from grimboost.adapters.target import Precision

each_precision = pytest.mark.parametrize("precision", PRECISIONS)
Floats = NDArray[np.float32]


def same_bits(got: Floats, want: Floats) -> None:
    np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))


# ---------------------------------------------------------------- arithmetic


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_fp32_is_transformers_arithmetic(shape: dict[str, Any]) -> None:
    model, ids = tiny_llama(**shape), random_ids(130)
    want = transformers_logits(model, ids)
    np.testing.assert_allclose(packed_logits(pack_loaded(model, "fp32"), ids), want, atol=1e-4)


@pytest.mark.parametrize("name", FAMILY_SHAPES)
def test_fp32_is_transformers_arithmetic_in_every_family(name: str) -> None:
    model = family_model(**FAMILY_SHAPES[name])
    ids = random_ids(130, below=model.config.vocab_size)
    want = transformers_logits(model, ids)
    np.testing.assert_allclose(packed_logits(pack_loaded(model, "fp32"), ids), want, atol=1e-4)


TIGHT: dict[Precision, float] = {"fp32": 1e-4, "bf16": 3e-3, "int8": 3e-5, "int4": 3e-5}
"""What float32 sums differ by. Keys and values in float16 are rounded apart now and then: that is bf16's."""

LOOSE: dict[Precision, float] = {"fp32": 1e-4, "bf16": 1e-2, "int8": 0.3, "int4": 0.3}
"""Where a difference in the last bit makes another code of a byte, everything behind it is a little off."""


@each_precision
@pytest.mark.parametrize("name", FAMILY_SHAPES)
def test_all_precisions_compute_with_what_was_packed(name: str, precision: Precision) -> None:
    """Against float64 with the same weights, the same bytes for rows and the same cache."""
    model = packed(precision, name)
    emulation = Emulation(model)
    errors = []
    for seed in range(16):
        ids = random_ids(6, seed, model.shape.vocabulary)
        errors.append(np.abs(packed_logits(model, ids) - emulation.logits(ids)).max())
    assert max(errors) < LOOSE[precision]
    assert np.quantile(errors, 0.25) < TIGHT[precision]


@each_precision
def test_a_long_sequence_is_attended_to_its_beginning(precision: Precision) -> None:
    """A copy of the reference's first token at the far end is seen through 600 positions."""
    model = packed(precision, "tied")
    ids = random_ids(600)
    other = [(ids[0] + 1) % len(BYTES), *ids[1:]]
    one, two = packed_logits(model, ids)[-1], packed_logits(model, other)[-1]
    assert 0 < np.abs(one - two).max() < 1.0
    assert np.abs(one - Emulation(model).logits(ids)[-1]).max() < LOOSE[precision]


@each_precision
@pytest.mark.parametrize("name", ["tied", "qwen3 biased"])
def test_a_model_from_its_file_is_the_model(name: str, precision: Precision, tmp_path: Any) -> None:
    model, ids = packed(precision, name), random_ids(20)
    save(model, tmp_path / "model.pack")
    same_bits(packed_logits(load(tmp_path / "model.pack"), ids), packed_logits(model, ids))


# ---------------------------------------------------------------- row-invariance, bit for bit


@each_precision
@pytest.mark.parametrize("name", ["odd sizes", "narrow", "qwen3 biased", "biases everywhere"])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.usefixtures("whole_team")
def test_rows_have_the_same_bits_in_passes_of_any_size(name: str, precision: Precision, threads: int) -> None:
    """All logits, not only what is chosen from them."""
    model = packed(precision, name)
    ids = random_ids(100, below=model.shape.vocabulary)
    alone = packed_logits(model, ids, (1,))
    for parts in ((64,), (2, 3, 4), (5, 6, 7, 8), (9, 17, 33), (31, 32)):
        same_bits(packed_logits(model, ids, parts, threads), alone)


@each_precision
@pytest.mark.usefixtures("whole_team")
def test_g2b_logits_do_not_depend_on_neighbours(precision: Precision) -> None:
    """Rows of five slots of unequal lengths in one pass, in any order, against each slot by itself."""
    model = packed(precision, "biases everywhere")
    lengths, rows = (0, 3, 15, 16, 250), (4, 1, 9, 17, 33)
    texts = [
        random_ids(length + count, seed) for seed, (length, count) in enumerate(zip(lengths, rows, strict=True))
    ]
    want = [packed_logits(model, text)[length:] for text, length in zip(texts, lengths, strict=True)]
    runner = Runner(model, model.shape.vocabulary, 2)
    for order in (range(5), range(4, -1, -1), (2, 4, 0, 3, 1)):
        blocks: list[list[Row]] = []
        for place in order:
            cache, text, length = Cache(model), texts[place], lengths[place]
            cache.reserve(len(text))
            past = [Row(id, at, cache, False) for at, id in enumerate(text[:length])]
            for start in range(0, length, MOST_ROWS):
                runner.run(past[start : start + MOST_ROWS])
            blocks.append([Row(id, length + at, cache, True) for at, id in enumerate(text[length:])])
        logits = runner.run([row for block in blocks for row in block]).logits
        ends = np.cumsum([len(block) for block in blocks])
        for place, got in zip(order, np.split(logits, ends[:-1]), strict=True):
            same_bits(got, want[place])
    runner.close()


def test_a_slot_takes_no_more_room_than_it_needs() -> None:
    cache = Cache(packed("int8"))
    assert cache.capacity == 0
    rooms = []
    for positions in (1, 256, 257, 512, 600, 640):
        cache.reserve(positions)
        rooms.append(cache.capacity)
    assert rooms == [256, 256, 512, 512, 640, 640]
    assert cache.keys.dtype == np.float16
    assert Cache(packed("fp32")).keys.dtype == np.float32


# ---------------------------------------------------------------- threads


def team_members() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("grimboost team")}


def gone(members: set[threading.Thread]) -> bool:
    deadline = time.monotonic() + 30.0
    while members & team_members() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not members & team_members()


@pytest.fixture
def before() -> set[threading.Thread]:
    gc.collect()
    return team_members()


def test_threads_end_with_their_runner(before: set[threading.Thread]) -> None:
    runner = Runner(packed("int8"), len(BYTES), 3)
    cache = Cache(packed("int8"))
    cache.reserve(1)
    runner.run([Row(1, 0, cache, True)])
    mine = team_members() - before
    assert len(mine) == 2
    runner.close()
    runner.close()
    assert gone(mine)


def test_threads_end_when_nobody_holds_the_runner(before: set[threading.Thread]) -> None:
    runner = Runner(packed("int8"), len(BYTES), 2)
    mine = team_members() - before
    assert len(mine) == 1
    del runner
    gc.collect()
    assert gone(mine)
