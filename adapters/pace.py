"""How many threads a pass should use: all of the team, or one, whichever has been faster lately.

A team waits for its slowest thread, so beside a busy neighbour two threads can be many times slower than one
(measured: 37 ms against 6). Either choice gives the same bits, so it may change from pass to pass. The fastest of
the last few passes is what a choice is worth: a single pass may have been disturbed by anything. It knows no model
and reads no clock.
"""

from collections import deque

RECENT = 4
"""Passes that are remembered of each choice, and passes of a probe: the first ones after a change are slow."""

MARGIN = 0.95
"""The other choice must take less than this share of the time."""

FIRST_PROBE = 64
LAST_PROBE = 2048
"""Passes until the other choice is tried again: four times as many each time that it loses, up to the last."""

SUSPICIOUS = 1.5
"""Times the fastest pass ever: if none of the last few was below that, the other choice is tried at once."""

FEW_ROWS = 8
"""Passes over more rows are not tried both ways, which would be dear; they follow what was found with few."""


class _Kind:
    """Passes of about the same number of rows."""

    def __init__(self) -> None:
        self.together = True
        self.seconds: dict[bool, deque[float]] = {True: deque(maxlen=RECENT), False: deque(maxlen=RECENT)}
        self.interval = FIRST_PROBE
        self.until_probe = FIRST_PROBE
        self.probes_left = 0
        self.fastest = float("inf")
        self.since_probe = 0

    def next(self) -> bool:
        if self.probes_left:
            return not self.together
        self.until_probe -= 1
        if self.until_probe < 0:
            self.probes_left = RECENT
            self.seconds[not self.together].clear()
            return not self.together
        return self.together

    def observe(self, together: bool, seconds: float) -> None:
        self.seconds[together].append(seconds)
        self.fastest = min(self.fastest, seconds)
        self.since_probe += 1
        if together is self.together:
            self._compare()
            recent = self.seconds[together]
            slow = len(recent) == RECENT and min(recent) > SUSPICIOUS * self.fastest
            if slow and self.since_probe >= FIRST_PROBE // 2:
                self.until_probe = 0
        elif self.probes_left:
            self.probes_left -= 1
            self.since_probe = 0
            if not self.probes_left and not self._compare():
                self.until_probe, self.interval = self.interval, min(LAST_PROBE, 4 * self.interval)

    def _compare(self) -> bool:
        """Change the choice if the other one was faster, as far as both are known; whether it changed."""
        chosen, other = self.seconds[self.together], self.seconds[not self.together]
        if min(len(chosen), len(other)) < RECENT or min(other) >= MARGIN * min(chosen):
            return False
        self.together = not self.together
        self.interval = self.until_probe = FIRST_PROBE
        return True


class Pace:
    """Ask `together` before a pass, tell `observe` after it."""

    def __init__(self, threads: int) -> None:
        self._alone = threads == 1
        self._kinds: dict[int, _Kind] = {}
        self._latest: _Kind | None = None

    def together(self, rows: int) -> bool:
        """Whether the whole team should run the next pass over so many rows."""
        if self._alone:
            return False
        if rows > FEW_ROWS:
            return self._latest is None or self._latest.together
        self._latest = self._kinds.setdefault(rows.bit_length(), _Kind())
        return self._latest.next()

    def observe(self, rows: int, together: bool, seconds: float) -> None:
        """That pass took so long."""
        if not self._alone and rows <= FEW_ROWS:
            self._kinds[rows.bit_length()].observe(together, seconds / rows)
