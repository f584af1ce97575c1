"""The text index against brute force over all texts, and its work on texts that are made to be hard."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grimboost.adapters import text_index
from grimboost.adapters.text_index import FEW, LONGEST, Match, Text, TextIndex

texts = st.text("ab", max_size=30).map(str.encode) | st.text("abcd", max_size=40).map(str.encode)
texts |= st.binary(max_size=20) | st.text("ab", max_size=4).map(lambda text: text.encode() * 8)


def built(*data: bytes) -> tuple[TextIndex, list[Text]]:
    index, kept = TextIndex(), [Text(one) for one in data]
    for text in kept:
        index.add([text])
    return index, kept


def common_suffix(one: bytes, two: bytes) -> int:
    size = 0
    while size < min(len(one), len(two)) and one[-1 - size] == two[-1 - size]:
        size += 1
    return size


def longest(data: list[bytes], context: bytes) -> int:
    """Length of the longest match, at a place where a text goes on."""
    return max((common_suffix(one[:end], context) for one in data for end in range(1, len(one))), default=0)


def assert_true(match: Match, context: bytes) -> None:
    data = match.text.data
    assert 0 < match.end < len(data)
    assert 0 < match.length <= match.end
    assert data[match.end - match.length : match.end] == context[-match.length :]


@settings(max_examples=300, deadline=None)
@given(st.lists(texts, max_size=6), texts | st.lists(texts, max_size=3).map(b"".join), st.integers(1, 5))
def test_the_first_match_is_the_longest_and_all_are_true(data: list[bytes], context: bytes, count: int) -> None:
    found = built(*data)[0].matches(context, count)
    assert len(found) <= count
    for match in found:
        assert_true(match, context)
        assert match.length == common_suffix(match.text.data[: match.end], context) or match.length < 8
    assert [match.length for match in found] == sorted((match.length for match in found), reverse=True)
    if 0 not in context:  # behind the padding, zeros match by more bytes than there are
        assert (found[0].length if found else 0) == longest(data, context)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.lists(texts, min_size=1, max_size=8), texts)
def test_what_was_removed_is_never_found_and_the_rest_is(
    data: st.DataObject, given_: list[bytes], end: bytes
) -> None:
    index, kept = built(*given_)
    for text in data.draw(st.permutations(kept)):
        index.remove(text)
        kept.remove(text)
        context = text.data + end
        found = index.matches(context, 3)
        assert all(any(match.text is one for one in kept) for match in found)
        for match in found:
            assert_true(match, context)
        if 0 not in context:
            assert (found[0].length if found else 0) == longest([one.data for one in kept], context)
    assert (index.segments, index.matches(b"ab", 1)) == (0, [])


@settings(max_examples=50, deadline=None)
@given(st.lists(texts, min_size=1, max_size=8), texts)
def test_texts_put_in_at_once_or_one_by_one_are_found_alike(data: list[bytes], context: bytes) -> None:
    at_once, all_of_them = TextIndex(), [Text(one) for one in data]
    at_once.add(all_of_them)
    one_by_one = TextIndex()
    for text in all_of_them:
        one_by_one.add([text])
    assert at_once.matches(context, 4) == one_by_one.matches(context, 4)


def test_of_equal_matches_the_latest_comes_first() -> None:
    index, kept = built(b"a red fox ran", b"a red fox sat", b"a red fox and a red fox slept")
    ends = [(match.text, match.end) for match in index.matches(b"no red fox", 4)]
    assert ends == [(kept[2], 23), (kept[2], 9), (kept[1], 9), (kept[0], 9)]


def test_no_match_runs_from_one_text_into_the_next() -> None:
    index, kept = built(b"the quick fox jumps", b"over the lazy dog!")
    [match] = index.matches(b"the quick fox jumpsover", 1)
    assert match == Match(kept[1], 4, 4)


def test_the_whole_of_a_short_context_is_found_at_the_beginning_of_a_text() -> None:
    index, kept = built(b"Hi> hello", b"say Hi> nothing")
    assert index.matches(b"Hi>", 1) == [Match(kept[0], 3, 3)]  # though the other one is later


def test_beyond_the_longest_length_the_latest_counts() -> None:
    same = random.Random(1).randbytes(LONGEST + 50)
    index, kept = built(b"x" + same + b"1", same[20:] + b"2", b"other")
    assert index.matches(b"x" + same, 2) == [
        Match(kept[1], LONGEST + 30, LONGEST),
        Match(kept[0], LONGEST + 51, LONGEST),
    ]


@pytest.mark.parametrize("others", [FEW - 2, 3 * FEW, 200])
def test_among_very_many_alike_the_longest_is_found(others: int) -> None:
    """As the end of a chat prompt: a template that they all share, and before it the question."""
    template = b"<|im_end|>\n<|im_start|>assistant\n"
    questions = [b"question number %d: what is %d?" % (number, number * number) for number in range(others)]
    index, kept = built(*(question + template + b"It is this." for question in questions))
    for number in (0, 1, others // 2, others - 1):
        [match] = index.matches(questions[number] + template, 1)
        assert match == Match(kept[number], len(questions[number] + template), len(questions[number] + template))


HARD = {
    "a^n": b"a" * 60_000,
    "ha ha": b" ha" * 20_000,
    "every byte": bytes(range(256)) * 230,
    "zeros": bytes(60_000),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_texts_are_no_trap(name: str) -> None:
    """A lookup or a text that takes seconds would be quadratic; they take milliseconds."""
    begin = time.perf_counter()
    index, kept = built(*[HARD[name]] * 4)
    for size in (1, 7, 8, 100, 5000):
        found = index.matches(HARD[name][:size], 4)
        for match in found:
            assert_true(match, HARD[name][:size])
        assert found[0].length == min(size, LONGEST)
    for text in kept:
        index.remove(text)
    assert time.perf_counter() - begin < 2.0


def test_segments_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_index, "SEGMENT_BYTES", 4096)
    index, kept = built(*(b"text %d: " % number * 20 for number in range(200)))
    total = sum(8 + len(text.data) for text in kept)
    assert index.segments <= 2 * total / 4096 + 6
    for text in kept[::2]:
        index.remove(text)
    assert index.segments <= total / 4096 + 6
    [match] = index.matches(b"text 101: " * 2, 1)
    assert match.text is kept[101]


def test_what_is_not_there_cannot_be_removed() -> None:
    index, [text] = built(b"abc")
    index.remove(text)
    for absent in (text, Text(b"abc")):
        with pytest.raises(KeyError):
            index.remove(absent)
