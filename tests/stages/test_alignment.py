"""`judge`: the comparison of candidate and choices."""

import itertools
import zlib

from hypothesis import given
from hypothesis import strategies as st

from grimboost.messages import Choice, Outcome, PathToken, Span
from grimboost.stages.alignment import judge

PIECES = (b"a", b"b", b"ab", b"ba", b"aab", b"b")  # ids 1 and 5 have the same bytes
END = 9


def span(id, confidence=0.9):
    return Span(id, PIECES[id], confidence)


def choice(id):
    return Choice(id, b"" if id == END else PIECES[id], 1.0)


ids = st.integers(0, len(PIECES) - 1)
candidates = st.lists(ids.map(span), max_size=6)


def text(spans):
    return b"".join(one.data for one in spans)


@st.composite
def judged(draw):
    """A candidate, how much of it was checked, and choices that mostly agree."""
    candidate = draw(candidates)
    checked = draw(st.integers(0, len(candidate)))
    agree = draw(st.lists(st.integers(0, 3), min_size=checked + 1, max_size=checked + 1))
    drafted = [*(one.id for one in candidate), 0]
    chosen = [drafted[row] if agree[row] else draw(ids | st.just(END)) for row in range(checked + 1)]
    return candidate, checked, [choice(id) for id in chosen]


@given(judged())
def test_accepted_spans_and_then_the_targets_own_token_are_committed(case):
    candidate, checked, choices = case
    judgement = judge(*case)
    agreeing = 0
    for drafted, chosen in zip(candidate[:checked], choices, strict=False):
        if drafted.id != chosen.id:
            break
        agreeing += 1
    assert judgement.accepted == agreeing <= checked
    assert [token.id for token in judgement.tokens] == [one.id for one in choices[: agreeing + 1]]
    assert text(judgement.tokens) == text(choices[: agreeing + 1])


@given(judged())
def test_mismatch_is_said_exactly_when_bytes_contradict(case):
    candidate, _, choices = case
    judgement = judge(*case)
    own = choices[judgement.accepted]
    drafted = text(candidate[judgement.accepted :])
    one_begins_the_other = own.data.startswith(drafted) or drafted.startswith(own.data)
    contradicted = bool(drafted) and not (own.data and one_begins_the_other)
    assert (judgement.outcome is Outcome.MISMATCH) == contradicted


@given(judged())
def test_spans_are_left_only_where_they_still_join_on(case):
    candidate, _, _ = case
    judgement = judge(*case)
    if judgement.left:
        assert judgement.outcome is Outcome.AGREED
        assert text(judgement.tokens) + text(judgement.left) == text(candidate)
    if judgement.outcome is Outcome.AGREED and len(text(judgement.tokens)) < len(text(candidate)):
        assert judgement.left == tuple(candidate[judgement.accepted + 1 :])


@given(judged(), st.integers(1, 3))
def test_only_the_first_mismatch_counts_later_rows_decide_nothing(case, shift):
    candidate, checked, choices = case
    first = judge(*case)
    later = choices[first.accepted + 1 :]
    others = [choice((one.id + shift) % len(PIECES)) for one in later]
    assert judge(candidate, checked, [*choices[: first.accepted + 1], *others]) == first


def test_the_same_bytes_in_other_tokens_are_no_mismatch():
    judgement = judge([span(0), span(1), span(0)], 1, [choice(2), choice(0)])  # a|b|a, the target says ab
    assert (judgement.outcome, judgement.accepted, judgement.left) == (Outcome.REALIGNED, 0, ())
    assert judgement.tokens == (PathToken(2, b"ab"),)


def test_another_id_with_the_same_bytes_commits_the_targets_id():
    judgement = judge([span(1), span(0)], 1, [choice(5), choice(0)])
    assert (judgement.outcome, judgement.tokens) == (Outcome.REALIGNED, (PathToken(5, b"b"),))


def test_a_control_token_where_the_candidate_goes_on_is_a_mismatch():
    judgement = judge([span(0), span(1)], 1, [choice(0), choice(END)])
    assert (judgement.outcome, judgement.accepted, judgement.left) == (Outcome.MISMATCH, 1, ())
    assert judgement.tokens[-1] == PathToken(END, b"")


def test_a_control_token_behind_the_whole_candidate_contradicts_nothing():
    assert judge([span(0)], 1, [choice(0), choice(END)]).outcome is Outcome.AGREED


def test_a_token_longer_than_the_candidate_uses_it_up_without_a_contradiction():
    judgement = judge([span(0), span(0)], 1, [choice(4), choice(0)])  # a|a, the target says aab
    assert (judgement.outcome, judgement.accepted, judgement.left) == (Outcome.AGREED, 0, ())


def test_a_token_longer_than_the_candidate_with_other_bytes_is_a_mismatch():
    assert judge([span(1)], 1, [choice(4), choice(0)]).outcome is Outcome.MISMATCH


def test_the_own_token_that_equals_the_next_span_leaves_the_rest():
    candidate = [span(0), span(1), span(2)]
    judgement = judge(candidate, 1, [choice(0), choice(1)])
    assert (judgement.outcome, judgement.left) == (Outcome.AGREED, (candidate[2],))


def decode(next_id, candidate, sizes, length):
    """Commit at least `length` tokens in blocks of `sizes`; the candidate is not renewed."""
    path, left = [], tuple(candidate)
    repeated = itertools.cycle(sizes)
    while len(path) < length:
        checked = min(next(repeated), len(left))
        fed = [*path, *(one.id for one in left[:checked])]
        choices = [choice(next_id(fed[: len(path) + row])) for row in range(checked + 1)]
        judgement = judge(left, checked, choices)
        path += [token.id for token in judgement.tokens]
        left = judgement.left
    return path[:length]


@given(
    st.integers(0, 50),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=8, max_size=8),
    candidates,
)
def test_splitting_a_block_otherwise_commits_the_same_path(salt, sizes, right, noise):
    def next_id(prefix):
        return zlib.crc32(bytes([salt, *prefix])) % len(PIECES)

    plain = []
    for _ in range(8):
        plain.append(next_id(plain))
    true = [span(id) if keep else span((id + 1) % len(PIECES)) for id, keep in zip(plain, right, strict=True)]
    for candidate in (true, noise):
        assert decode(next_id, candidate, sizes, 8) == plain
