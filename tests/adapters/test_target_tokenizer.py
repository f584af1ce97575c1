"""Prompts in and without a chat template, and the union of all that names an end of sequence (case C6)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_models import byte_level_json, sentencepiece_json
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from grimboost.adapters.target_tokenizer import TargetTokenizer, load_tokenizer
from grimboost.errors import MisuseError, ModelReferenceError, VocabularyError

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
START, END = 0, 1


def tokenizer(template: str | None = CHATML, **special: str) -> TargetTokenizer:
    return TargetTokenizer(byte_level_json(), special, template)


def directory(path: Path, **files: Any) -> Path:
    """A model directory; keyword `generation_config={...}` becomes generation_config.json."""
    (path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    for name, content in files.items():
        (path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return path


# ---------------------------------------------------------------- prompts


def test_the_native_template_frames_a_users_text() -> None:
    subject = tokenizer()
    ids = subject.prompt_ids("thank you")
    assert subject.vocabulary.join(ids) == b"user\nthank you\nassistant\n"
    assert [id for id in ids if id in (START, END)] == [START, END, START]


def test_a_system_prompt_comes_first() -> None:
    subject = tokenizer()
    ids = subject.prompt_ids("thank you", system="be a fox")
    assert subject.vocabulary.join(ids) == b"system\nbe a fox\nuser\nthank you\nassistant\n"
    assert [id for id in ids if id in (START, END)] == [START, END, START, END, START]


def test_without_a_template_the_text_stands_as_it_is() -> None:
    subject = tokenizer(None)
    assert subject.vocabulary.join(subject.prompt_ids("thank you", "none")) == b"thank you"
    with pytest.raises(MisuseError, match="no chat template; use chat template 'none'"):
        subject.prompt_ids("thank you")


def test_a_template_sees_the_special_tokens() -> None:
    subject = tokenizer("{{ bos_token }}{{ messages[0].content }}", bos_token="<|im_start|>")
    assert subject.prompt_ids("x")[0] == START


def test_a_plain_text_gets_the_begin_of_sequence_and_a_template_brings_its_own() -> None:
    inner = Tokenizer.from_str(byte_level_json())
    inner.post_processor = TemplateProcessing("<|im_start|> $A", special_tokens=[("<|im_start|>", START)])
    subject = TargetTokenizer(inner.to_str(), {}, "<|im_start|>{{ messages[0].content }}")
    assert subject.prompt_ids("x", "none") == subject.prompt_ids("x") == (START, subject.vocabulary.ids[b"x"])


@pytest.mark.parametrize(
    "template", ["{{ nothing.here }}", "{% for %}", "{{ raise_exception('no system role') }}", "{{ 1 / 0 }}"]
)
def test_a_template_that_breaks_is_a_clear_error(template: str) -> None:
    with pytest.raises(MisuseError, match=r"chat template cannot render this: .+"):
        tokenizer(template).prompt_ids("x")


@pytest.mark.parametrize("template", ["native", "none"])
def test_a_prompt_that_is_no_text_is_a_clear_error(template: str) -> None:
    with pytest.raises(MisuseError, match=r"the prompt is no text: .* at character 3"):
        tokenizer().prompt_ids("abc\udcff", template)


def test_truncation_and_padding_of_the_file_are_not_for_prompts() -> None:
    inner = Tokenizer.from_str(byte_level_json())
    inner.enable_truncation(3)
    inner.enable_padding(length=50)
    subject = TargetTokenizer(inner.to_str(), {}, None)
    assert (
        subject.vocabulary.join(subject.prompt_ids("the quick brown fox " * 4, "none"))
        == b"the quick brown fox " * 4
    )


# ---------------------------------------------------------------- end of sequence


def test_c6_end_ids_are_the_union_of_all_sources_by_name(tmp_path: Path) -> None:
    path = directory(
        tmp_path,
        generation_config={"eos_token_id": [END, 7]},
        config={"eos_token_id": 9},
        tokenizer_config={"eos_token": "<|im_start|>", "chat_template": CHATML},
    )
    assert load_tokenizer(path).end_ids(path) == {
        END: ["generation_config.json", "chat template end of turn"],
        7: ["generation_config.json"],
        9: ["config.json"],
        START: ["tokenizer eos_token"],
    }


def test_c6_an_id_that_the_vocabulary_lacks_ends_nothing(tmp_path: Path) -> None:
    path = directory(tmp_path, generation_config={"eos_token_id": [-1, 10**6]}, config={"eos_token_id": None})
    assert load_tokenizer(path).end_ids(path) == {}


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (CHATML, END),
        (None, None),
        ("{{ messages[-1].content }}", None),  # nothing behind an answer
        ("{{ messages[-1].content }} and so on", None),  # text behind it
        ("{{ messages[-1].content | upper }}<|im_end|>", None),  # the answer is not in it
        ("{{ raise_exception('no assistant') }}", None),
        ("{{ messages[-1].content }}<|im_start|><|im_end|>", START),
    ],
)
def test_c6_the_end_of_turn_is_the_control_token_behind_an_answer(template: str | None, end: int | None) -> None:
    found = tokenizer(template).end_ids(Path("nowhere"))
    assert found == ({} if end is None else {end: ["chat template end of turn"]})


def test_end_ids_of_a_directory_without_any_source(tmp_path: Path) -> None:
    path = directory(tmp_path)
    assert load_tokenizer(path).end_ids(path) == {}


# ---------------------------------------------------------------- files


def test_special_tokens_may_be_dictionaries(tmp_path: Path) -> None:
    path = directory(
        tmp_path,
        tokenizer_config={
            "eos_token": {"content": "<|im_end|>", "lstrip": False},
            "pad_token": None,
            "unk_token": "",
        },
    )
    assert load_tokenizer(path).special == {"eos_token": "<|im_end|>"}
    assert load_tokenizer(path).end_ids(path) == {END: ["tokenizer eos_token"]}


def test_the_template_may_be_a_file_or_one_of_several(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": CHATML}]
    path = directory(tmp_path, tokenizer_config={"chat_template": named})
    assert load_tokenizer(path).template == CHATML
    (path / "chat_template.jinja").write_text("of the file {{ messages[0].content }}")
    assert load_tokenizer(path).vocabulary.join(load_tokenizer(path).prompt_ids("x")) == b"of the file x"


def test_broken_files_are_clear_errors(tmp_path: Path) -> None:
    path = directory(tmp_path, generation_config="{")
    with pytest.raises(ModelReferenceError, match=r"generation_config.json in .* is not JSON"):
        load_tokenizer(path).end_ids(path)
    with pytest.raises(ModelReferenceError, match="no usable tokenizer in"):
        (tmp_path / "empty").mkdir()
        load_tokenizer(tmp_path / "empty")
    (path / "tokenizer.json").write_text('{"model": {"type": "WordPiece", "vocab": {}}}')
    with pytest.raises(VocabularyError, match="WordPiece"):
        load_tokenizer(path)


def test_a_sentencepiece_prompt_keeps_its_bytes() -> None:
    subject = TargetTokenizer(sentencepiece_json(), {}, None)
    assert subject.vocabulary.join(subject.prompt_ids("thank 中🍂", "none")) == " thank 中🍂".encode()


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"model": 3}'])
def test_a_broken_tokenizer_file_is_one_clear_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelReferenceError):
        load_tokenizer(tmp_path)


def test_special_tokens_may_be_named_in_their_own_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "<|end|>"}')
    names = {"eos_token": {"content": "<|end|>"}, "bos_token": "<|start|>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names))
    assert load_tokenizer(tmp_path).special == {
        "bos_token": "<|start|>",
        "eos_token": "<|end|>",
        "pad_token": "<|end|>",
    }


def test_loading_and_using_it_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    path = directory(tmp_path, config={"eos_token_id": 9}, tokenizer_config={"chat_template": CHATML})
    program = (
        "import sys, pathlib; from grimboost.adapters.target_tokenizer import load_tokenizer; "
        "from grimboost.adapters.segmentation import TokenizerSegmenter; "
        "path = pathlib.Path(sys.argv[1]); subject = load_tokenizer(path); "
        "assert subject.prompt_ids('thank you') and len(subject.end_ids(path)) == 2; "
        "assert TokenizerSegmenter(subject.json, subject.vocabulary).segment(b'', b'thank you', True); "
        "print([name for name in ('torch', 'transformers', 'numpy', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "module", ["engine", "generation", "target_service", "draft_service", "loading", "command_line", "replaying"]
)
def test_the_engine_is_imported_without_torch_and_transformers(module: str) -> None:
    program = (
        f"import sys, grimboost.{module}; "
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
