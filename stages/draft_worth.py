"""Whether asking the drafter pays: drafts that are hardly ever right are asked for now and then only.

An answer costs time whether it is used or not: on a fast target as much as a tenth of a pass. So the share of
recent drafts whose first span was the target's is held against the break-even share; below it three of four
commits go on without a draft, and the fourth looks whether that has changed. It knows no bytes.
"""

WEIGHT = 0.15
"""Of the newest draft in the running share."""

BEGINNING = 0.6
"""Share that a generation begins with: five wrong drafts are allowed."""

PAUSE = 3
"""Commits without a draft between two that ask, where it does not pay."""


class DraftWorth:
    """Ask `asking` before a request, tell `judge` what became of each draft."""

    def __init__(self, break_even: float) -> None:
        self._break_even = break_even
        self._share = BEGINNING
        self._paused = 0

    def asking(self) -> bool:
        """Whether to ask now."""
        if self._share >= self._break_even or self._paused >= PAUSE:
            self._paused = 0
            return True
        self._paused += 1
        return False

    def judge(self, right: bool) -> None:
        """The latest draft began as the target went on, or not."""
        self._share += WEIGHT * (right - self._share)
