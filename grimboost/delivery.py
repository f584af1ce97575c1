"""What the client has in hand: which events it took, and how much of the text they amount to.

What the cascade committed, what the client was handed (delivered) and what it has dealt with (acknowledged) are
three offsets: a log that knew only the first would say things that the client never saw (case H4). An event counts
as acknowledged when the client asks for the next one. Pure: a replay computes the same from the same events.
"""

from grimboost import messages as m


class Delivery:
    """Tell it of each event that the client takes."""

    def __init__(self) -> None:
        self.delivered = 0
        self._events = 0

    def take(self, event: m.ClientEvent | None) -> m.Taken:
        """The client asked, and got `event`, or None: nothing more will come."""
        acknowledged = self.delivered
        match event:
            case m.Chunk(offset=offset, data=data) | m.Provisional(offset=offset, data=data):
                self.delivered = offset + len(data)
            case m.Retracted(offset=offset):
                self.delivered = offset
        number = None if event is None else self._events
        self._events += event is not None
        return m.Taken(number, self.delivered, acknowledged)
