"""What the answers of `bench.streaming` come to: checks, figures and tables. It runs nothing.

What each column says stands there. Without a value to speak of, a figure is None and its cell a dash.
"""

import sys
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from msgspec import Struct

from bench.overlap import LATEST, share
from grimboost.spread import Spread
from grimboost.stages.audit import common_prefix
from grimboost.statistics import Statistics

STRICT = "strict"
IDLE = "nothing runs"


class Way(Struct, frozen=True):
    """A contender: parameters by which one engine writes. `exact`: it has to end with the ids of strict mode."""

    name: str
    exact: bool
    options: dict[str, Any] = {}


class Answer(Struct, frozen=True):
    """One generation: its prompt's ids and its own, its bytes, and those on a client's screen at the end.

    `disturbed`: share of all processors that others took meanwhile. `chunks`: events that showed bytes.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    data: bytes
    screen: bytes
    chunks: int
    seconds: float
    disturbed: float
    statistics: Statistics


Turn = dict[str, Answer]
"""Way -> its answer to one prompt in one round."""

Turns = list[tuple[str, Turn]]
"""With the prompts' classes."""

Choices = Callable[[tuple[int, ...], tuple[int, ...]], list[int]]
"""(prompt, output) -> what a target chooses at each place of the output, given all before it."""


def note(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- checks


def check_ends(ways: list[Way], turns: Turns) -> dict[str, Any]:
    """Ways that have to end like strict mode; and what a client has on its screen."""
    wrong = []
    for kind, turn in turns:
        truth = turn[STRICT].ids, turn[STRICT].data
        for way in ways:
            answer = turn[way.name]
            if answer.screen != answer.data:
                wrong.append(f"{kind}: {way.name}: its screen is not its result")
            if way.exact and (answer.ids, answer.data) != truth:
                wrong.append(f"{kind}: {way.name}: its ids or bytes are not strict's")
    exact = ", ".join(way.name for way in ways if way.exact and way.name != STRICT)
    what = f"{exact} end with strict's ids and bytes; " if exact else ""
    return _checked(f"{what}each client's screen is the result", wrong, ways, turns)


def check_slips(who: str, choices: Choices, ways: list[Way], turns: Turns) -> dict[str, Any]:
    """Each place where the output is not what would have been chosen there is a slip that the engine names.

    Ways that end like strict mode have taken theirs back.
    """
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    wrong = []
    for place, (kind, turn) in enumerate(turns, 1):
        for way in ways:
            answer = turn[way.name]
            text = answer.prompt, answer.ids
            if text not in known:
                known[text] = choices(*text)
            found = differing(answer.ids, known[text])
            named = [] if way.exact else list(answer.statistics.slip_positions)
            if found != named:
                wrong.append(f"{kind}: {way.name}: named are {named}, audited {found}")
        note(f"audited by {who}: {place}/{len(turns)}")
    return _checked(f"slips are those of an offline audit by {who}", wrong, ways, turns)


def _checked(what: str, wrong: list[str], ways: list[Way], turns: Turns) -> dict[str, Any]:
    return {"what": what, "answers": len(ways) * len(turns), "wrong": wrong}


def differing(ids: Iterable[int], own: Iterable[int]) -> list[int]:
    """Places at which two sequences of one length differ."""
    return [place for place, (one, other) in enumerate(zip(ids, own, strict=True)) if one != other]


# ---------------------------------------------------------------- figures


def classes(turns: Turns, ways: list[Way]) -> dict[str, Any]:
    """Class (and "all") -> way -> figures."""
    kinds = [*dict.fromkeys(kind for kind, _ in turns), "all"]
    return {
        kind: {way.name: cell(way.name, [turn for k, turn in turns if kind in {k, "all"}]) for way in ways}
        for kind in kinds
    }


def cell(name: str, turns: list[Turn]) -> dict[str, float | None]:
    """One way over some turns; names say the unit."""
    own, strict = [turn[name] for turn in turns], [turn[STRICT] for turn in turns]
    tokens, passes, released = (total(own, field) for field in ("new_tokens", "target_passes", "released_tokens"))
    slips, shown = total(own, "slip_tokens"), total(own, "new_bytes")
    figures = [answer.statistics for answer in own]
    return {
        "coverage": share(sum(round(s.coverage * s.new_tokens) for s in figures), tokens),
        "released_tokens": released,
        "slip_tokens": slips,
        "slip_share": share(slips, released),
        "passes_per_1000_tokens": share(1000.0 * passes, tokens),
        "passes_ratio": share(passes, total(strict, "target_passes")),
        "tokens_per_second": speed(own),
        "speed_ratio": share(speed(own) or 0.0, speed(strict) or 0.0),
        "speed_ratio_median": middle(share(b.seconds, a.seconds) for a, b in zip(own, strict, strict=True)),
        "first_byte_ms": middle(milli(s.time_to_first_byte_seconds) for s in figures),
        "gap_p50_ms": middle(milli(of(s.gap_seconds, "p50")) for s in figures),
        "gap_p95_ms": middle(milli(of(s.gap_seconds, "p95")) for s in figures),
        "gap_ratio": middle(gap_ratio(a.statistics, b.statistics) for a, b in zip(own, strict, strict=True)),
        "as_strict": share(sum(common_prefix(a.data, b.data) for a, b in zip(own, strict, strict=True)), shown),
        "bytes_per_chunk": share(shown, sum(answer.chunks for answer in own)),
        "lag_p50_bytes": middle(of(s.audit_lag_bytes, "p50") for s in figures),
        "lag_p95_bytes": middle(of(s.audit_lag_bytes, "p95") for s in figures),
        "commit_p50_ms": middle(milli(of(s.commit_seconds, "p50")) for s in figures),
        "retracted_share": share(total(own, "retracted_bytes"), shown),
        "doubt_tokens": total(own, "doubt_tokens"),
        "takeover_tokens": total(own, "takeover_tokens"),
        "disturbed": max(answer.disturbed for answer in own),
    }


def total(answers: Iterable[Answer], field: str) -> float:
    """Sum of one of the statistics."""
    return sum(getattr(answer.statistics, field) for answer in answers)


def speed(answers: list[Answer]) -> float | None:
    """Tokens by seconds, the prefill included."""
    return share(total(answers, "new_tokens"), sum(answer.seconds for answer in answers))


def gap_ratio(own: Statistics, strict: Statistics) -> float | None:
    """Of the medians of two answers to one prompt."""
    one, other = of(own.gap_seconds, "p50"), of(strict.gap_seconds, "p50")
    return None if one is None or other is None else share(one, other)


def of(spread: Spread | None, quantile: str) -> float | None:
    """That quantile, where something was measured."""
    return None if spread is None else float(getattr(spread, quantile))


def milli(seconds: float | None) -> float | None:
    """The same in milliseconds."""
    return None if seconds is None else 1000.0 * seconds


def middle(values: Iterable[float | None]) -> float | None:
    """Median of those that are there."""
    found = [value for value in values if value is not None]
    return median(found) if found else None


# ---------------------------------------------------------------- tables

COLUMNS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("coverage", (("coverage", ".1%"),)),
    ("slips", (("slip_tokens", ".0f"),)),
    ("of released", (("slip_share", ".2%"),)),
    ("passes/1000 (sums)", (("passes_per_1000_tokens", ".0f"),)),
    ("ratio", (("passes_ratio", ".2f"),)),
    ("tokens/s (sums)", (("tokens_per_second", ".1f"),)),
    ("ratio", (("speed_ratio", ".2f"),)),
    ("first byte, ms", (("first_byte_ms", ".0f"),)),
    ("gap p50, p95, ms", (("gap_p50_ms", ".1f"), ("gap_p95_ms", ".1f"))),
    ("ratio of p50 (median)", (("gap_ratio", ".2f"),)),
    ("lag p50, p95, bytes", (("lag_p50_bytes", ".0f"), ("lag_p95_bytes", ".0f"))),
    ("commit p50, ms", (("commit_p50_ms", ".0f"),)),
    ("retracted", (("retracted_share", ".1%"),)),
)

