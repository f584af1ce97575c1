"""The target adapter: the one interface of everything that can be a target.

It knows tokens and caches; it knows nothing of bytes drafted, gates or clients. Adapters are used from one
thread. `grimboost.adapters.conformance.check_target` tests that an adapter keeps this contract.
"""

from collections.abc import Sequence
from typing import Literal, NewType, Protocol

from msgspec import Struct

from grimboost.adapters.vocabulary import Vocabulary
from grimboost.stages.sampling_rule import SamplingRule

Slot = NewType("Slot", int)

Precision = Literal["fp32", "bf16", "int8", "int4"]
"""How weights are kept. Which of them an adapter offers is its own affair."""


class TargetFacts(Struct, frozen=True):
    """What an adapter states about itself; the conformance suite holds it to it."""

    name: str
    precision: str
    context_limit: int
    """Tokens of prompt and output together."""
    row_invariant: bool
    """Whether a pass over k <= 32 rows gives bit for bit what k passes over one row give, whatever else is in
    it. Longer passes are prefill."""
    tie_bound: float
    """Without row-invariance: margins (logits) below this may turn with the shape of the pass; measured."""
    rollback: Literal["trim", "replay"] = "trim"
    digest: str = ""
    """Identifies the weights."""
    kernels: str = ""
    """What computes, with versions and threads: passes of other kernels have other times."""


class Rows(Struct, frozen=True):
    """Feed `tokens` at the end of `slot`; choose after each of the last `choose` of them (0 while prefilling)."""

    slot: Slot
    tokens: tuple[int, ...]
    choose: int


class Chosen(Struct, frozen=True):
    """The chosen id, and how far the runner-up is behind, in logits (`inf` if there is none)."""

    id: int
    margin: float


class Target(Protocol):
    """A model with slots. Every id that it chooses has a row in `vocabulary`."""

    @property
    def facts(self) -> TargetFacts: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def open_slots(self) -> int:
        """Slots that have not been closed."""
        ...

    def open(self, rule: SamplingRule) -> Slot:
        """A new, empty slot whose tokens are chosen by `rule`."""
        ...

    def step(self, batch: Sequence[Rows]) -> list[list[Chosen]]:
        """Feed rows of several slots in one pass, each slot at most once.

        Returns for each entry its `choose` choices in row order. Raises `TargetError` if a slot is unknown
        or would grow over the context limit; then nothing has been fed.
        """
        ...

    def length(self, slot: Slot) -> int:
        """Tokens in the slot's cache."""
        ...

    def rollback(self, slot: Slot, length: int) -> None:
        """Cut the slot to its first `length` tokens. Raises `TargetError` if it holds fewer."""
        ...

    def close(self, slot: Slot) -> None:
        """Give the slot's memory back."""
        ...
