"""What a client that follows the events has on its screen, and the promises that each kind of event makes."""

from grimboost import messages as m


class Client:
    """Reads events as a client does, and checks the promises that each kind of event makes."""

    def __init__(self) -> None:
        self.text = b""
        self.committed = 0
        self.slips: list[m.Slip] = []

    def read(self, event: m.Message) -> None:
        match event:
            case m.Chunk(offset=offset, data=data, released=released):
                assert offset == len(self.text) and data
                self.text += data
                if not released:
                    assert offset >= self.committed
                    self.committed = len(self.text)
            case m.Provisional(offset=offset, data=data):
                assert offset == len(self.text) and data
                self.text += data
            case m.CommittedTo(offset=offset):
                assert self.committed < offset <= len(self.text)
                self.committed = offset
            case m.Retracted(offset=offset):
                assert self.committed <= offset < len(self.text)
                self.text = self.text[:offset]
            case m.Slipped(slip=slip):
                self.slips.append(slip)


def view(events: list[m.Message]) -> Client:
    """A client that has read all of them."""
    client = Client()
    for event in events:
        client.read(event)
    return client