CURVE_COLUMNS = COLUMNS[:7]

OVERLAP_COLUMNS = (
    ("draft time beside a pass", (("draft", ".0%"),)),
    ("pass time beside a draft", (("passing", ".1%"),)),
    ("time with both", (("wall", ".1%"),)),
    ("early bytes shown while a pass computes", (("released", ".0%"),)),
    ("is under way", (("released_under_way", ".0%"),)),
)

LATE_COLUMNS = tuple((name, ((name, ".1f"),)) for name in ("p50", "p99", "max"))


def table(columns: Iterable[Any], groups: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Class -> way -> figures, in Markdown. All classes together are worth a line where there are several."""
    columns = list(columns)
    lines = [row("class", "way", *(title for title, _ in columns)), "|---" * (len(columns) + 2) + "|"]
    several = len(groups) > (3 if IDLE in groups else 2)
    for kind, ways in groups.items():
        for name, figures in ways.items() if several or kind != "all" else ():
            lines.append(row(kind, name, *(", ".join(_cells(figures, parts)) for _, parts in columns)))
    return "\n".join(lines)


def row(*cells: str) -> str:
    """One line."""
    return f"| {' | '.join(cells)} |"


def _cells(figures: dict[str, Any], parts: Iterable[tuple[str, str]]) -> list[str]:
    return ["-" if figures[key] is None else format(figures[key], form) for key, form in parts]


def show(result: dict[str, Any]) -> None:
    """All tables, and what was checked."""
    names = ("target", "precision", "tokens", "prompts", "rounds")
    print("\n" + ", ".join(f"{name} {result[name]}" for name in names) + f"; {result['kernels']}\n")
    print(table(CURVE_COLUMNS if result["curve"] else COLUMNS, result["classes"]), end="\n\n")
    if "overlap" in result:
        print(table(OVERLAP_COLUMNS, result["overlap"]), end="\n\n")
        worst = max(one["max"] for one in result["heartbeat_ms"]["all"].values())
        kept = "kept" if worst <= 1000 * LATEST else "NOT kept"
        print(f"A sleep of 5 ms on the event loop comes late by, ms (limit {1000 * LATEST:.0f}: {kept})\n")
        print(table(LATE_COLUMNS, result["heartbeat_ms"]), end="\n\n")
    for check in result["checks"]:
        wrong = len(check["wrong"])
        state = f"NOT in {wrong}" if wrong else "yes"
        print(f"checked: {check['what']}: {state} ({check['answers']} answers)")
        for line in check["wrong"]:
            print(f"    {line}")
