"""The revealer: shows committed bytes, append-only, as far as the cascade allows.

Bytes that may be the beginning of a stop string are held back; the cascade says how far. A chunk may end
inside a UTF-8 character: the stream is bytes. It knows neither the target nor the reason of a hold.
"""

from grimboost import messages as m
from grimboost.stages.stage import undefined


class RevealerStage:
    """Buffers what is committed and not yet shown."""

    patience = None

    def __init__(self) -> None:
        self._held = b""
        self._shown = 0
        self._done = False

    @property
    def done(self) -> bool:
        return self._done

    def receive(self, message: m.RevealerInput) -> list[m.Message]:
        """A chunk for new bytes, `Done` behind the last."""
        match message:
            case m.Prefilled(done=done, total=total) if not self._done:
                return [m.Progress(done, total)]
            case m.Commit() if not self._done and self._follows(message):
                return self._reveal(message)
        raise undefined("revealer", "done" if self._done else "open", message)

    def _follows(self, commit: m.Commit) -> bool:
        """Whether it begins where the last one ended, and takes back nothing that was shown."""
        end = self._shown + len(self._held)
        return commit.offset == end and self._shown <= commit.reveal_to <= end + len(commit.data)

    def _reveal(self, commit: m.Commit) -> list[m.Message]:
        self._held += commit.data
        size = commit.reveal_to - self._shown
        shown, self._held = self._held[:size], self._held[size:]
        events: list[m.Message] = [m.Chunk(self._shown, shown)] if shown else []
        self._shown += len(shown)
        if commit.finish:
            self._done = True
            counts = commit.counts or m.Counts()
            events.append(m.Done(commit.finish, commit.ids, self._shown, counts, commit.error))
        return events
