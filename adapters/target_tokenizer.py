"""Text of a request -> prompt ids of the target, and where the target says that it has finished.

Uses the `tokenizers` library, and imports neither torch nor transformers unless a tokenizer.json must be made
from another form: that is much of the time to the first byte. The instance is never changed after it was made,
so any number of threads may share it (case D7). It knows no model and no sampling.
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from grimboost.adapters.chat_template import ChatTemplate
from grimboost.adapters.segmentation import TokenizerSegmenter
from grimboost.adapters.vocabulary import Vocabulary, vocabulary_of
from grimboost.errors import MisuseError, ModelReferenceError

EndIds = dict[int, list[str]]
"""End-of-sequence ids and every source that named them."""

_PROBE = "grimboost-end-of-turn-probe"


class TargetTokenizer:
    """The tokenizer files of a model directory."""

    def __init__(self, tokenizer_json: str, special: dict[str, str], template: str | None) -> None:
        self.json = tokenizer_json
        self.special = special
        self.template = template
        self.vocabulary: Vocabulary = vocabulary_of(tokenizer_json)
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def segmenter(self) -> TokenizerSegmenter:
        """One that cuts drafts as this tokenizer would."""
        return TokenizerSegmenter(self.json, self.vocabulary, self._tokenizer)

    def prompt_ids(self, text: str, template: str = "native", system: str | None = None) -> tuple[int, ...]:
        """Ids of a user's text, in the chat template or (`none`) as it stands.

        Raises `MisuseError` if the target has no template, or cannot render this.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise MisuseError(f"the prompt is no text: {error.reason} at character {error.start}") from None
        if template == "none":
            return tuple(self._tokenizer.encode(text).ids)
        if self.template is None:
            raise MisuseError("this target has no chat template; use chat template 'none' (--chat-template none)")
        messages = [{"role": "user", "content": text}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        return tuple(self._tokenizer.encode(self._render(messages, True), add_special_tokens=False).ids)

    def end_ids(self, directory: Path) -> EndIds:
        """Union of generation config, model config, tokenizer and the template's end of turn (case C6)."""
        ends: EndIds = {}
        for name in ("generation_config.json", "config.json"):
            value = _read_json(directory / name).get("eos_token_id")
            for id in value if isinstance(value, list) else [value]:
                if isinstance(id, int) and 0 <= id < len(self.vocabulary):  # some say -1 for none
                    ends.setdefault(id, []).append(name)
        eos = self.special.get("eos_token")
        id = self._tokenizer.token_to_id(eos) if eos else None
        if id is not None:
            ends.setdefault(id, []).append("tokenizer eos_token")
        turn = self._end_of_turn()
        if turn is not None:
            ends.setdefault(turn, []).append("chat template end of turn")
        return ends

    def _end_of_turn(self) -> int | None:
        """The control token that the template puts right behind an assistant's message."""
        if self.template is None:
            return None
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _PROBE}]
        try:
            rest = self._render(messages, False).partition(_PROBE)[2]
        except MisuseError:
            return None
        ids = self._tokenizer.encode(rest, add_special_tokens=False).ids
        return ids[0] if ids and not self.vocabulary.data(ids[0]) else None

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        return ChatTemplate(self.template or "")

    def _render(self, messages: list[dict[str, str]], prompt: bool) -> str:
        try:
            return self._chat_template.render(messages, prompt, self.special)
        except Exception as error:  # templates are foreign code and raise what they like
            raise MisuseError(f"the target's chat template cannot render this: {error}") from error


def load_tokenizer(directory: Path) -> TargetTokenizer:
    """Read tokenizer.json (made by transformers where only another form exists) and its configuration."""
    try:
        return _load(directory)
    except ModelReferenceError:
        raise
    except Exception as error:  # files of any origin: whatever is wrong in them, the target cannot be used
        raise ModelReferenceError(f"the tokenizer files in {directory} cannot be used: {error!r}") from error


def _load(directory: Path) -> TargetTokenizer:
    # newer files name the special tokens in the first, older ones in the second
    config = _read_json(directory / "special_tokens_map.json") | _read_json(directory / "tokenizer_config.json")
    special = {
        key: value if isinstance(value, str) else value["content"]
        for key in ("bos_token", "eos_token", "pad_token", "unk_token")
        if (value := config.get(key))
    }
    template = config.get("chat_template")
    if (directory / "chat_template.jinja").is_file():
        template = (directory / "chat_template.jinja").read_text(encoding="utf-8")
    if isinstance(template, list):  # several named ones
        template = next((one["template"] for one in template if one["name"] == "default"), None)
    return TargetTokenizer(_tokenizer_json(directory), special, template)


def _tokenizer_json(directory: Path) -> str:
    path = directory / "tokenizer.json"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        return str(tokenizer.backend_tokenizer.to_str())
    except Exception as error:
        raise ModelReferenceError(f"no usable tokenizer in {directory}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelReferenceError(f"{path.name} in {path.parent} is not JSON: {error}") from error
