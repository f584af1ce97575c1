"""The kept cost curve: measured once per target and machine, and again when it was measured beside other work."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tiny_models import noise_target

from grimboost import cost_curves
from grimboost.adapters.scripted_target import ScriptedTarget
from grimboost.stages.configuration import CostCurve


@pytest.fixture
def target() -> ScriptedTarget:
    target = noise_target()
    target._facts = replace(target.facts, digest="0123456789abcdef")
    return target


def test_a_measured_curve_has_a_point_for_each_row_count_and_leaves_no_slot(target: ScriptedTarget) -> None:
    curve = cost_curves.measure(target, rounds=1)
    assert curve.rows == cost_curves.ROWS
    assert min(curve.milliseconds) == curve.milliseconds[0] > 0
    assert target.open_slots == 0


def test_a_small_context_limits_the_points() -> None:
    assert cost_curves.measure(noise_target(context=20), rounds=1).rows == (1, 2, 4, 8)


def test_a_curve_is_kept_and_read_again(
    target: ScriptedTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cost_curves.kept_or_measured(target, tmp_path)
    monkeypatch.setattr(cost_curves, "single_row", lambda _: first.milliseconds[0])
    assert cost_curves.kept_or_measured(target, tmp_path) == first
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_a_curve_that_was_measured_beside_other_work_is_measured_again(
    target: ScriptedTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = CostCurve((1, 2), (92.0, 95.0)), CostCurve((1, 2), (41.0, 42.0))
    steps: list[str] = []
    monkeypatch.setattr(cost_curves, "measure", lambda _: slow)
    cost_curves.kept_or_measured(target, tmp_path, lambda step, done, total, /: steps.append(step))
    monkeypatch.setattr(cost_curves, "measure", lambda _: quick)
    monkeypatch.setattr(cost_curves, "single_row", lambda _: 41.0)
    assert cost_curves.kept_or_measured(target, tmp_path) == quick
    monkeypatch.setattr(cost_curves, "measure", lambda _: slow)
    assert cost_curves.kept_or_measured(target, tmp_path) == quick
    assert steps == ["measuring"]


@pytest.mark.parametrize("content", [b"", b"{}x", b'{"rows": "x"}'])
def test_a_damaged_file_is_measured_again(target: ScriptedTarget, tmp_path: Path, content: bytes) -> None:
    cost_curves.kept_or_measured(target, tmp_path)
    [file] = tmp_path.glob("*.json")
    file.write_bytes(content)
    assert cost_curves.kept_or_measured(target, tmp_path).rows == cost_curves.ROWS


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(target: ScriptedTarget, tmp_path: Path) -> None:
    (tmp_path / "curves").write_bytes(b"a file stands in the way")
    assert cost_curves.kept_or_measured(target, tmp_path / "curves").rows == cost_curves.ROWS
