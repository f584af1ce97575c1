"""The revealer: shows what the cascade commits and releases, as far as the cascade allows.

Bytes that may be the beginning of a stop string are held back; the cascade says how far. A chunk may end
inside a UTF-8 character: the stream is bytes. Append-only, but for a client that asked for revisable events: it
alone is told to take back what the target refused. It knows neither the target nor the reason of a hold.
"""

from grimboost import messages as m
from grimboost.stages.audit import common_prefix
from grimboost.stages.configuration import RevealerConfig
from grimboost.stages.stage import undefined


class RevealerStage:
    """Keeps the bytes that are not both committed and shown."""

    patience = None

    def __init__(self, config: RevealerConfig | None = None) -> None:
        self._config = config or RevealerConfig()
        self._committed = 0
        self._shown = 0
        self._certain = 0  # offset before which bytes are committed, and no stop string will take them back
        self._final = 0  # offset before which the client knows that everything is final
        self._start = 0  # offset of `_text`: nothing before it is of use any more
        self._text = b""  # from there on, what is committed and then what is released
        self._done = False

    @property
    def done(self) -> bool:
        return self._done

    @property
    def _end(self) -> int:
        return self._start + len(self._text)

    def receive(self, message: m.RevealerInput) -> list[m.Message]:
        """Events for the client, `Done` behind the last."""
        match message:
            case m.Prefilled(done=done, total=total) if not self._done:
                return [m.Progress(done, total)]
            case m.Reveal() if not self._done and self._follows(message):
                self._text += message.data
                return self._show(message.reveal_to)
            case m.Commit() if not self._done and self._stands_on(message):
                return self._commit(message)
        raise undefined("revealer", "done" if self._done else "open", message)

    def _follows(self, message: m.Reveal) -> bool:
        end = message.offset + len(message.data)
        return message.offset == self._end and self._shown <= message.reveal_to <= end

    def _stands_on(self, commit: m.Commit) -> bool:
        """Whether it joins on, keeps what is said to stand, and takes back only what may be taken back."""
        released = self._text[self._committed - self._start :]
        end = len(commit.data) + commit.standing
        same = common_prefix(released, commit.data)
        stands = not commit.standing or (same == len(commit.data) and end <= len(released))
        kept = min(commit.reveal_to, self._committed + (end if same == len(commit.data) else same))
        joins = commit.offset == self._committed and commit.reveal_to <= self._committed + end
        return joins and stands and (self._config.revisable or kept >= self._shown)

    def _commit(self, commit: m.Commit) -> list[m.Message]:
        events: list[m.Message] = [m.Slipped(slip) for slip in commit.slips]
        events += self._replace(commit)
        self._committed += len(commit.data)
        if commit.finish:
            events += self._retract(commit.reveal_to)
        self._certain = self._committed if commit.certain_to is None else commit.certain_to
        final = min(self._shown, self._certain)
        if self._config.streaming and final > self._final:
            self._final = final
            events.append(m.CommittedTo(final))
        events += self._show(commit.reveal_to)
        if commit.finish:
            self._done = True
            counts = commit.counts or m.Counts()
            events.append(m.Done(commit.finish, commit.ids, self._shown, counts, commit.error))
        return events

    def _replace(self, commit: m.Commit) -> list[m.Message]:
        """Put the committed bytes where the released ones were; from the first that differs these are void."""
        place = commit.offset - self._start
        released = self._text[place:]
        same = common_prefix(released, commit.data)
        end = len(commit.data) + commit.standing
        differs = same < min(len(released), len(commit.data))
        self._text = self._text[:place] + commit.data + released[len(commit.data) : end]
        return self._retract(commit.offset + (same if differs else end))

    def _retract(self, to: int) -> list[m.Message]:
        """Nothing shown from there on stands."""
        if self._shown <= to:
            return []
        self._shown = to
        return [m.Retracted(to)]

    def _show(self, reveal_to: int) -> list[m.Message]:
        """New bytes up to there: those that are final, then those that are not."""
        events: list[m.Message] = []
        for to, released in ((min(reveal_to, self._certain), False), (reveal_to, True)):
            if to > self._shown:
                data = self._text[self._shown - self._start : to - self._start]
                if released and self._config.revisable:
                    events.append(m.Provisional(self._shown, data))
                else:
                    events.append(m.Chunk(self._shown, data, released))
                self._shown = to
                self._final = self._final if released else to
        keep = min(self._shown, self._committed)
        self._text, self._start = self._text[keep - self._start :], keep
        return events
