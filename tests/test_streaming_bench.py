"""The pure parts of bench/streaming: intervals and logs, figures of answers, and checks that can fail."""

import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from grimboost import messages as m
from grimboost.adapters.scripted_target import ScriptedTarget
from grimboost.adapters.vocabulary import Vocabulary
from grimboost.log import LogEntry
from grimboost.spread import Spread
from grimboost.statistics import Statistics

ROOT = Path(__file__).parent.parent


def _loaded(name: str) -> ModuleType:
    """A module of bench/, which is no package and on no path."""
    package = sys.modules.setdefault("bench", ModuleType("bench"))
    package.__path__ = [str(ROOT / "bench")]
    return import_module(f"bench.{name}")


overlap = _loaded("overlap")
report = _loaded("streaming_report")
auditor = _loaded("offline_audit")
bench = _loaded("streaming")

# ---------------------------------------------------------------- intervals

LINE = 40
whole = st.integers(0, LINE)
intervals = st.lists(st.tuples(whole, whole).map(lambda ends: (min(ends), max(ends))), max_size=8)


def moments(found: list[tuple[float, float]]) -> set[int]:
    """The slow way: each unit of the line that one of them covers."""
    return {place for begin, end in found for place in range(int(begin), int(end))}


def assert_tidy(found: list[tuple[float, float]]) -> None:
    """Ascending, disjoint and none empty."""
    assert all(begin < end for begin, end in found)
    assert all(one[1] <= other[0] for one, other in pairwise(found))


@given(intervals)
def test_a_union_covers_the_same_moments_once(some: list[tuple[float, float]]) -> None:
    found = overlap.union(some)
    assert_tidy(found)
    assert all(one[1] < other[0] for one, other in pairwise(found))
    assert moments(found) == moments(some)
    assert overlap.length(found) == len(moments(some))


@given(intervals, intervals)
def test_common_moments_are_those_of_both(
    some: list[tuple[float, float]], others: list[tuple[float, float]]
) -> None:
    found = overlap.common(overlap.union(some), overlap.union(others))
    assert_tidy(found)
    assert moments(found) == moments(some) & moments(others)
    assert overlap.length(found) == len(moments(some) & moments(others))


@given(intervals, whole)
def test_a_moment_lies_within_where_it_is_covered(some: list[tuple[float, float]], moment: int) -> None:
    assert overlap.within(moment, overlap.union(some)) == (moment in moments(some))


# ---------------------------------------------------------------- logs


def drafted(at: float, seconds: float) -> LogEntry:
    return LogEntry(0, at, "drafter", m.DraftReturned(1, 0, 0, 0, (), (), seconds), ())


def asked(at: float, number: int, choose: int = 1) -> LogEntry:
    return LogEntry(0, at, "verifier", m.Opened(), (m.PassRequested(number, 0, (7,), choose),))


def passed(at: float, number: int, seconds: float, choices: int = 1) -> LogEntry:
    return LogEntry(0, at, "verifier", m.PassReturned(number, (m.Choice(7, b"x", 1.0),) * choices, 1, seconds), ())


def shown(at: float, *events: Any) -> LogEntry:
    return LogEntry(0, at, "revealer", m.Reveal(0, b"", 0), events)


LOG = [
    asked(0.0, 1, 0),
    drafted(2.0, 1.0),  # beside the prefill, which is no decoding
    passed(10.0, 1, 9.0, 0),
    asked(10.0, 2),
    shown(10.5, m.Chunk(0, b"abc", True)),  # the pass is under way, and computes from 12 on
    drafted(14.0, 4.0),
    shown(15.0, m.Provisional(3, b"de"), m.Chunk(5, b"checked")),
    passed(20.0, 2, 8.0),
    shown(21.0, m.Chunk(12, b"f", True)),
    asked(22.0, 3),
    drafted(24.0, 1.0),
    passed(32.0, 3, 8.0),
]


def test_a_log_says_what_ran_beside_what() -> None:
    found = overlap.trace(LOG)
    assert found.passes == [(12.0, 20.0), (24.0, 32.0)]
    assert found.under_way == [(10.0, 20.0), (22.0, 32.0)]
    assert found.drafts == [(12.0, 14.0), (23.0, 24.0)]
    assert found.wall == 20.0
    assert found.released == [(10.5, 3), (15.0, 2), (21.0, 1)]
    assert overlap.shares([found, found]) == overlap.Shares(2 / 3, 2 / 16, 2 / 20, 2 / 6, 5 / 6)


