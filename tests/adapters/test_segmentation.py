"""Candidate bytes -> presumptive tokens: the law of the prefix, cuts in context, broken bytes, many threads."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import BYTES, CORPUS, byte_level_json, changed, sentencepiece_json
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from grimboost.adapters.segmentation import (
    LongestMatchSegmenter,
    Piece,
    Segmenter,
    TokenizerSegmenter,
    spans_cover,
)
from grimboost.adapters.target_tokenizer import TargetTokenizer
from grimboost.adapters.vocabulary import Vocabulary, vocabulary_of
from grimboost.model_references import resolve


@cache
def byte_level() -> TokenizerSegmenter:
    return TokenizerSegmenter(byte_level_json(), vocabulary_of(byte_level_json()))


@cache
def sentencepiece() -> TokenizerSegmenter:
    return TokenizerSegmenter(sentencepiece_json(), vocabulary_of(sentencepiece_json()))


@cache
def sharing() -> TokenizerSegmenter:
    return TargetTokenizer(byte_level_json(), {}, None).segmenter()


SEGMENTERS = {
    "byte level": byte_level,
    "sharing": sharing,
    "sentencepiece": sentencepiece,
    "longest match": lambda: LongestMatchSegmenter(BYTES),
    "few bytes": lambda: LongestMatchSegmenter(Vocabulary([b"a", b" the", b"\xe4", None])),
    "tokenizer without all bytes": lambda: TokenizerSegmenter(
        byte_level_json(),
        Vocabulary([None if len(data or b"") < 2 else data for data in byte_level()._vocabulary.table]),
    ),
}


def spelled(pieces: list[Piece]) -> bytes:
    return b"".join(data for _, data in pieces)


def assert_lawful(segmenter: Segmenter, tail: bytes, candidate: bytes, whole: bool) -> list[Piece]:
    """What must hold for any bytes at all."""
    pieces = segmenter.segment(tail, candidate, whole)
    assert candidate.startswith(spelled(pieces))
    assert all(data for _, data in pieces)
    assert spans_cover(pieces) <= len(candidate)
    table = segmenter._vocabulary.table  # type: ignore[attr-defined]
    assert all(table[id] == data for id, data in pieces)
    return pieces


TEXTS = st.one_of(
    st.binary(max_size=24),
    st.text(max_size=16).map(str.encode),
    st.lists(
        st.sampled_from([" thank", "  ", "\n", "<|im_end|>", "<tool>", "中", "🍂", "é", "42", "'s", "a"])
    ).map(lambda parts: "".join(parts).encode()),
)


@pytest.mark.parametrize("name", SEGMENTERS)
@settings(max_examples=150, deadline=None)
@given(TEXTS, TEXTS, st.booleans())
def test_pieces_are_a_prefix_of_the_candidate_whatever_the_bytes(
    name: str, tail: bytes, candidate: bytes, whole: bool
) -> None:
    assert_lawful(SEGMENTERS[name](), tail, candidate, whole)


@pytest.mark.parametrize("name", ["byte level", "sentencepiece", "longest match"])
@settings(max_examples=100, deadline=None)
@given(st.text(max_size=20), st.integers(0, 80))
def test_a_whole_text_is_cut_to_its_end(name: str, text: str, at: int) -> None:
    data = text.encode()
    tail, candidate = data[:at], data[at:]
    assert spelled(SEGMENTERS[name]().segment(tail, candidate, whole=True)) == candidate


@pytest.mark.parametrize(
    "json_text", [byte_level_json(), sentencepiece_json()], ids=["byte level", "sentencepiece"]
)
def test_text_that_looks_like_a_control_token_is_only_text(json_text: str) -> None:
    segmenter = TokenizerSegmenter(json_text, vocabulary_of(json_text))
    for text in (b"<|im_end|>", b"a </s> b<s>", b" <|im_start|>user\n"):
        pieces = assert_lawful(segmenter, b"x", text, True)
        assert spelled(pieces) == text
        assert len(pieces) > 1


def test_beside_text_that_looks_like_a_control_token_words_are_cut_as_ever() -> None:
    reference = Tokenizer.from_str(byte_level_json())
    reference.encode_special_tokens = True
    text = "<|im_end|> tou"
    ids = reference.encode(text).ids
    assert [id for id, _ in byte_level().segment(b"x", text.encode(), True)] == ids
    longest = LongestMatchSegmenter(vocabulary_of(byte_level_json())).cut(text.encode())
    assert [id for id, _ in longest] != ids  # so the fallback would show


@settings(max_examples=300, deadline=None)
@given(TEXTS, TEXTS, st.booleans())
def test_a_shared_tokenizer_cuts_like_one_of_its_own(tail: bytes, candidate: bytes, whole: bool) -> None:
    assert sharing().segment(tail, candidate, whole) == byte_level().segment(tail, candidate, whole)


def test_another_tokenizer_is_made_only_for_text_that_looks_like_a_control_token() -> None:
    segmenter = TargetTokenizer(byte_level_json(), {}, None).segmenter()
    segmenter.segment(b"x", b" thank <tool> you", True)
    assert "_own" not in vars(segmenter)
    segmenter.segment(b"x<|im_", b"end|> thank", True)
    assert "_own" in vars(segmenter)


def test_control_tokens_in_normalized_text_are_never_left_to_a_shared_tokenizer() -> None:
    data = json.loads(byte_level_json())
    added = [token | {"normalized": True} for token in data["added_tokens"]]
    lower = changed(byte_level_json(), added_tokens=added, normalizer=json.loads(normalizers_json()))
    segmenter = TargetTokenizer(lower, {}, None).segmenter()
    segmenter.segment(b"x", b" <|IM_END|>", True)
    assert "_own" in vars(segmenter)


def assert_cut_as_whole_texts(
    segmenter: TokenizerSegmenter, tokenizer: Tokenizer, text: str, prefix: bytes
) -> int:
    """At every token boundary of a whole text the rest is cut just so. Returns how many boundaries there were."""
    vocabulary = segmenter._vocabulary
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    data = [vocabulary.data(id) for id in ids]
    assert b"".join(data) == prefix + text.encode()
    for at in range(1, len(ids)):
        got = segmenter.segment(b"".join(data[:at]), b"".join(data[at:]), whole=True)
        assert [id for id, _ in got] == ids[at:], (text, b"".join(data[:at]))
    return len(ids) - 1


WHOLE_TEXTS = [
    *CORPUS.replace("\n\n", "\n").splitlines(keepends=True),
    "thanks  to\n\n  them, they'll\tsay 12 34",
    "    if x:\n        y = 1\n",
]


@pytest.mark.parametrize("text", WHOLE_TEXTS)
def test_a_candidate_is_cut_as_the_tokenizer_cuts_whole_texts(text: str) -> None:
    assert assert_cut_as_whole_texts(byte_level(), Tokenizer.from_str(byte_level_json()), text, b"") > 3


def test_a_candidate_is_cut_as_sentencepiece_cuts_whole_texts() -> None:
    """Also where the tokenizer puts a space of its own before every text."""
    tokenizer = Tokenizer.from_str(sentencepiece_json())
    for text in ("thank the hank", "e thank  the\nthank 中文 the 🍂 thanks"):
        assert assert_cut_as_whole_texts(sentencepiece(), tokenizer, text, b" ") > 3


@pytest.mark.model
def test_a_candidate_is_cut_as_the_real_tokenizer_cuts_whole_texts() -> None:
    text = (resolve("smollm2-135m").directory / "tokenizer.json").read_text(encoding="utf-8")
    segmenter = TokenizerSegmenter(text, vocabulary_of(text))
    for line in WHOLE_TEXTS:
        assert_cut_as_whole_texts(segmenter, Tokenizer.from_str(text), line, b"")


def test_the_context_decides_where_digits_are_grouped() -> None:
    """Three digits a group, from the first on: behind `1` go `23` and `45`; alone `2345` is `23 4 5`."""
    tokenizer = Tokenizer.from_str(byte_level_json())
    digits = pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    pieces = [*pre_tokenizers.ByteLevel.alphabet(), "23", "45"]
    model = models.BPE({piece: id for id, piece in enumerate(pieces)}, [("2", "3"), ("4", "5")])
    data = json.loads(tokenizer.to_str()) | {"added_tokens": []}
    tokenizer.model = model
    data["model"] = json.loads(tokenizer.to_str())["model"]
    segmenter = TokenizerSegmenter(json.dumps(data), vocabulary_of(json.dumps(data)))
    assert [data for _, data in segmenter.segment(b"x 1", b"2345", True)] == [b"23", b"45"]
    assert [data for _, data in segmenter.segment(b"x ", b"2345", True)] == [b"23", b"4", b"5"]


def test_what_follows_a_byte_that_has_no_token_is_not_cut() -> None:
    segmenter = SEGMENTERS["tokenizer without all bytes"]()
    assert spelled(segmenter.segment(b"x", b" thank", True)) == b" thank"
    assert segmenter.segment(b"x", b"\x96 thank", True) == []


def test_a_frontier_inside_a_word_cuts_the_candidate_by_itself() -> None:
    segmenter = byte_level()
    ids = Tokenizer.from_str(byte_level_json()).encode("nk you").ids
    for tail in (b" tha", b"x tha"):  # a whole text has " thank" as one token, across the frontier
        assert [id for id, _ in segmenter.segment(tail, b"nk you", True)] == ids


@pytest.mark.parametrize("character", ["é", "中", "🍂"])
def test_a_frontier_inside_a_character(character: str) -> None:
    data = character.encode()
    for at in range(1, len(data)):
        for segmenter in (byte_level(), sentencepiece(), LongestMatchSegmenter(BYTES)):
            pieces = assert_lawful(segmenter, b"x " + data[:at], data[at:] + b" thank you", True)
            assert spelled(pieces) == data[at:] + b" thank you"
        behind = byte_level().segment(b"x " + data[:at], data[at:] + b" thank you", True)
        assert behind[-2:] == byte_level().segment(b"x", b" thank you", True)[-2:]


@pytest.mark.parametrize("character", ["é", "中", "🍂"])
def test_a_candidate_that_ends_inside_a_character_is_cut_up_to_it(character: str) -> None:
    data = character.encode()
    for at in range(1, len(data)):
        for segmenter in (byte_level(), sentencepiece()):
            assert spelled(segmenter.segment(b"x", b" thank" + data[:at], True)) == b" thank"
            assert spelled(segmenter.segment(b"x", data[:at], True)) == data[:at]  # nothing else to draft


def test_the_last_piece_may_be_half_a_word_and_is_dropped() -> None:
    whole = byte_level().segment(b"x", b" thank you", whole=True)
    assert byte_level().segment(b"x", b" thank you") == whole[:-1]
    alone = byte_level().segment(b"x", b" thank", whole=True)
    assert len(alone) == 1
    assert byte_level().segment(b"x", b" thank") == alone


def test_a_tokenizer_that_changes_the_text_is_not_believed() -> None:
    lower = json.loads(normalizers_json())
    segmenter = TokenizerSegmenter(changed(byte_level_json(), normalizer=lower), byte_level()._vocabulary)
    assert spelled(segmenter.segment(b"x", b" Thank YOU", True)) == b" Thank YOU"


def normalizers_json() -> str:
    tokenizer = Tokenizer.from_str(byte_level_json())
    tokenizer.normalizer = normalizers.Lowercase()
    return json.dumps(json.loads(tokenizer.to_str())["normalizer"])


def test_longest_match() -> None:
    segmenter = LongestMatchSegmenter(Vocabulary([b"a", b"ab", b"abc", b"b", b"d", None, b"ab"]))
    assert segmenter.segment(b"", b"abcabad", True) == [(2, b"abc"), (1, b"ab"), (0, b"a"), (4, b"d")]
    assert segmenter.segment(b"", b"ab?ab", True) == [(1, b"ab")]
    assert segmenter.segment(b"", b"", True) == []


def test_d7_sixteen_threads_share_a_tokenizer_and_a_segmenter() -> None:
    shared = TargetTokenizer(byte_level_json(), {}, None)
    segmenter = shared.segmenter()
    texts = [f"thank you {number}, " + "the quick brown fox " * 8 for number in range(8)]
    reference = Tokenizer.from_str(byte_level_json())
    right = [tuple(reference.encode(text).ids) for text in texts]

    def work(worker: int) -> bool:
        for turn in range(30):
            place = (worker + turn) % len(texts)
            ids = shared.prompt_ids(texts[place], "none")
            pieces = segmenter.segment(b"", texts[place].encode(), True)
            got = [tuple(ids), tuple(id for id, _ in pieces)]
            if worker % 2:  # what a caller does with its result is no one else's business
                got = [ids[:5] for ids in got]
            if any(ids != right[place][: len(ids)] or len(ids) < 5 for ids in got):
                return False
        return True

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(work, range(16)))
