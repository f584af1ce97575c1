"""How a target token is chosen from logits: a value that travels with a slot. It chooses nothing itself.

Greedy is temperature 0. The order of the filters is that of transformers' warpers: repetition penalty,
temperature, top-k, top-p, min-p. What is random is keyed by (seed, position, purpose), see
`grimboost.stages.keyed_random`.
"""

from msgspec import Struct

from grimboost.errors import MisuseError


class SamplingRule(Struct, frozen=True, forbid_unknown_fields=True):
    """Choice of one token. Defaults are greedy decoding without any penalty."""

    temperature: float = 0.0
    top_k: int = 0
    """Keep this many most probable tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most probable tokens whose probability reaches this; 1 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this probable relative to the most probable one; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Divide positive and multiply negative logits of ids in the prefix by this (CTRL, arXiv:1909.05858)."""
    seed: int = 0
    suppressed: tuple[int, ...] = ()
    """Ids that may not be chosen before `suppressed_until` (end-of-sequence ids under a minimum length)."""
    suppressed_until: int = 0
    """First position of the whole path (prompt included) at which `suppressed` ids are allowed again."""

    @property
    def greedy(self) -> bool:
        """Whether no randomness is used at all."""
        return self.temperature == 0.0

    def check(self) -> None:
        """Raise `MisuseError` naming the first value that is out of range."""
        for name, value, low, high in (
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, 1e-6, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 1e-3, 100.0),
            ("top_k", self.top_k, 0, 2**31),
            ("seed", self.seed, 0, 2**64 - 1),
        ):
            if not low <= value <= high:  # NaN fails this as well
                raise MisuseError(f"{name} is {value}; it has to be between {low} and {high}")
