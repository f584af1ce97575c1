"""How many threads a pass should use: all of the team, or one, whichever has been faster lately.

A team waits for its slowest thread, so beside a busy neighbour two threads can be many times slower than one
(measured: 37 ms against 6). Either choice gives the same bits, so it may change from pass to pass. It knows no
model and reads no clock.
"""

FORGET = 0.25
"""Weight of the newest time in the running mean."""

FIRST_PROBE = 32
LAST_PROBE = 1024
"""Passes until the other choice is tried again: doubled each time that it loses, up to the last."""


class _Kind:
    """Passes of about the same number of rows."""

    def __init__(self) -> None:
        self.seconds: dict[bool, float] = {}
        self.together = True
        self.until_probe = 2
        self.interval = FIRST_PROBE


class Pace:
    """Ask `together` before a pass, tell `observe` after it."""

    def __init__(self, threads: int) -> None:
        self._alone = threads == 1
        self._kinds: dict[int, _Kind] = {}
        self._probing = False

    def together(self, rows: int) -> bool:
        """Whether the whole team should run the next pass over so many rows."""
        if self._alone:
            return False
        kind = self._kinds.setdefault(rows.bit_length(), _Kind())
        kind.until_probe -= 1
        self._probing = kind.until_probe <= 0
        return kind.together is not self._probing

    def observe(self, rows: int, together: bool, seconds: float) -> None:
        """That pass took so long."""
        if self._alone:
            return
        kind = self._kinds[rows.bit_length()]
        per_row = seconds / rows
        before = kind.seconds.get(together)
        kind.seconds[together] = per_row if before is None else before + FORGET * (per_row - before)
        if self._probing:  # one fresh time says more than an old mean
            kind.seconds[together] = per_row
        best = kind.seconds.get(True, 0.0) <= kind.seconds.get(False, float("inf"))
        if best is not kind.together:
            kind.together, kind.interval, kind.until_probe = best, FIRST_PROBE, FIRST_PROBE
        elif self._probing:
            kind.interval = min(LAST_PROBE, 2 * kind.interval)
            kind.until_probe = kind.interval
