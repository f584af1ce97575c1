"""How far the gate is trusted after an error: the cascade's state machine, as a table.

::

    state      event       next       what happens
    verified   slip        doubt      until an interval behind the slip is verified, nothing is released
    doubt      failure     repair     the interval is doubled
    repair     failure     repair     doubled again
    repair     exhausted   takeover   the target makes some tokens by itself, nothing is drafted
    any other  old slip    the same   shown before the doubt began: the interval starts anew behind it
    any other  passed      verified   the frontier has left the interval, and a takeover is over

A *slip* is a mismatch in what was shown. A *failure* is a mismatch in what was drafted after the doubt began: the
repair span, which is verified without exception. A mismatch in what the gate had held back by itself, while
it was trusted, is a normal correction: it says nothing against the gate, and changes no state.

Every state is left: doubt and repair end at an offset which moves only with failures, and these are counted; a
takeover ends after so many tokens. It knows offsets and counts, neither bytes nor the target.
"""

from enum import StrEnum

from grimboost.stages.configuration import TrustConfig


class Trust(StrEnum):
    """State of the machine."""

    VERIFIED = "verified"
    DOUBT = "doubt"
    REPAIR = "repair"
    TAKEOVER = "takeover"


class Event(StrEnum):
    """What moves it."""

    SLIP = "slip"
    OLD_SLIP = "old slip"
    FAILURE = "failure"
    EXHAUSTED = "repairs exhausted"
    PASSED = "passed"


TRANSITIONS: dict[tuple[Trust, Event], Trust] = {
    (Trust.VERIFIED, Event.SLIP): Trust.DOUBT,
    (Trust.DOUBT, Event.OLD_SLIP): Trust.DOUBT,
    (Trust.DOUBT, Event.FAILURE): Trust.REPAIR,
    (Trust.DOUBT, Event.EXHAUSTED): Trust.TAKEOVER,
    (Trust.DOUBT, Event.PASSED): Trust.VERIFIED,
    (Trust.REPAIR, Event.OLD_SLIP): Trust.REPAIR,
    (Trust.REPAIR, Event.FAILURE): Trust.REPAIR,
    (Trust.REPAIR, Event.EXHAUSTED): Trust.TAKEOVER,
    (Trust.REPAIR, Event.PASSED): Trust.VERIFIED,
    (Trust.TAKEOVER, Event.OLD_SLIP): Trust.TAKEOVER,
    (Trust.TAKEOVER, Event.PASSED): Trust.VERIFIED,
}


class TrustMachine:
    """Tell it of mismatches and of the frontier; it says until where nothing may be released."""

    def __init__(self, config: TrustConfig) -> None:
        self._config = config
        self.state = Trust.VERIFIED
        self.takeovers = 0
        self.doubt_until = 0  # output offset
        self._interval = 0
        self._repairs = 0
        self._alone_until = 0  # count of output tokens

    def alone(self, tokens: int) -> int:
        """Tokens that are left of a takeover when the output has `tokens`."""
        return max(0, self._alone_until - tokens) if self.state is Trust.TAKEOVER else 0

    def slipped(self, behind: int) -> None:
        """A shown token was wrong; `behind` is the offset behind it, or behind what took its place.

        While the gate is not trusted nothing is released, so then it was shown before that began.
        """
        if self.state is Trust.VERIFIED:
            self._move(Event.SLIP)
            self._interval, self._repairs = self._config.doubt_bytes, 0
        else:
            self._move(Event.OLD_SLIP)
        self._doubt(behind)

    def corrected(self, frontier: int, tokens: int) -> None:
        """Drafted bytes that were not shown were wrong; with the correction the frontier is `frontier`."""
        if self.state in {Trust.DOUBT, Trust.REPAIR}:
            self._fail(frontier, tokens)

    def advanced(self, frontier: int, tokens: int) -> None:
        """The output has come to `frontier` bytes and `tokens` tokens."""
        over = frontier >= self.doubt_until
        if self.state is Trust.TAKEOVER:
            over = over and tokens >= self._alone_until
        if over and self.state is not Trust.VERIFIED:
            self._move(Event.PASSED)

    def _fail(self, behind: int, tokens: int) -> None:
        self._repairs += 1
        if self._repairs > self._config.max_repairs:
            self._move(Event.EXHAUSTED)
            self.takeovers += 1
            self._alone_until = tokens + self._config.takeover_tokens
            self.doubt_until = behind
        else:
            self._move(Event.FAILURE)
            self._interval *= 2
            self._doubt(behind)

    def _doubt(self, behind: int) -> None:
        self.doubt_until = max(self.doubt_until, behind + self._interval)

    def _move(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]
