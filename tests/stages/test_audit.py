"""What an audit commits, where the slips are, and what of the shown bytes still stands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grimboost.messages import PathToken, Span
from grimboost.stages.audit import audit_revisable, audit_standing

WORDS = {1: b"a", 2: b"b", 3: b"ab", 4: b" c", 5: b"ab c", 6: b"d", 9: b""}


def span(id):
    return Span(id, WORDS[id], 0.9)


def token(id):
    return PathToken(id, WORDS[id])


def standing(released, shown, candidate, choices, allowed=lambda place, own: True):
    spans = [span(id) for id in released]
    return audit_standing(spans, shown, [span(id) for id in candidate], [token(id) for id in choices], allowed)


def ids(tokens):
    return [one.id for one in tokens]


def test_shown_tokens_that_the_target_chose_are_committed_and_its_own_behind_them():
    audit = standing([1, 2], 2, [1, 2], [1, 2, 4])
    assert (ids(audit.tokens), audit.wrong, audit.left, audit.fits) == ([1, 2, 4], (), (), True)
    assert [(one.released, one.slip) for one in audit.judged] == [(True, False)] * 2


def test_a_shown_token_that_is_not_the_targets_stands_and_the_audit_goes_on_behind_it():
    audit = standing([1, 6, 2], 3, [1, 6, 2], [1, 4, 2, 4])
    assert ids(audit.tokens) == [1, 6, 2, 4]
    [wrong] = audit.wrong
    assert (wrong.place, wrong.offset, wrong.data, wrong.chosen) == (1, 1, b"d", b" c")
    assert not audit.fits


def test_choices_behind_a_token_that_was_not_fed_are_not_used():
    audit = standing([1, 6, 2], 3, [1], [1, 4])  # the pass was fed one span; the second is compared, no third
    assert (ids(audit.tokens), [one.place for one in audit.wrong]) == ([1, 6], [1])
    assert ids(audit.left) == [2]


def test_choices_behind_another_token_than_was_shown_are_not_used():
    """The pass was fed what the verifier had; what was shown in that place came too late for it."""
    audit = standing([1, 6], 2, [1, 2], [1, 6, 4])
    assert (ids(audit.tokens), audit.wrong) == ([1, 6], ())


def test_other_borders_of_the_shown_bytes_are_the_targets_where_what_is_left_can_follow():
    audit = standing([1, 2, 4], 4, [1, 2, 4], [3, 2, 4, 6])
    assert (ids(audit.tokens), audit.wrong, ids(audit.left), audit.fits) == ([3], (), [4], False)


def test_a_token_beyond_all_that_was_shown_is_the_targets():
    audit = standing([1, 2], 2, [1, 2], [5, 2, 4])
    assert (ids(audit.tokens), audit.wrong, audit.left) == ([5], (), ())


def test_a_token_that_would_split_a_shown_one_is_a_slip():
    audit = standing([3, 4], 4, [3, 4], [1, 4, 6])
    assert (ids(audit.tokens), [one.place for one in audit.wrong]) == ([3, 4, 6], [0])


def test_a_token_that_may_not_take_the_place_is_a_slip():
    audit = standing([1, 2], 2, [1, 2], [5, 2, 4], allowed=lambda place, own: False)
    assert (ids(audit.tokens), [one.place for one in audit.wrong]) == ([1, 2, 4], [0])


def test_an_end_where_shown_bytes_go_on_is_a_slip():
    audit = standing([1, 2], 2, [1, 2], [9, 2, 4])
    assert (ids(audit.tokens), audit.wrong[0].chosen) == ([1, 2, 4], b"")


def test_what_was_released_and_held_back_can_still_be_corrected():
    audit = standing([1, 2], 1, [1, 2], [1, 6, 4])
    assert (ids(audit.tokens), audit.wrong, audit.left) == ([1, 6], (), ())
    assert audit.corrected


def revisable(released, shown, candidate, choices, tokens):
    spans = [span(id) for id in released]
    chosen = [token(id) for id in choices]
    return audit_revisable(spans, shown, [span(id) for id in candidate], chosen, [token(id) for id in tokens])


def test_revisable_the_first_byte_that_differs_is_void_and_a_slip():
    audit = revisable([1, 2, 4], 4, [1, 2, 4], [1, 6, 4, 6], [1, 6])
    assert (ids(audit.tokens), audit.void, audit.left) == ([1, 6], 1, ())
    [wrong] = audit.wrong
    assert (wrong.place, wrong.offset, wrong.data, wrong.chosen) == (1, 1, b"b", b"d")


def test_revisable_other_borders_of_the_same_bytes_void_nothing():
    audit = revisable([1, 2, 4], 4, [1, 2, 4], [3, 2, 4, 6], [3])
    assert (audit.wrong, audit.void, ids(audit.left), audit.fits) == ((), None, [4], True)
    split = revisable([3, 4], 4, [3, 4], [1, 4, 6], [1])
    assert (split.wrong, b"".join(one.data for one in split.left), split.fits) == ((), b"b c", False)


def test_revisable_an_end_where_shown_bytes_go_on_takes_them_back():
    audit = revisable([1, 2], 2, [1, 2], [1, 9, 4], [1, 9])
    assert (audit.void, audit.wrong[0].chosen, audit.left) == (1, b"", ())


def test_revisable_what_differs_behind_what_was_shown_is_no_slip():
    audit = revisable([1, 2], 1, [1, 2], [1, 6, 4], [1, 6])
    assert (audit.wrong, audit.void, audit.corrected) == ((), 1, True)


texts = st.lists(st.sampled_from([1, 2, 3, 4, 5, 6]), max_size=5)


@given(texts, texts, st.lists(st.sampled_from(sorted(WORDS)), min_size=1, max_size=6), st.data())
def test_standing_the_path_begins_with_every_byte_that_was_shown_as_far_as_it_goes(released, rest, choices, data):
    text = b"".join(WORDS[id] for id in released)
    shown = data.draw(st.integers(0, len(text)))
    candidate = [*released, *rest]
    audit = standing(released, shown, candidate, choices[: len(candidate) + 1])
    path = b"".join(one.data for one in audit.tokens)
    assert audit.tokens
    size = min(len(path), shown)
    assert path[:size] == text[:size]
    left = b"".join(one.data for one in audit.left)
    if len(path) < shown:
        assert path + left == text  # every shown byte is committed or still stands
    for wrong in audit.wrong:
        assert audit.tokens[wrong.place].data == wrong.data
        assert wrong.offset < shown


@pytest.mark.parametrize("audit", [audit_standing, audit_revisable])
def test_nothing_released_is_strict_mode(audit):
    tokens = [token(1), token(4)]
    last = (lambda place, own: True) if audit is audit_standing else tokens
    made = audit([], 0, [span(1), span(2)], tokens, last)
    assert (list(made.tokens), made.wrong, made.left, made.void) == (tokens, (), (), None)
