"""What the certificate promises, by simulation with its own formulas: opening, closing, answers, many thresholds.

    python -m bench.certificate [--runs 2000] [--seed 1] [--json]

Runs are drawn slip by slip, not span by span, so each is looked at after every span at no cost: a threshold passes
exactly where it has the spans needed for its slips (`spans_needed`), and the watch can only close at a slip. Some
runs go through `Certificate` itself and have to agree. The exact probability of a false opening, by recursion over
the number of slips, stands beside the simulated one. Takes half a minute. Prints a table for people and one JSON
line for machines; with --json only that line.
"""

import argparse
import json
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grimboost.stages.calibration import Calibration
from grimboost.stages.certificate import Certificate, Terms
from grimboost.stages.e_process import ALARM, RATIOS, WATCHED, spans_needed, wilson_upper

EPSILON, DELTA = 0.001, 0.05
HORIZON = 100_000

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


# ---------------------------------------------------------------- opening


def needs(bound: Any, horizon: int) -> Ints:
    """Spans needed for 0, 1, 2, ... slips, up to the first that is beyond the horizon (or never reached)."""
    found: list[int] = []
    while not found or found[-1] <= horizon:
        found.append(bound(len(found)))
    return np.array(found)


def certificate_needs(horizon: int, epsilon: float = EPSILON, delta: float = DELTA) -> Ints:
    return needs(lambda slips: spans_needed(epsilon, delta, slips), horizon)


def wilson_needs(horizon: int) -> Ints:
    """The same for a Wilson bound that is at most epsilon, which falls with clean spans too."""

    def needed(slips: int) -> int:
        few, enough = slips, 2 * slips + 10**6
        while enough - few > 1:
            middle = (few + enough) // 2
            few, enough = (few, middle) if wilson_upper(middle, slips, DELTA) <= EPSILON else (middle, enough)
        return enough

    return needs(needed, horizon)


def slip_places(rng: np.random.Generator, rate: float, runs: int, count: int) -> Ints:
    """Places (from 1) of the first `count` slips of each run."""
    return np.cumsum(rng.geometric(rate, (runs, count)), axis=1)


def openings(places: Ints, needed: Ints, horizon: int) -> Floats:
    """Spans after which each run opens, infinite if it does not within the horizon: with k slips it opens at
    `needed[k]` if the slip after them comes later. A run may have more slips than there are needs."""
    count = min(places.shape[1], len(needed))
    reached = (places[:, :count] > needed[:count]) & (needed[:count] <= horizon)
    first: Floats = np.where(reached, needed[:count], np.inf).min(axis=1)
    return first


def opened(rng: np.random.Generator, rate: float, runs: int, needed: Ints, horizon: int) -> Floats:
    """Of many runs, in parts that fit the memory, the spans after which they opened."""
    parts = []
    for start in range(0, runs, 5000):
        places = slip_places(rng, rate, min(5000, runs - start), len(needed))
        parts.append(openings(places, needed, horizon))
    return np.concatenate(parts)


def exact_opening(needed: Ints, rate: float, horizon: int) -> float:
    """Probability of opening within the horizon: chances of 0, 1, 2, ... slips, less those that have opened."""
    chances, total = np.zeros(len(needed) + 1), 0.0
    chances[0] = 1.0
    limits = np.append(needed, horizon + 1)
    for spans in range(1, horizon + 1):
        chances[1:] = chances[1:] * (1.0 - rate) + chances[:-1] * rate
        chances[0] *= 1.0 - rate
        if passed := int(np.searchsorted(limits, spans, side="right")):
            total += float(chances[:passed].sum())
            chances[:passed] = 0.0
    return total


# ---------------------------------------------------------------- closing


def closings(rng: np.random.Generator, rate: float, runs: int, horizon: int, restarting: bool = True) -> Floats:
    """Spans after which the watch closes, in runs of a constant rate that begin with the opening.

    `restarting` False: the other e-detector, Shiryaev-Roberts, with an alarm that closes as rarely.
    """
    q = np.minimum(EPSILON * np.array(WATCHED), (1.0 + EPSILON) / 2.0)
    rise, fall = np.log(q / EPSILON), np.log1p(-q) - np.log1p(-EPSILON)
    alarm = np.log(ALARM if restarting else 100.0 * ALARM)
    levels = np.zeros((runs, len(q))) if restarting else np.full((runs, len(q)), -np.inf)
    at, closed = np.zeros(runs), np.full(runs, np.inf)
    while (at < horizon).any():
        clean = rng.geometric(rate, runs) - 1
        at += clean + 1
        move = watched if restarting else summed
        levels = move(levels, clean, fall, rise)
        top = levels.max(axis=1)
        reached = top + np.log(np.exp(levels - top[:, None]).mean(axis=1)) >= alarm
        now = reached & (at <= horizon)
        closed[now] = at[now]
        at[now] = np.inf
    return closed


