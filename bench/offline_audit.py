"""An auditor that shares nothing with the engine but the weights: what a target chooses at each place of a text.

A text is a prompt and an output, as ids. The output's token at a place is a slip if the target, given all before
it, would have chosen another. It knows nothing of drafts and of what was shown when.
"""

from bench.streaming_report import Choices
from grimboost.adapters.sequential import prefill
from grimboost.adapters.target import Rows, Target
from grimboost.stages.sampling_rule import SamplingRule

ROWS = 32
"""Of one pass; so many keep their bits whatever is beside them, where the target is row-invariant."""


def target_choices(target: Target) -> Choices:
    """By the target itself, fed once more. Nothing else may be using it."""
    rows = ROWS if target.facts.row_invariant else 1

    def choices(prompt: tuple[int, ...], output: tuple[int, ...]) -> list[int]:
        slot, feed = target.open(SamplingRule()), (prompt[-1], *output[:-1])
        try:
            prefill(target, slot, prompt[:-1])
            parts = [feed[start : start + rows] for start in range(0, len(feed), rows)]
            return [one.id for part in parts for one in target.step([Rows(slot, part, len(part))])[0]]
        finally:
            target.close(slot)

    return choices


def transformers_choices(reference: str, vocabulary: int) -> Choices:
    """By transformers' own forward in fp32. Ids beyond the vocabulary are padding, which nothing chooses."""
    import torch
    from transformers import LlamaForCausalLM
    from transformers.utils import logging

    from grimboost.model_references import resolve

    logging.disable_progress_bar()
    model = LlamaForCausalLM.from_pretrained(resolve(reference).directory, dtype=torch.float32).eval()

    def choices(prompt: tuple[int, ...], output: tuple[int, ...]) -> list[int]:
        ids = torch.tensor([[*prompt, *output]])
        with torch.inference_mode():
            logits = model(ids, attention_mask=torch.ones_like(ids)).logits[0, len(prompt) - 1 : -1, :vocabulary]
        return [int(id) for id in logits.argmax(-1)]

    return choices
