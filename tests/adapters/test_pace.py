"""How many threads a pass uses."""

from grimboost.adapters.pace import FIRST_PROBE, LAST_PROBE, RECENT, Pace


def run(pace: Pace, passes: int, team: float, one: float, rows: int = 1) -> list[bool]:
    """Which passes ran together, when these are the seconds of either way."""
    chosen = []
    for _ in range(passes):
        together = pace.together(rows)
        pace.observe(rows, together, team if together else one)
        chosen.append(together)
    return chosen


def test_one_thread_is_always_alone() -> None:
    assert not any(run(Pace(1), 100, 1.0, 2.0))


def test_the_team_stays_where_it_is_faster_and_is_hardly_ever_doubted() -> None:
    chosen = run(Pace(2), 5000, 1.0, 1.4)
    assert all(chosen[:FIRST_PROBE])
    assert chosen.count(False) == 5 * RECENT  # behind 64, 64, 256, 1024 and 2048 passes


def test_a_busy_neighbour_is_noticed_and_its_end_too() -> None:
    pace = Pace(2)
    assert all(run(pace, 50, 4.0, 6.0))
    beside = run(pace, 40, 37.0, 6.0)
    assert beside.count(True) <= 2 * RECENT
    after = run(pace, 4 * LAST_PROBE, 4.0, 6.0)
    assert all(after[-100:])


def test_slow_from_the_beginning_is_noticed_too() -> None:
    chosen = run(Pace(2), 200, 37.0, 6.0)
    assert not any(chosen[-50:])


def test_one_disturbed_pass_changes_nothing() -> None:
    pace = Pace(2)
    run(pace, 20, 4.0, 6.0)
    run(pace, RECENT - 1, 90.0, 6.0)
    assert all(run(pace, 30, 4.0, 6.0))


def test_long_passes_follow_what_was_found_with_short_ones() -> None:
    pace = Pace(2)
    assert all(run(pace, 10, 9.0, 1.0, rows=64))
    run(pace, 200, 37.0, 6.0)
    assert not any(run(pace, 10, 9.0, 1.0, rows=64))
    assert not any(run(pace, 10, 1.0, 9.0, rows=64))
