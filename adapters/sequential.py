"""The slow oracle: plain decoding, one row a pass, over any target. What everything faster must equal.

It prefills as `grimboost.stages.verifier` does, so that caches are the same to the last bit. It knows nothing
of drafts, bytes or stop strings, and nothing here is meant to be fast.
"""

from collections.abc import Collection, Sequence

from grimboost.adapters.target import Chosen, Rows, Slot, Target
from grimboost.stages.sampling_rule import SamplingRule

PREFILL_ROWS = 512


def prefill(target: Target, slot: Slot, ids: Sequence[int], rows: int = PREFILL_ROWS) -> None:
    """Feed `ids` at the end of the slot in parts of `rows`, without any choice."""
    for start in range(0, len(ids), rows):
        target.step([Rows(slot, tuple(ids[start : start + rows]), 0)])


def decode_sequentially(
    target: Target,
    prompt_ids: Sequence[int],
    rule: SamplingRule,
    max_new_tokens: int,
    end_ids: Collection[int] = (),
    prefill_rows: int = PREFILL_ROWS,
) -> list[Chosen]:
    """Choices up to the first of `end_ids` (it is the last of them), the budget or the context limit."""
    budget = min(max_new_tokens, target.facts.context_limit - len(prompt_ids))
    chosen: list[Chosen] = []
    slot = target.open(rule)
    try:
        prefill(target, slot, prompt_ids[:-1], prefill_rows)
        last = prompt_ids[-1]
        while len(chosen) < budget:
            [[choice]] = target.step([Rows(slot, (last,), 1)])
            chosen.append(choice)
            last = choice.id
            if last in end_ids:
                break
    finally:
        target.close(slot)
    return chosen
