"""The state machine of the trust in the gate: its table, its picture, and that every state is left."""

from pathlib import Path

import pytest
from draw_states import DOCUMENT, drawn
from hypothesis import given
from hypothesis import strategies as st

from grimboost.stages.configuration import TrustConfig
from grimboost.stages.trust import TRANSITIONS, Event, Trust, TrustMachine

CONFIG = TrustConfig(doubt_bytes=10, max_repairs=2, takeover_tokens=3)


def test_every_state_is_reached_and_left():
    assert set(TRANSITIONS.values()) == set(Trust)
    for state in set(Trust) - {Trust.VERIFIED}:
        assert TRANSITIONS[state, Event.PASSED] is Trust.VERIFIED


@pytest.mark.skipif(not Path(DOCUMENT).exists(), reason="the documents are not here (a copy of the sources only)")
def test_the_picture_in_the_documents_is_that_of_the_table():
    text = DOCUMENT.read_text()
    assert drawn(text) == text


def test_a_slip_opens_an_interval_behind_it():
    trust = TrustMachine(CONFIG)
    trust.slipped(behind=7)
    assert (trust.state, trust.doubt_until) == (Trust.DOUBT, 17)
    trust.advanced(16, 4)
    assert trust.state is Trust.DOUBT
    trust.advanced(17, 5)
    assert trust.state is Trust.VERIFIED


def test_a_correction_while_the_gate_is_trusted_says_nothing_against_it():
    trust = TrustMachine(CONFIG)
    trust.corrected(5, 2)
    assert (trust.state, trust.doubt_until) == (Trust.VERIFIED, 0)


def test_failed_repairs_double_the_interval_and_end_in_a_takeover():
    trust = TrustMachine(CONFIG)
    trust.slipped(5)
    trust.corrected(8, 3)
    assert (trust.state, trust.doubt_until) == (Trust.REPAIR, 28)
    trust.corrected(9, 4)
    assert (trust.state, trust.doubt_until) == (Trust.REPAIR, 49)
    trust.corrected(12, 5)
    assert (trust.state, trust.takeovers, trust.alone(5), trust.alone(7)) == (Trust.TAKEOVER, 1, 3, 1)
    trust.advanced(20, 7)
    assert trust.state is Trust.TAKEOVER
    trust.advanced(24, 8)
    assert (trust.state, trust.alone(8)) == (Trust.VERIFIED, 0)
    trust.slipped(30)
    assert trust.doubt_until == 40  # a new incident begins with the first interval again


def test_slips_in_what_was_shown_before_only_move_the_interval():
    trust = TrustMachine(CONFIG)
    trust.slipped(5)
    trust.slipped(20)
    assert (trust.state, trust.doubt_until, trust.takeovers) == (Trust.DOUBT, 30, 0)


@given(
    st.integers(0, 4),
    st.integers(0, 3),
    st.integers(0, 5),
    st.lists(st.tuples(st.sampled_from(["slip", "wrong", "right"]), st.integers(1, 6)), max_size=60),
)
def test_every_state_ends_within_a_bound_once_nothing_fails(doubt, repairs, takeover, events):
    """However it got there: so many right tokens and bytes later the gate is trusted again."""
    trust = TrustMachine(TrustConfig(doubt, repairs, takeover))
    frontier = tokens = failures = 0
    for kind, size in events:
        frontier, tokens = frontier + size, tokens + 1
        if kind == "slip":
            trust.slipped(frontier)
        elif kind == "wrong":
            trust.corrected(frontier, tokens)
            failures += 1
        trust.advanced(frontier, tokens)
        assert trust.doubt_until <= frontier + doubt * 2**repairs
        assert trust.alone(tokens) <= takeover
        assert trust.takeovers <= failures
    for _ in range(doubt * 2**repairs + takeover + 1):
        frontier, tokens = frontier + 1, tokens + 1
        trust.advanced(frontier, tokens)
    assert trust.state is Trust.VERIFIED
