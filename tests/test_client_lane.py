"""What the client's lane times: gaps, how much is unchecked, and how long that lasts; and spreads of values."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grimboost import messages as m
from grimboost.client_lane import ClientLane
from grimboost.mailbox import Mailbox
from grimboost.spread import spread


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> ClientLane:
    return ClientLane(Mailbox(99))


def tell(lane: ClientLane, *timed: tuple[float, m.ClientEvent]) -> ClientLane:
    for now, event in timed:
        lane._note(event, now)
    return lane


def test_gaps_lie_between_chunks_and_lags_where_something_is_unchecked(lane: ClientLane) -> None:
    tell(
        lane,
        (1.0, m.Chunk(0, b"abc")),
        (1.5, m.Chunk(3, b"defg", released=True)),
        (3.5, m.Chunk(7, b"hi", released=True)),
        (4.0, m.CommittedTo(5)),
        (6.0, m.CommittedTo(9)),
    )
    gaps, lags, waits = lane.gap_seconds, lane.audit_lag_bytes, lane.commit_seconds
    assert gaps is not None and lags is not None and waits is not None
    assert (gaps.p50, gaps.max) == (0.5, 2.0)
    assert (lags.p50, lags.max) == (4, 6)
    # two bytes waited 2.5 s, two 4.5 s, two 2.5 s
    assert (waits.p50, waits.max) == (2.5, 4.5)
    assert waits.mean == pytest.approx((4 * 2.5 + 2 * 4.5) / 6)
    assert (bytes(lane.data), lane.final) == (b"abcdefghi", 9)


def test_bytes_that_were_taken_back_have_waited_for_nothing(lane: ClientLane) -> None:
    tell(
        lane,
        (1.0, m.Provisional(0, b"abcd")),
        (2.0, m.Provisional(4, b"ef")),
        (3.0, m.Retracted(3)),
        (3.0, m.CommittedTo(3)),
        (3.0, m.Chunk(3, b"X")),
    )
    waits = lane.commit_seconds
    assert waits is not None
    assert (waits.mean, waits.max) == (2.0, 2.0)
    assert (bytes(lane.data), lane.final) == (b"abcX", 4)


def test_the_first_slip_is_the_earliest(lane: ClientLane) -> None:
    assert lane.first_slip is None
    tell(lane, (0, m.Slipped(m.Slip(3, 9, b"x", b"y", 0.5))), (0, m.Slipped(m.Slip(4, 12, b"x", b"y", 0.5))))
    assert lane.first_slip == 9


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=60))
def test_a_spread_is_that_of_the_sorted_values(values: list[int]) -> None:
    found = spread((value, 1.0) for value in values)
    assert found is not None
    ordered = sorted(values)
    assert found.max == ordered[-1]
    assert found.mean == pytest.approx(statistics.fmean(values))
    for share, value in ((50, found.p50), (95, found.p95), (99, found.p99)):
        assert value == ordered[-(-len(values) * share // 100) - 1]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=20))
def test_a_weight_is_so_many_equal_values(pairs: list[tuple[int, int]]) -> None:
    assert spread(pairs) == spread((value, 1.0) for value, weight in pairs for _ in range(weight))
