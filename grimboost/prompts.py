"""From what a caller gives as a prompt to token ids, checked. It knows no generation."""

from collections.abc import Sequence
from operator import index

from grimboost.adapters.vocabulary import Vocabulary
from grimboost.errors import MisuseError
from grimboost.loading import LoadedTarget
from grimboost.messages import Started
from grimboost.parameters import Parameters


def prompt_ids(loaded: LoadedTarget, prompt: str | Sequence[int], params: Parameters) -> tuple[int, ...]:
    """Token ids within the context limit. Raises `MisuseError` for what can be no prompt of this target."""
    limit, size = loaded.target.facts.context_limit, len(loaded.target.vocabulary)
    if isinstance(prompt, str):
        if loaded.tokenizer is None:
            raise MisuseError("this target has no tokenizer; give the prompt as token ids")
        if len(prompt) > limit * loaded.target.vocabulary.longest:  # seen without tokenizing it
            raise MisuseError(
                f"the prompt has {len(prompt)} characters, more than the target's {limit} tokens can hold"
            )
        ids = loaded.tokenizer.prompt_ids(prompt, params.chat_template, params.system)
    else:
        ids = _as_ids(prompt)
    if not ids:
        raise MisuseError("the prompt is empty")
    for place, id in enumerate(ids):
        if not 0 <= id < size:
            raise MisuseError(f"prompt id {id} at place {place} is not in the vocabulary of {size}")
    if len(ids) > limit:
        raise MisuseError(f"the prompt has {len(ids)} tokens, the target's context limit is {limit}")
    return ids


def started_with(vocabulary: Vocabulary, ids: tuple[int, ...]) -> Started:
    """The first message of a generation with these checked ids."""
    prompt, breaks = bytearray(), list[int]()
    for id in ids:
        data = vocabulary.data(id)
        prompt += data
        if not data:
            breaks.append(len(prompt))
    return Started(ids, bytes(prompt), tuple(breaks))


def _as_ids(prompt: Sequence[int]) -> tuple[int, ...]:
    """Plain integers, also from an array or a tensor; a log can hold nothing else."""
    if isinstance(prompt, bytes | bytearray | memoryview):
        raise MisuseError("the prompt is bytes; give it as text or as token ids")
    try:
        return tuple(index(id) for id in prompt)
    except TypeError as error:
        raise MisuseError(f"the prompt is neither text nor token ids: {error}") from None
