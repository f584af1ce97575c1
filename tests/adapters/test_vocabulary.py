"""The table id -> bytes: both profiles, what is refused and by which name, and ids that have no bytes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import (  # noqa: F401
    BYTES,
    CORPUS,
    END,
    byte_level_json,
    changed,
    noise_logits,
    one_thread,
    sentencepiece_json,
    tiny_llama,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from grimboost.adapters.eager_target import EagerTarget
from grimboost.adapters.scripted_target import ScriptedTarget
from grimboost.adapters.target import Rows
from grimboost.adapters.vocabulary import Vocabulary, gpt2_alphabet, vocabulary_of
from grimboost.errors import VocabularyError
from grimboost.stages.sampling_rule import SamplingRule


def test_the_gpt2_alphabet_is_a_bijection_over_all_bytes() -> None:
    alphabet = gpt2_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
    assert alphabet["a"] == ord("a")
    assert alphabet["Ġ"] == ord(" ")


@pytest.mark.parametrize(
    "pieces",
    [
        [b"\xe4", b"\xb8", b"\xad", b"\xe6", b"\x96", b"\x87"],
        [b"\x41", b"\xf0", b"\x42", b" the"],
        [b" a", b" '", b"s", b"\n", b"  ", b"x"],
    ],
    ids=["single-byte tokens", "a lead byte never completed", "spaces and clean-up rules"],
)
def test_a2_deltas_from_the_table_are_the_full_bytes_at_every_step(pieces: list[bytes]) -> None:
    ids = [BYTES.ids[piece] for piece in pieces]
    shown = b""
    for count, id in enumerate(ids, 1):
        shown += BYTES.data(id)
        assert shown == b"".join(pieces[:count]) == BYTES.join(ids[:count])


def test_byte_level_bpe_spells_every_text() -> None:
    tokenizer = Tokenizer.from_str(byte_level_json())
    vocabulary = vocabulary_of(byte_level_json())
    assert vocabulary.profile == "gpt2-bytes"
    assert len(vocabulary) == tokenizer.get_vocab_size()
    ids = tokenizer.encode(CORPUS).ids
    assert len(ids) < len(CORPUS.encode())
    assert vocabulary.join(ids) == CORPUS.encode()


def test_a2_each_piece_of_a_byte_level_text_has_its_own_bytes() -> None:
    tokenizer, vocabulary = Tokenizer.from_str(byte_level_json(270)), vocabulary_of(byte_level_json(270))
    text = "中文🍂 it 's\n  x"
    shown = b""
    for id in tokenizer.encode(text).ids:
        shown += vocabulary.data(id)
        assert text.encode().startswith(shown)
    assert shown == text.encode()


def test_sentencepiece_with_byte_fallback() -> None:
    tokenizer, vocabulary = Tokenizer.from_str(sentencepiece_json()), vocabulary_of(sentencepiece_json())
    assert vocabulary.profile == "sentencepiece-byte-fallback"
    text = "thank the 中文 \n ha  an"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert vocabulary.join(ids) == b" " + text.encode()  # the dummy prefix is a byte of the first token
    assert tokenizer.decode(ids) == text
    assert vocabulary.data(tokenizer.token_to_id("<0xE4>")) == b"\xe4"
    assert vocabulary.data(tokenizer.token_to_id("▁thank")) == b" thank"
    assert [vocabulary.data(id) for id in (0, 1, 2)] == [b"", b"", b""]


def test_added_tokens_have_bytes_unless_they_are_special() -> None:
    tokenizer, vocabulary = Tokenizer.from_str(byte_level_json()), vocabulary_of(byte_level_json())
    assert vocabulary.table[tokenizer.token_to_id("<tool>")] == b"<tool>"
    assert vocabulary.table[tokenizer.token_to_id("<|im_end|>")] is None


def _trained(model: Any, trainer: Any) -> str:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator([CORPUS], trainer)
    return str(tokenizer.to_str())


def _model_with(**changes: Any) -> str:
    model = json.loads(byte_level_json())["model"]
    return changed(byte_level_json(), model=model | changes)


def _without_byte_fallback() -> str:
    model = json.loads(sentencepiece_json())["model"]
    return changed(sentencepiece_json(), model=model | {"byte_fallback": False})


def _with_decoder(decoder: Any) -> str:
    tokenizer = Tokenizer.from_str(sentencepiece_json())
    tokenizer.decoder = decoder
    return str(tokenizer.to_str())


REFUSED = {
    "WordPiece": lambda: _trained(
        models.WordPiece(unk_token="?"), trainers.WordPieceTrainer(special_tokens=["?"], show_progress=False)
    ),
    "Unigram": lambda: _trained(models.Unigram(), trainers.UnigramTrainer(show_progress=False)),
    "WordLevel": lambda: _trained(
        models.WordLevel(unk_token="?"), trainers.WordLevelTrainer(special_tokens=["?"], show_progress=False)
    ),
    "a None model": lambda: "{}",
    "byte_fallback False": _without_byte_fallback,
    "decoder Metaspace": lambda: _with_decoder(decoders.Metaspace()),
    "decoder Sequence \\+ Replace \\+ Fuse": lambda: _with_decoder(
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    ),
    "decoder none": lambda: changed(byte_level_json(), decoder=None),
    "end_of_word_suffix '</w>'": lambda: _model_with(end_of_word_suffix="</w>"),
    "continuing_subword_prefix '##'": lambda: _model_with(continuing_subword_prefix="##"),
    "'中', which is not in the GPT-2 byte alphabet": lambda: _model_with(vocab={"a": 900, "a中": 901}, merges=[]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_profile_without_bytes_is_refused_by_name(name: str) -> None:
    with pytest.raises(VocabularyError, match=f"unsupported vocabulary.*{name}"):
        vocabulary_of(REFUSED[name]())


def test_a5_a_control_token_ends_a_draft_and_has_no_bytes() -> None:
    the, fox = BYTES.ids[b" the"], BYTES.ids[b" fox"]
    assert BYTES.draft_bytes([the, END, fox]) == b" the"
    assert BYTES.draft_bytes([the, len(BYTES), fox]) == b" the"  # a padding row of the embedding
    assert BYTES.draft_bytes([the, -1]) == b" the"
    assert BYTES.join([the, END, fox, 10**6, -1]) == b" the fox"


@pytest.mark.parametrize("exact", [True, False])
def test_a5_a_padding_row_is_never_chosen_however_large_its_logit(exact: bool) -> None:
    model = tiny_llama(rows=len(BYTES) + 10)
    model.lm_head.weight.data[: len(BYTES)] *= 1e-3
    target = EagerTarget(model, BYTES, row_exact_kernels=exact)
    slot = target.open(SamplingRule())
    [block] = target.step([Rows(slot, tuple(range(8)), 8)])
    target.rollback(slot, 0)
    single = [target.step([Rows(slot, (id,), 1)])[0][0] for id in range(8)]
    assert {one.id < len(BYTES) for one in [*block, *single]} == {True}
    assert [one.id for one in block] == [one.id for one in single]


def test_of_ids_with_the_same_bytes_the_lowest_is_the_inverse() -> None:
    vocabulary = Vocabulary([b"b", b"a", None, b"a", b""])
    assert dict(vocabulary.ids) == {b"b": 0, b"a": 1}
    assert vocabulary.longest == 1
    assert Vocabulary([None]).longest == 0


@given(st.lists(st.integers(-2, len(BYTES) + 2), max_size=20))
def test_a_draft_is_a_prefix_of_what_its_ids_spell(ids: list[int]) -> None:
    assert BYTES.join(ids).startswith(BYTES.draft_bytes(ids))


def test_a_scripted_target_needs_a_script() -> None:
    with pytest.raises(ValueError, match="give next_token or logits"):
        ScriptedTarget(BYTES)
    target = ScriptedTarget(BYTES, next_token=lambda _: 1)
    slot = target.open(SamplingRule(temperature=1.0))
    with pytest.raises(ValueError, match="sampling needs logits"):
        target.step([Rows(slot, (1,), 1)])
    both = ScriptedTarget(BYTES, next_token=lambda _: 1, logits=noise_logits())
    assert both.step([Rows(both.open(SamplingRule()), (1,), 1)])[0][0].id == 1


def test_a_control_token_may_be_spelled_with_any_character() -> None:
    """Trainers put it into the model's own vocabulary too, outside the byte alphabet."""
    data = json.loads(byte_level_json())
    token = {**data["added_tokens"][0], "id": 900, "content": "<中 end of text>", "special": True}
    data["added_tokens"].append(token)
    data["model"]["vocab"]["<中 end of text>"] = 900
    vocabulary = vocabulary_of(json.dumps(data))
    assert vocabulary.data(900) == b""
