"""Whether a drafter is asked."""

from hypothesis import given
from hypothesis import strategies as st

from grimboost.stages.draft_worth import PAUSE, DraftWorth

shares = st.floats(0.05, 0.9)


def asked(worth: DraftWorth, right: bool, commits: int) -> int:
    """Commits that asked, when every draft is right, or wrong."""
    count = 0
    for _ in range(commits):
        if worth.asking():
            count += 1
            worth.judge(right)
    return count


def test_without_a_break_even_share_every_commit_asks() -> None:
    assert asked(DraftWorth(0.0), False, 100) == 100


@given(shares)
def test_drafts_that_are_never_right_are_asked_for_one_in_four_times(share: float) -> None:
    worth = DraftWorth(share)
    asked(worth, False, 40)
    assert asked(worth, False, 20 * (PAUSE + 1)) == 20


@given(shares)
def test_drafts_that_are_always_right_are_always_asked_for_again(share: float) -> None:
    worth = DraftWorth(share)
    asked(worth, False, 400)
    asked(worth, True, (PAUSE + 1) * 20)
    assert asked(worth, True, 50) == 50
