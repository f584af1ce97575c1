"""The revealer's way to the client: notes what passes and when, then waits for room.

From the events alone it knows the text that the client has, which part of it is final, the gaps between chunks,
and how long shown bytes waited for the target. It knows no stage.
"""

import time
from collections import deque

from grimboost import messages as m
from grimboost.histogram import Buckets
from grimboost.mailbox import Mailbox
from grimboost.spread import Spread, even_spread, spread

FIRST_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 640.0, 2560.0),
)
"""Seconds to the first byte. vLLM's bounds, which dashboards expect."""
BETWEEN_BOUNDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0),
    *(7.5, 10.0, 20.0, 40.0, 80.0),
)
"""Seconds between two chunks. vLLM's bounds, and four below them."""


class Pace:
    """How soon the first bytes and the next ones come, over all lanes that are given it."""

    def __init__(self) -> None:
        self.first, self.between = Buckets(FIRST_BOUNDS), Buckets(BETWEEN_BOUNDS)


class ClientLane:
    """An outlet in front of the client's mailbox."""

    def __init__(self, mailbox: Mailbox[m.ClientEvent], pace: Pace | None = None) -> None:
        self._mailbox = mailbox
        self._pace = pace or Pace()
        self.data = bytearray()
        self.begun = time.perf_counter()
        self.prefilled: float | None = None
        self.first_byte: float | None = None
        self.ended: float | None = None
        self.done: m.Done | None = None
        self.slips: list[m.Slip] = []
        self._latest: float | None = None
        self.gaps: list[float] = []
        self._final = 0
        self._unchecked: deque[tuple[int, float]] = deque()  # offset behind bytes shown, and when
        self.lags: list[int] = []
        self.waits: list[tuple[float, float]] = []  # seconds until bytes shown unchecked were final, and how many

    def post_nowait(self, item: m.ClientEvent) -> None:
        self._mailbox.post_nowait(item)

    async def send(self, item: m.ClientEvent) -> None:
        self._note(item, self.now())
        await self._mailbox.send(item)

    @staticmethod
    def now() -> float:
        """The clock of all its times."""
        return time.perf_counter()

    @property
    def gap_seconds(self) -> Spread | None:
        """Seconds between two chunks, None with fewer than two."""
        return even_spread(self.gaps)

    @property
    def audit_lag_bytes(self) -> Spread | None:
        """Bytes shown and not final, whenever something was shown unchecked; None if nothing ever was."""
        return even_spread(self.lags)

    @property
    def commit_seconds(self) -> Spread | None:
        """Seconds until a byte that was shown unchecked was final, over such bytes."""
        return spread(self.waits)

    @property
    def first_slip(self) -> int | None:
        """Offset of the first byte that the target would not have chosen."""
        return min((slip.offset for slip in self.slips), default=None)

    @property
    def final(self) -> int:
        """Bytes that are known to be final."""
        return self._final

    def _note(self, item: m.ClientEvent, now: float) -> None:
        match item:
            case m.Chunk(data=data, released=released):
                self._show(data, now, released)
            case m.Provisional(data=data):
                self._show(data, now, True)
            case m.CommittedTo(offset=offset):
                self._settle(offset, now)
            case m.Retracted(offset=offset):
                del self.data[offset:]
                while self._unchecked and self._unchecked[-1][0] > offset:
                    end, when = self._unchecked.pop()
                    begin = max(self._final, self._unchecked[-1][0] if self._unchecked else 0)
                    if begin < offset < end:
                        self._unchecked.append((offset, when))
            case m.Slipped(slip=slip):
                self.slips.append(slip)
            case m.Progress(done=done, total=total) if done >= total:
                self.prefilled = now
            case m.Done():
                self.done, self.ended = item, now

    def _show(self, data: bytes, now: float, unchecked: bool) -> None:
        self.data += data
        if self.first_byte is None:
            self.first_byte = now
            self._pace.first.add(now - self.begun)
        if self._latest is not None:
            self.gaps.append(now - self._latest)
            self._pace.between.add(now - self._latest)
        self._latest = now
        if unchecked:
            self._unchecked.append((len(self.data), now))
            self.lags.append(len(self.data) - self._final)
        else:
            self._final = len(self.data)

    def _settle(self, offset: int, now: float) -> None:
        """Everything before `offset` is final."""
        at = self._final
        while self._unchecked and at < offset:
            end, when = self._unchecked[0]
            upto = min(end, offset)
            if upto > at:
                self.waits.append((now - when, upto - at))
                at = upto
            if end <= offset:
                self._unchecked.popleft()
        self._final = offset