def watched(levels: Floats, clean: Ints, fall: Floats, rise: Floats) -> Floats:
    """Logarithms of wagers that restart at 1, after clean spans and a slip."""
    return np.maximum(0.0, levels + clean[:, None] * fall) + rise


def summed(levels: Floats, clean: Ints, fall: Floats, rise: Floats) -> Floats:
    """Logarithms of sums of wagers begun at every span."""
    factor, powers = np.exp(fall), np.exp(clean[:, None] * fall)
    begun = factor * (1.0 - powers) / (1.0 - factor)
    return np.log1p(np.exp(levels) * powers + begun) + rise


# ---------------------------------------------------------------- answers


def exclusions(rates: Floats, losses: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Runs in which the bound on answers was ever below the mean of their conditional rates so far.

    `rates` and `losses` have a row for each run and a column for each answer.
    """
    answers, ever = np.arange(1, losses.shape[1] + 1), np.zeros(len(losses), dtype=bool)
    slips, means = np.cumsum(losses, axis=1), np.cumsum(rates, axis=1) / answers
    ratios = np.array(RATIOS)
    for place in range(losses.shape[1]):
        mean, slip = means[:, place, None], slips[:, place, None]
        won = slip * np.log(ratios) + (place + 1 - slip) * (np.log1p(-mean * ratios) - np.log1p(-mean))
        ever |= np.exp(won).mean(axis=1) >= 1.0 / DELTA
    return ever


def bad_answers(
    rng: np.random.Generator, runs: int, answers: int, share: float, stay: float
) -> tuple[Floats, NDArray[np.bool_]]:
    """Answers of which a share is bad. After a bad one the next is bad with probability `stay`: spells."""
    bad = np.zeros((runs, answers), dtype=bool)
    rates = np.empty((runs, answers))
    begin = share * (1.0 - stay) / (1.0 - share)
    rates[:, 0] = share
    for place in range(answers):
        if place:
            rates[:, place] = np.where(bad[:, place - 1], stay, begin)
        bad[:, place] = rng.random(runs) < rates[:, place]
    return rates, bad


def spans_of(bad: NDArray[np.bool_], length: int) -> NDArray[np.bool_]:
    """Slips by span: each tenth of a bad answer of so many spans."""
    pattern = np.arange(length) % 10 == 9
    slips: NDArray[np.bool_] = (bad[:, None] & pattern).ravel()
    return slips


def certified(slips: NDArray[np.bool_], length: int) -> Certificate:
    """A run through the certificate itself, which releases every span while it is open."""
    certificate = Certificate(Terms(EPSILON, DELTA, (0.5,)))
    for start in range(0, len(slips), length):
        before = certificate.state
        for slip in slips[start : start + length].tolist():
            certificate.observe(0.9, slip, certificate.opened)
        after = certificate.state
        if after.released > before.released:
            certificate.end_generation(after.released_slips > before.released_slips, True)
    return certificate


# ---------------------------------------------------------------- many thresholds

GRID = (0.999, 0.99, 0.95, 0.9)
BANDS = (0.4, 0.3, 0.2, 0.1)
"""Shares of spans that have at least the first threshold, the second but not the first, and so on."""

RATES = (0.1, 1.0, 2.8, 10.0)
"""Slip rates of these bands, in epsilon: cumulated 0.1, 0.49, 1 and 1.9, so the last two must not count."""


def drawn_bands(rng: np.random.Generator, spans: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Band and slip of each span of a run."""
    bands = rng.choice(len(BANDS), size=spans, p=BANDS)
    return bands, rng.random(spans) < EPSILON * np.array(RATES)[bands]


def passes(bands: Ints, slips: NDArray[np.bool_], needed: Ints) -> list[bool]:
    """Which thresholds ever pass by themselves."""
    passed = []
    for place in range(len(GRID)):
        held = slips[bands <= place]
        count = np.minimum(np.cumsum(held), len(needed) - 1)
        passed.append(bool((~held & (np.arange(1, len(held) + 1) >= needed[count])).any()))
    return passed


def certified_passes(bands: Ints, slips: NDArray[np.bool_]) -> list[bool]:
    """The same by the certificate itself."""
    certificate = Certificate(Terms(EPSILON, DELTA, GRID))
    for band, slip in zip(bands.tolist(), slips.tolist(), strict=True):
        certificate.observe(GRID[band], slip, False)
    return [row.passed for row in certificate.state.rows]


# ---------------------------------------------------------------- what is measured


def measure_opening(rng: np.random.Generator, runs: int) -> dict[str, Any]:
    needed, wilson = certificate_needs(HORIZON), wilson_needs(HORIZON)
    many = 50 * runs
    result: dict[str, Any] = {
        "clean_spans": int(needed[0]),
        "false_opening": float(np.isfinite(opened(rng, EPSILON, many, needed, HORIZON)).mean()),
        "false_opening_exact": exact_opening(needed, EPSILON, HORIZON),
        "false_opening_wilson": float(np.isfinite(opened(rng, EPSILON, many, wilson, HORIZON)).mean()),
        "false_opening_runs": many,
    }
    for name, rate in (("tenth", 0.1), ("fifth", 0.2), ("half", 0.5)):
        at = opened(rng, rate * EPSILON, many, needed, HORIZON)
        result[f"power_{name}"] = {str(n): float((at <= n).mean()) for n in (5000, 10_000, 20_000, HORIZON)}
    return result


def measure_agreement(rng: np.random.Generator) -> int:
    """Runs in which the certificate itself opened exactly where the simulation says. Raises if one did not."""
    horizon, count = 12_000, 40
    needed = certificate_needs(horizon)
    for rate in rng.choice([0.1, 0.3, 1.0], count):
        places = slip_places(rng, rate * EPSILON, 1, len(needed))
        slips, certificate = set(places[0].tolist()), Certificate(Terms(EPSILON, DELTA))
        at = (span for span in range(1, horizon + 1) if observe(certificate, span in slips))
        assert next(at, np.inf) == openings(places, needed, horizon)[0]
    return count


def observe(certificate: Certificate, slip: bool) -> bool:
    certificate.observe(0.9999, slip, False)
    return certificate.opened


def measure_closing(rng: np.random.Generator, runs: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, restarting in (("chosen", True), ("shiryaev_roberts", False)):
        row: dict[str, Any] = {}
        for factor in (0.1, 0.5, 1.0):
            at = closings(rng, factor * EPSILON, runs, HORIZON, restarting)
            row[f"false_{factor:g}"] = float(np.isfinite(at).mean())
        for factor in (2.0, 5.0, 20.0, 100.0):
            at = closings(rng, factor * EPSILON, runs, 10 * HORIZON, restarting)
            row[f"median_{factor:g}"] = float(np.median(at))
            row[f"most_{factor:g}"] = float(np.quantile(at, 0.9))
        result[name] = row
    return result


def measure_answers(rng: np.random.Generator, runs: int) -> dict[str, Any]:
    """Answers of 100 spans, one in a hundred bad, each tenth span of a bad one a slip: epsilon in the long run."""
    result: dict[str, Any] = {}
    for name, stay in (("apart", 0.01), ("spells", 0.5)):
        result[f"bound_fails_{name}"] = float(exclusions(*bad_answers(rng, runs, 1000, 0.01, stay)).mean())
    runs, length = max(20, runs // 25), 100
    _, bad = bad_answers(rng, runs, HORIZON // length, 0.01, 0.01)
    ended = [certified(spans_of(row, length), length) for row in bad]
    released = sum(one.state.released for one in ended)
    result["span_certificate_opens"] = sum(one.state.openings > 0 for one in ended) / runs
    result["closings_per_run"] = sum(one.state.closings for one in ended) / runs
    result["released"] = released / (runs * HORIZON)
    result["slip_rate_released"] = sum(one.state.released_slips for one in ended) / max(1, released)
    result["answers_upper"] = float(np.median([one.report().answers_upper for one in ended]))
    return result


def measure_thresholds(rng: np.random.Generator, runs: int) -> dict[str, Any]:
    spans, wrong, right = 30_000, 0, 0
    needed = certificate_needs(spans)
    for run in range(runs):
        bands, slips = drawn_bands(rng, spans)
        passed = passes(bands, slips, needed)
        if run < runs // 100:
            assert passed == certified_passes(bands, slips)
        wrong += all(passed[:3])
        right += passed[0]
    return {"strict_passes": right / runs, "lax_counts_wrongly": wrong / runs, "spans": spans}


def measure_calibrated() -> dict[str, int]:
    """Clean spans to open where calibration, too, begins from nothing, by what the drafter states."""
    result = {}
    for stated in (0.99, 0.9, 0.7):
        certificate, calibration, spans = Certificate(Terms(EPSILON, DELTA)), Calibration(), 0
        while not certificate.opened:
            confidence = calibration.curve().of(stated)
            certificate.observe(confidence, False, False)
            calibration.observe(stated, True, confidence)
            spans += 1
        result[f"{stated:g}"] = spans
    return result


def rows(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What, measured, required."""
    o, c, a, t = (result[name] for name in ("opening", "closing", "answers", "thresholds"))
    chosen, other = c["chosen"], c["shiryaev_roberts"]
    return [
        (
            "opens at a rate of epsilon, looked at after each of 100,000 spans",
            f"{o['false_opening']:.2%}",
            "<= 5%",
        ),
        ("the same, exactly", f"{o['false_opening_exact']:.2%}", "<= 5%"),
        ("the same with a Wilson bound", f"{o['false_opening_wilson']:.1%}", "for comparison"),
        ("clean spans to open", f"{o['clean_spans']:,}", "<= 3,400"),
        *((f"and calibrated from nothing, stated {k}", f"{v:,}", "") for k, v in result["calibrated"].items()),
        ("opens at epsilon/10 by 10,000 spans", f"{o['power_tenth']['10000']:.1%}", ">= 90%"),
        ("opens at epsilon/5 by 20,000 spans", f"{o['power_fifth']['20000']:.1%}", ""),
        ("opens at epsilon/2 by 100,000 spans", f"{o['power_half'][str(HORIZON)]:.1%}", ""),
        *(
            (f"released spans to close at {k} epsilon, median (90%)", closing_cell(chosen, other, k), "")
            for k in ("2", "5", "20", "100")
        ),
        *(
            (f"false closings in 100,000 spans at {k} epsilon", f"{chosen[f'false_{k}']:.2%}", "few")
            for k in ("0.1", "0.5", "1")
        ),
        ("the same of Shiryaev-Roberts at epsilon", f"{other['false_1']:.2%}", "for comparison"),
        ("answers' bound ever fails, bad answers one by one", f"{a['bound_fails_apart']:.2%}", "<= 5%"),
        ("answers' bound ever fails, bad answers in spells", f"{a['bound_fails_spells']:.2%}", "<= 5%"),
        ("the span claim opens there (long-run rate: epsilon)", f"{a['span_certificate_opens']:.0%}", "see below"),
        ("slip rate of spans released then", f"{a['slip_rate_released']:.3%}", "see below"),
        ("answers' bound there (true: 1%), median", f"{a['answers_upper']:.1%}", ""),
        ("strict threshold passes, of four", f"{t['strict_passes']:.1%}", ""),
        ("a lax one above epsilon counts", f"{t['lax_counts_wrongly']:.2%}", "<= 5%"),
    ]


def closing_cell(chosen: dict[str, float], other: dict[str, float], factor: str) -> str:
    median, most = chosen[f"median_{factor}"], chosen[f"most_{factor}"]
    return f"{median:,.0f} ({most:,.0f}); Shiryaev-Roberts {other[f'median_{factor}']:,.0f}"


CLUSTERS = """
Where slips come in whole answers, the span claim is about spans one after another: while no bad answer has come,
each span was in fact unlikely to slip given what had been seen, and that is what it says. It cannot say that one
answer in a hundred goes wrong from end to end. The watch closes within such an answer; the answers' bound holds.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", dest="only_json")
    options = parser.parse_args()
    rng, runs = np.random.default_rng(options.seed), options.runs
    result: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "runs": runs, "seed": options.seed}
    for name, measured in (
        ("opening", lambda: measure_opening(rng, runs)),
        ("agreement", lambda: measure_agreement(rng)),
        ("calibrated", measure_calibrated),
        ("closing", lambda: measure_closing(rng, runs)),
        ("answers", lambda: measure_answers(rng, runs)),
        ("thresholds", lambda: measure_thresholds(rng, runs)),
    ):
        print(f"{name} ...", file=sys.stderr, flush=True)
        result[name] = measured()
    if not options.only_json:
        print(f"epsilon {EPSILON}, delta {DELTA}, {runs} runs\n\n| what | measured | required |\n|---|---|---|")
        for row in rows(result):
            print(f"| {' | '.join(row)} |")
        print(CLUSTERS)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
