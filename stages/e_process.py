"""Evidence about a rate of slips that may be looked at at any moment: wagers, their mixtures, bounds, a watch.

*Below epsilon.* H0: "the rate is epsilon or more". Against it, for each rate q below epsilon, stands the
likelihood ratio of the outcomes so far, (q/eps)^slips ((1-q)/(1-eps))^clean. When the next span slips with
conditional probability p, its factor has the mean 1 + c (p - eps) with c = q/eps - (1-q)/(1-eps) <= 0: at most 1
if p >= eps, whatever p depends on. So each wager, and each fixed mixture of them, is a supermartingale under H0,
and by Ville's inequality the probability that it ever reaches 1/delta is delta at most (Ramdas et al. 2023,
Statistical Science 38:576). The mixture is over log-uniform q: a mean over `GRID` middles of equal steps in
[epsilon/1000, epsilon]. A sum loses no validity against the integral.

Rates need not be constant. The product of the factors' means is at most (1 + c (mean of p - eps))^spans (means of
logarithms), so also this has probability delta at most: that the mixture reaches 1/delta at any moment at which
the mean of the conditional rates so far is epsilon or more. What it cannot say is how slips cluster.

*Above epsilon.* The same wagers with q above epsilon, restarted at 1 whenever they are below (Page 1954): their
mean is an e-detector, so false alarms are `ALARM` spans apart in the mean at least (Shin, Ramdas & Rinaldo 2023,
arXiv:2203.03532). `bench/certificate.py` measures far more: a false alarm in 600,000 spans at epsilon, and 1,600
spans to find a change to 5 epsilon of 0.001. The other e-detector (Shiryaev-Roberts), set to as many false alarms,
is equal there, sooner at 2 epsilon and later from 20 epsilon on; it can raise the alarm without a slip, and would
need every span between slips.

*Bounds.* What the mixture excludes at confidence 1 - delta is everything above some rate: an upper bound that
holds at every moment (confidence sequences by betting: Waudby-Smith & Ramdas 2024, arXiv:2010.09686).

It does not know what slips, thresholds, or what follows.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import exp, log, log1p, sqrt
from statistics import NormalDist

GRID = 36
DECADES = 3
RATIOS = tuple(10.0 ** (-DECADES * (place + 0.5) / GRID) for place in range(GRID))
"""q / epsilon of the mixture."""

ALARM = 3000.0
"""The watch raises the alarm when the mean of its wagers reaches this."""

WATCHED = tuple(2.0 * 25.0 ** (place / 7) for place in range(8))
"""q / epsilon of the watch: 2 to 50, in equal steps of log q."""


class Watch:
    """Looks for a rate above epsilon among released spans; closes only ever at a slip."""

    def __init__(self, epsilon: float, levels: tuple[float, ...] = (), clean: int = 0) -> None:
        rates = [min(epsilon * factor, (1.0 + epsilon) / 2.0) for factor in WATCHED]
        self._on_slip = [log(rate / epsilon) for rate in rates]
        self._on_clean = [log1p(-rate) - log1p(-epsilon) for rate in rates]
        self.levels = levels or (0.0,) * len(WATCHED)
        self.clean = clean

    def observe(self, slip: bool) -> bool:
        """One audited released span; true when the certificate has to close."""
        if not slip:
            self.clean += 1  # wagers only fall, and not below where they restart
            return False
        moves = zip(self.levels, self._on_clean, self._on_slip, strict=True)
        self.levels = tuple(max(0.0, level + self.clean * fall) + rise for level, fall, rise in moves)
        self.clean = 0
        return log_mean_exp(self.levels) >= log(ALARM)


def log_e_value(epsilon: float, spans: int, slips: int) -> float:
    """Natural logarithm of the mean over q of the wagers against "the rate is epsilon or more"."""
    base, clean = log1p(-epsilon), spans - slips
    return log_mean_exp([slips * log(ratio) + clean * (log1p(-epsilon * ratio) - base) for ratio in RATIOS])


@lru_cache(maxsize=4096)
def spans_needed(epsilon: float, delta: float, slips: int) -> int:
    """Fewest spans that show, with so many slips among them, a rate below epsilon: the e-value is 1/delta."""
    goal, few, enough = -log(delta), slips, slips + 1
    while log_e_value(epsilon, enough, slips) < goal:
        few, enough = enough, slips + 2 * (enough - slips)
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (middle, enough) if log_e_value(epsilon, middle, slips) < goal else (few, middle)
    return enough


def rate_upper(spans: int, slips: int, delta: float) -> float:
    """Largest rate that the e-value does not exclude: an upper bound that holds at every moment with 1 - delta.

    The e-value rises with the rate tested, so what it excludes is everything from some rate on.
    """
    if slips >= spans:
        return 1.0
    goal, low, high = -log(delta), slips / spans, 1.0
    for _ in range(50):
        middle = (low + high) / 2.0
        low, high = (middle, high) if log_e_value(middle, spans, slips) < goal else (low, middle)
    return high


def wilson_upper(spans: int, slips: int, delta: float) -> float:
    """One-sided Wilson score bound (Wilson 1927). It holds for one look at a number of spans fixed beforehand."""
    if not spans:
        return 1.0
    z, rate = NormalDist().inv_cdf(1.0 - delta), slips / spans
    middle = rate + z * z / (2 * spans)
    width = z * sqrt(rate * (1.0 - rate) / spans + z * z / (4 * spans * spans))
    return min(1.0, (middle + width) / (1.0 + z * z / spans))


def log_mean_exp(logs: Sequence[float]) -> float:
    """Logarithm of the mean of the exponentials, without overflow."""
    top = max(logs)
    return top + log(sum(exp(one - top) for one in logs) / len(logs))
