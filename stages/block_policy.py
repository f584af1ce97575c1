"""How many spans one pass should check, and whether checking any pays.

A pass over k drafted spans costs `curve.cost(k + 1)` and commits 1 + p1 + p1*p2 + ... tokens on average
(Leviathan et al. 2023, arXiv:2211.17192, equation 1, with one probability per position). The block that
commits most per millisecond wins; where that is k = 0, speculation is off. It is probed at no cost: each
token that the target then chooses alone is compared with the span drafted for its place.
"""

from collections.abc import Iterable

from msgspec import Struct

from grimboost.stages.configuration import CostCurve

GAIN_REQUIRED = 1.02
"""A block has to promise this much over plain decoding: the curve is measured, not exact."""

MEMORY = 0.95
"""Weight that the running estimate keeps per observation: about the last twenty count."""


class AcceptanceEstimate:
    """Ratio of spans accepted to spans that the drafter's confidence had promised, over the recent past."""

    def __init__(self) -> None:
        self._observed = 2.0
        self._promised = 2.0

    @property
    def ratio(self) -> float:
        """Factor that turns a stated confidence into a probability; 1 when nothing was seen yet."""
        return self._observed / self._promised

    def probability(self, confidence: float) -> float:
        """The corrected confidence, kept below 1."""
        return min(0.995, confidence * self.ratio)

    def observe(self, confidence: float, accepted: bool) -> None:
        """One span was reached by the target, and accepted or not."""
        self._observed = MEMORY * self._observed + accepted
        self._promised = MEMORY * self._promised + max(confidence, 0.01)


class Company(Struct, frozen=True):
    """Other generations in the same pass: how many, and their rows together."""

    generations: int = 0
    rows: int = 0


ALONE = Company()


def block_length(
    curve: CostCurve, probabilities: Iterable[float], company: Company = ALONE, waited: float = 0.0
) -> int:
    """Spans to check in the next pass; 0 turns speculation off for this pass.

    `waited`: milliseconds that one generation's draft costs beside the pass. The drafter drafts for one after
    the other, so in company the pass waits for all; going on without drafts costs nothing.
    In company a row costs what it adds to the whole pass, and what counts is what the whole pass commits: at
    least one token for each of the others.
    """
    waited *= company.generations + 1
    best, best_rate = 0, GAIN_REQUIRED * (company.generations + 1) / curve.cost(company.rows + 1)
    reach, tokens = 1.0, company.generations + 1.0
    for count, probability in enumerate(probabilities, 1):
        reach *= probability
        tokens += reach
        rate = tokens / (curve.cost(company.rows + count + 1) + waited)
        if rate > best_rate:
            best, best_rate = count, rate
    return best
