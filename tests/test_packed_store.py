"""Packed models in the cache: made once, whole or not at all, and what `auto` chooses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import byte_level_json, tiny_llama

from grimboost import packed_store
from grimboost.adapters import packed_model
from grimboost.errors import MisuseError, ModelReferenceError
from grimboost.loading import check_choices, load_target
from grimboost.model_references import ResolvedModel
from grimboost.packed_store import Measured, PackedStore, fastest


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    tiny_llama(rows=600).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    return folder


@pytest.fixture
def resolved(directory: Path) -> ResolvedModel:
    return ResolvedModel("tiny", directory, "0123456789abcdef", {})


def measured(**cells: tuple[float, float]) -> dict[Any, Measured]:
    return {name: Measured(*cell) for name, cell in cells.items()}


def test_auto_is_the_fastest_within_two_percent() -> None:
    assert fastest(measured(fp32=(10.0, 20.0), int4=(10.19, 4.0), int8=(10.1, 6.0), bf16=(10.0, 10.0))) == "int4"
    assert fastest(measured(fp32=(10.0, 20.0), int4=(10.21, 4.0), int8=(10.1, 6.0), bf16=(10.0, 10.0))) == "int8"
    assert fastest(measured(fp32=(10.0, 5.0), int4=(10.0, 7.0), int8=(10.0, 6.0), bf16=(10.0, 6.0))) == "fp32"
    assert (
        fastest(measured(fp32=(10.0, 20.0), int4=(float("nan"), 1.0), int8=(99.0, 2.0), bf16=(99.0, 3.0)))
        == "fp32"
    )


def test_a_model_is_packed_once_and_mapped_after(
    resolved: ResolvedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, steps = PackedStore(tmp_path), list[tuple[str, int, int]]()
    first = store.obtain(resolved, "int8", lambda *step: steps.append(step))
    assert steps == [("packing weights", 1, 2), ("packing weights", 2, 2)]
    monkeypatch.setattr(packed_model, "pack_model", lambda *_: pytest.fail("packed again"))
    again = store.obtain(resolved, "int8")
    for one, other in zip(first.matrices, again.matrices, strict=True):
        assert np.array_equal(one.data, other.data)
    assert [file.suffix for file in (tmp_path / "packed").iterdir()] == [".pack"]


def test_a_damaged_file_and_one_of_another_version_are_made_anew(resolved: ResolvedModel, tmp_path: Path) -> None:
    store, folder = PackedStore(tmp_path), tmp_path / "packed"
    store.obtain(resolved, "int8")
    [file] = folder.iterdir()
    old = file.with_name(file.name.replace(f"-{packed_model.VERSION}.", "-0."))
    file.rename(old)
    store.obtain(resolved, "int8")
    assert [*folder.iterdir()] == [file]
    file.write_bytes(file.read_bytes()[:100])
    assert store.obtain(resolved, "int8").precision == "int8"
    assert file.stat().st_size > 100


def test_a_cache_that_cannot_be_written_costs_time_only(resolved: ResolvedModel, tmp_path: Path) -> None:
    (tmp_path / "packed").write_text("a file where the folder should be")
    assert PackedStore(tmp_path).obtain(resolved, "int4").precision == "int4"


def test_what_auto_measured_is_kept(
    resolved: ResolvedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_store, "SAMPLE_TOKENS", 80)
    found = PackedStore(tmp_path).measured(resolved)
    assert set(found) == {"fp32", "bf16", "int8", "int4"}
    assert all(one.perplexity > 1 and one.milliseconds > 0 for one in found.values())
    monkeypatch.setattr(packed_store, "_measure", lambda *_: pytest.fail("measured again"))
    assert PackedStore(tmp_path).measured(resolved) == found


def test_a_model_that_cannot_be_packed_runs_on_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIMBOOST_CACHE", str(tmp_path / "cache"))
    model = tiny_llama(rows=600, context=64)
    model.config.rope_parameters = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 32,
    }
    model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    assert load_target(str(tmp_path)).target.facts.precision == "fp32"
    with pytest.raises(ModelReferenceError, match="yarn"):
        load_target(str(tmp_path), "int4")
    with pytest.raises(ModelReferenceError, match="yarn"):
        load_target(str(tmp_path), kernels="packed")


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        (("fp64", None, 0), "precision is 'fp64'"),
        (("int4", "stock", 0), "stock kernels have no precision 'int4'"),
        (("auto", "best", 0), "kernels is 'best'"),
        (("auto", None, -1), "threads is -1"),
    ],
)
def test_wrong_choices_are_refused(choices: tuple[Any, Any, int], sentence: str) -> None:
    with pytest.raises(MisuseError, match=sentence):
        check_choices(*choices)
