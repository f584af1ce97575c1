"""Stage configurations: the cost curve, and that a typo is an error."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grimboost.stages.configuration import (
    CascadeConfig,
    CostCurve,
    DrafterConfig,
    GateConfig,
    StageConfigs,
    VerifierConfig,
)

CURVE = CostCurve((1, 2, 4, 8), (10.0, 12.0, 16.0, 28.0))


@pytest.mark.parametrize(
    ("rows", "milliseconds"),
    [(1, 10.0), (2, 12.0), (3, 14.0), (4, 16.0), (5, 19.0), (6, 22.0), (8, 28.0)],
)
def test_cost_is_measured_at_the_points_and_linear_between(rows, milliseconds):
    assert CURVE.cost(rows) == pytest.approx(milliseconds)


@pytest.mark.parametrize(("rows", "milliseconds"), [(9, 31.0), (12, 40.0), (32, 100.0)])
def test_cost_beyond_the_last_point_goes_on_as_between_the_last_two(rows, milliseconds):
    assert CURVE.cost(rows) == pytest.approx(milliseconds)


@pytest.mark.parametrize("rows", [0, 1])
def test_cost_before_the_first_point_is_that_of_the_first(rows):
    assert CURVE.cost(rows) == 10.0


@given(st.integers(0, 100))
def test_a_curve_of_one_point_is_flat(rows):
    assert CostCurve((1,), (3.0,)).cost(rows) == 3.0


@given(st.lists(st.floats(0.0, 5.0), min_size=4, max_size=4), st.integers(1, 40))
def test_a_rising_curve_rises_everywhere(steps, rows):
    curve = CostCurve((1, 2, 4, 8), tuple(1.0 + sum(steps[: place + 1]) for place in range(4)))
    assert curve.cost(rows + 1) >= curve.cost(rows) - 1e-9


@pytest.mark.parametrize(
    ("kind", "required"),
    [
        (CostCurve, {}),
        (DrafterConfig, {}),
        (GateConfig, {}),
        (VerifierConfig, {}),
        (CascadeConfig, {"context_limit": 1}),
        (StageConfigs, {"cascade": {"context_limit": 1}}),
    ],
)
def test_an_unknown_field_is_rejected_by_name(kind, required):
    assert isinstance(msgspec.convert(required, kind), kind)
    with pytest.raises(msgspec.ValidationError, match="max_new_tokns"):
        msgspec.convert({**required, "max_new_tokns": 3}, kind)


def test_configurations_round_trip_through_a_log_header():
    configs = StageConfigs(
        CascadeConfig(64, 8, 100, (b"\xff\x00",), (2, 7)), DrafterConfig(False), verifier=VerifierConfig(CURVE)
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(configs), type=StageConfigs) == configs
