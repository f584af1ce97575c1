"""The suffix automaton, against brute force over the whole text."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grimboost.stages.suffix_automaton import REFRESH, Match, SuffixAutomaton

texts = st.text("ab", max_size=40).map(str.encode) | st.text("abcd", max_size=40).map(str.encode)
texts |= st.binary(max_size=20)


def longest_earlier_suffix(text):
    """Length of the longest suffix that also ends before the end of the text."""
    for size in range(len(text) - 1, 0, -1):
        if text.find(text[-size:]) < len(text) - size:
            return size
    return 0


def built(text):
    automaton = SuffixAutomaton()
    automaton.extend(text)
    return automaton


@given(texts)
def test_the_first_match_is_the_longest_earlier_suffix_after_every_byte(text):
    automaton = SuffixAutomaton()
    for end in range(1, len(text) + 1):
        automaton.extend(text[end - 1 : end])
        matches = automaton.matches(1)
        assert (matches[0].length if matches else 0) == longest_earlier_suffix(text[:end])


@given(texts, st.integers(1, 6))
def test_every_match_is_a_true_earlier_occurrence_and_lengths_shrink(text, count):
    matches = built(text).matches(count)
    assert len(matches) <= count
    for match in matches:
        assert 0 < match.length <= match.end < len(text)
        assert text[match.end - match.length : match.end] == text[len(text) - match.length :]
    assert [match.length for match in matches] == sorted({match.length for match in matches}, reverse=True)
    assert len({match.end for match in matches}) == len(matches)


@given(texts)
def test_the_place_is_the_most_recent_one_within_reach_of_the_refresh(text):
    """Links deeper than `REFRESH` at that time may be older; a short text has none so deep."""
    short = text[:REFRESH]
    for match in built(short).matches(1):
        suffix = short[len(short) - match.length :]
        assert match.end == short.rfind(suffix, 0, len(short) - 1) + match.length


@given(texts, st.lists(st.integers(0, 7), max_size=8))
def test_extending_in_other_pieces_changes_nothing(text, sizes):
    pieces, rest = SuffixAutomaton(), text
    for size in sizes:
        pieces.extend(rest[:size])
        rest = rest[size:]
    pieces.extend(rest)
    assert pieces.matches(8) == built(text).matches(8)
    assert pieces.text == text


def test_a_text_without_repetition_has_no_match():
    assert built(b"abcdef").matches(4) == []
    assert SuffixAutomaton().matches(4) == []


def test_b2_a_lookup_case_from_the_field():
    """`abcabcabX abc`: the last three bytes stood before the second `abc`, most recently."""
    assert built(b"abcabcabX abc").matches(1) == [Match(3, 6)]


class Counting(list):
    """A list that counts how often it is read: each step along a link or a transition reads one."""

    reads = 0

    def __getitem__(self, place):
        Counting.reads += 1
        return super().__getitem__(place)


def de_bruijn(order):
    """The binary de Bruijn sequence: every string of `order` letters exactly once (Lyndon words)."""
    word, sequence = [-1], b""
    while word:
        word[-1] += 1
        if order % len(word) == 0:
            sequence += bytes(97 + letter for letter in word)
        word = list(itertools.islice(itertools.cycle(word), order))
        while word and word[-1] == 1:
            word.pop()
    return sequence


SIZE = 3000
PATHOLOGICAL = {
    "a^n": b"a" * SIZE,
    "abab": b"ab" * (SIZE // 2),
    "a^n b^n": b"a" * (SIZE // 2) + b"b" * (SIZE // 2),
    "a b^n": b"a" + b"b" * SIZE,
    "(a^k b)": b"".join(b"a" * k + b"b" for k in range(75)),
    "de Bruijn": de_bruijn(12)[:SIZE],
    "every byte": bytes(range(256)) * (SIZE // 256),
    "fibonacci": b"",
}
one, two = b"a", b"ab"
while len(two) < SIZE:
    one, two = two, two + one
PATHOLOGICAL["fibonacci"] = two[:SIZE]


@pytest.mark.parametrize("name", PATHOLOGICAL)
def test_the_work_per_byte_is_bounded_on_pathological_texts(name):
    text = PATHOLOGICAL[name]
    automaton = SuffixAutomaton()
    for part in ("_next", "_link", "_length"):
        setattr(automaton, part, Counting(getattr(automaton, part)))
    Counting.reads = 0
    automaton.extend(text)
    assert Counting.reads <= (REFRESH + 20) * len(text)
    assert len(automaton._next) <= 2 * len(text)
    assert sum(len(nexts) for nexts in list.__iter__(automaton._next)) <= 3 * len(text)


def test_the_count_of_work_can_see_a_quadratic_walk():
    """The bound above is not so loose that a walk down all links would pass it."""
    automaton = built(b"a" * SIZE)
    links, state = 0, automaton._last
    while state > 0:
        links, state = links + 1, automaton._link[state]
    assert links > REFRESH + 20