def test_a_log_in_which_nothing_happened_has_no_shares() -> None:
    assert overlap.shares([overlap.trace([])]) == overlap.Shares(None, None, None, None, None)


async def test_a_heartbeat_feels_what_holds_the_loop() -> None:
    async with overlap.heartbeat() as late:
        await checkpoint()
        begin = overlap.time.perf_counter()
        while overlap.time.perf_counter() - begin < 0.06:
            pass
    assert max(late) > 0.05


# ---------------------------------------------------------------- figures

counts = st.integers(1, 50)
seconds = st.floats(0.01, 10.0)


def answer(ids: tuple[int, ...] = (1, 2), data: bytes = b"ab", **values: Any) -> Any:
    """An answer whose statistics are `values`, and nothing else."""
    own = {name: values.pop(name) for name in ("screen", "seconds", "chunks") if name in values}
    zeros = dict.fromkeys(Statistics.__struct_fields__[: -len(Statistics.__struct_defaults__)], 0)
    figures = Statistics(**{**zeros, "new_tokens": len(ids), "new_bytes": len(data), **values})
    return report.Answer(
        prompt=(9,),
        ids=ids,
        data=data,
        screen=own.get("screen", data),
        chunks=own.get("chunks", 1),
        seconds=own.get("seconds", 1.0),
        disturbed=0.0,
        statistics=figures,
    )


@given(st.lists(st.tuples(counts, counts, counts, seconds, seconds), min_size=1, max_size=6))
def test_passes_and_speed_are_sums_over_sums(turns: list[tuple[int, int, int, float, float]]) -> None:
    made = [
        {
            "strict": answer(new_tokens=tokens, target_passes=plain, seconds=slow),
            "way": answer(new_tokens=tokens, target_passes=passes, seconds=fast),
        }
        for tokens, plain, passes, slow, fast in turns
    ]
    figures = report.cell("way", made)
    tokens, plain, passes, slow, fast = (sum(column) for column in zip(*turns, strict=True))
    assert figures["passes_per_1000_tokens"] == pytest.approx(1000 * passes / tokens)
    assert figures["passes_ratio"] == pytest.approx(passes / plain)
    assert figures["tokens_per_second"] == pytest.approx(tokens / fast)
    assert figures["speed_ratio"] == pytest.approx(slow / fast)
    assert report.cell("strict", made)["speed_ratio"] == pytest.approx(1.0)


def test_gaps_are_compared_turn_by_turn() -> None:
    gaps = [(0.010, 0.020), (0.030, 0.020), (0.040, 0.010), (None, 0.010)]
    turns = [
        {
            "way": answer(gap_seconds=None if own is None else Spread(p50=own, p95=2 * own)),
            "strict": answer(gap_seconds=Spread(p50=plain)),
        }
        for own, plain in gaps
    ]
    figures = report.cell("way", turns)
    assert figures["gap_ratio"] == pytest.approx(1.5)
    assert figures["gap_p50_ms"] == pytest.approx(30.0)
    assert figures["gap_p95_ms"] == pytest.approx(60.0)


def test_coverage_slips_and_retractions_are_sums_over_sums() -> None:
    few = answer((1,) * 10, b"x" * 20, coverage=0.1, released_tokens=4, slip_tokens=1, retracted_bytes=5)
    many = answer((1,) * 30, b"x" * 60, coverage=0.9, released_tokens=28, slip_tokens=1, chunks=3)
    plain = answer()
    figures = report.cell("way", [{"way": few, "strict": plain}, {"way": many, "strict": plain}])
    assert figures["coverage"] == pytest.approx(28 / 40)
    assert figures["slip_share"] == pytest.approx(2 / 32)
    assert figures["retracted_share"] == pytest.approx(5 / 80)
    assert figures["bytes_per_chunk"] == pytest.approx(80 / 4)
    other = {"way": answer(data=b"abcd"), "strict": answer(data=b"abdd")}
    assert report.cell("way", [other, {"way": plain, "strict": plain}])["as_strict"] == pytest.approx(4 / 6)
    nothing = report.cell("way", [{"way": plain, "strict": plain}])
    assert nothing["slip_share"] is None
    assert nothing["lag_p50_bytes"] is None


