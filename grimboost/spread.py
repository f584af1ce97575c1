"""How measured values are spread: a few quantiles of them, exact. It knows nothing of what was measured."""

from collections.abc import Iterable

from msgspec import Struct


class Spread(Struct, frozen=True):
    """Mean, quantiles and maximum; the q-quantile is the least value that a share of q does not exceed."""

    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0


def even_spread(values: Iterable[float]) -> Spread | None:
    """Of values that count alike."""
    return spread((value, 1.0) for value in values)


def spread(values: Iterable[tuple[float, float]]) -> Spread | None:
    """Of (value, weight) pairs; None if there are none."""
    ordered = sorted((value, weight) for value, weight in values if weight > 0)
    if not ordered:
        return None
    total = sum(weight for _, weight in ordered)
    mean = sum(value * weight for value, weight in ordered) / total
    wanted, found, reached = [0.5, 0.95, 0.99], list[float](), 0.0
    for value, weight in ordered:
        reached += weight
        while len(found) < len(wanted) and reached >= wanted[len(found)] * total:
            found.append(value)
    found += [ordered[-1][0]] * (len(wanted) - len(found))  # rounding may leave the last ones open
    p50, p95, p99 = found
    return Spread(mean, p50, p95, p99, ordered[-1][0])