def test_every_column_of_the_tables_has_its_figure() -> None:
    turns = [("chat", {"strict": answer()}), ("code", {"strict": answer()})]
    groups = report.classes(turns, [report.Way("strict", True)])
    for columns in (report.COLUMNS, report.CURVE_COLUMNS):
        lines = report.table(columns, groups).splitlines()
        assert [line.split("|")[1].strip() for line in lines[2:]] == ["chat", "code", "all"]
        assert len({line.count("|") for line in lines}) == 1
    shares = msgspec.to_builtins(overlap.shares([overlap.trace(LOG)]))
    one = report.table(report.OVERLAP_COLUMNS, {"chat": {"strict": shares}, "all": {"strict": shares}})
    assert len(one.splitlines()) == 3  # one class is all there is
    assert report.table(report.LATE_COLUMNS, {"chat": {"strict": bench.summary([0.001])}}).endswith(
        "| 1.0 | 1.0 | 1.0 |"
    )


# ---------------------------------------------------------------- checks

EXACT, LOOSE = report.Way("never", True), report.Way("continue", False)
WAYS = [report.Way("strict", True), EXACT, LOOSE]


def turn(**others: Any) -> list[Any]:
    return [("chat", {"strict": answer(), "never": answer(), "continue": answer(), **others})]


def test_ways_that_end_like_strict_mode_are_held_to_it() -> None:
    assert report.check_ends(WAYS, turn())["wrong"] == []
    assert report.check_ends(WAYS, turn(**{"continue": answer((1, 3), b"ac")}))["wrong"] == []
    assert report.check_ends(WAYS, turn(never=answer((1, 3))))["wrong"]
    assert report.check_ends(WAYS, turn(never=answer(data=b"ac")))["wrong"]
    assert report.check_ends(WAYS, turn(**{"continue": answer(screen=b"a")}))["wrong"]


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.sets(st.integers(0, 7)))
def test_slips_have_to_be_those_of_the_audit(slips: list[bool], named: set[int]) -> None:
    ids = tuple(2 * place + slip for place, slip in enumerate(slips))
    made = answer(ids, b"", slip_positions=tuple(sorted(named)))
    check = report.check_slips(
        "a test",
        lambda _, output: [2 * place for place in range(len(output))],
        [LOOSE],
        [("chat", {"continue": made})],
    )
    right = named == {place for place, slip in enumerate(slips) if slip}
    assert bool(check["wrong"]) != right


@given(st.binary(min_size=1, max_size=90), st.binary(min_size=1, max_size=5))
def test_the_audit_asks_for_the_choice_at_each_place(output: bytes, prompt: bytes) -> None:
    """A target whose choice depends on all before it, asked token by token."""

    def continuation(prefix: Any) -> int:
        return (sum(prefix) + len(prefix)) % 256

    target = ScriptedTarget(Vocabulary([bytes([byte]) for byte in range(256)]), continuation)
    choices = auditor.target_choices(target)
    found = choices(tuple(prompt), tuple(output))
    assert found == [continuation([*prompt, *output[:place]]) for place in range(len(output))]
    assert target.open_slots == 0


# ---------------------------------------------------------------- contenders


def test_each_way_keeps_its_evidence_apart() -> None:
    ways = bench.all_ways([0.8, 0.9, 0.9], 0.8, False)
    assert [way.name for way in ways] == ["strict", "continue 0.8", "continue 0.9", "retract 0.8", "never"]
    assert [way.name for way in ways if way.exact] == ["strict", "retract 0.8", "never"]
    domains = [way.options.get("domain") for way in ways]
    assert len(set(domains)) == len(ways)
    assert len(bench.all_ways(bench.CURVE, 0.5, True)) == 1 + len(bench.CURVE)


def test_a_screen_shows_what_stands() -> None:
    screen = bench.Screen()
    for event in (m.Chunk(0, b"ab"), m.Provisional(2, b"cd"), m.Retracted(3), m.CommittedTo(3), m.Chunk(3, b"e")):
        screen.read(event)
    assert bytes(screen.data) == b"abce"
    assert screen.chunks == 3
    with pytest.raises(SystemExit):
        screen.read(m.Chunk(9, b"f"))
