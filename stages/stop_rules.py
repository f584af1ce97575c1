"""Where a generation ends, decided once, for bytes, ids, cache, usage and log alike.

The rule, in the order in which it is tested on each token:

1. an end-of-sequence id ends with `stop`; the id belongs to the output and has no bytes;
2. a stop string, looked for in output bytes, ends with `stop` at the byte where it begins. The one whose last
   byte comes first wins, then the one that begins first. Output ids are then the tokens that lie wholly
   before the cut; the head of a token that straddles it is output bytes without an id;
3. a token that would exceed the byte budget ends with `length` before that token;
4. the token budget, the byte budget and the context limit (prompt and output together) end with `length`.

So on the same token `stop` wins over `length`, and no budget is ever exceeded. While no stop string is
complete, bytes that may be the beginning of one are held back, exactly: the longest suffix of the output that
is a proper prefix of a stop string. The result does not depend on how tokens are grouped into blocks.

This module knows nothing of messages or of the target.
"""

from collections.abc import Sequence

from msgspec import Struct

from grimboost.messages import FinishReason, PathToken
from grimboost.stages.configuration import CascadeConfig


class Taken(Struct, frozen=True):
    """What became of some tokens: those kept, their bytes, how far bytes may be shown, and the end if any.

    `reveal_to` is an output offset. With `finish`, `ids` of the whole output and `length` bytes are final.
    """

    tokens: tuple[PathToken, ...]
    data: bytes
    reveal_to: int
    finish: FinishReason | None


class StopRules:
    """Follows one output; `take` is called with each group of committed tokens until it says `finish`."""

    def __init__(self, config: CascadeConfig, prompt_tokens: int) -> None:
        self._config = config
        self._budget = min(config.max_new_tokens, config.context_limit - prompt_tokens)
        self._end_ids = frozenset(config.end_ids)
        self._window = max((len(stop) for stop in config.stop), default=1) - 1
        self._tail = b""  # last bytes of the output, as many as an unfinished stop string may need
        self._ends: list[int] = []  # output offset at which each kept token ends
        self.ids: list[int] = []
        self.length = 0
        self.finish: FinishReason | None = None

    @property
    def more(self) -> int:
        """Further tokens that the budgets allow; 0 once finished."""
        return 0 if self.finish else self._budget - len(self.ids)

    def begin(self) -> FinishReason | None:
        """Whether there is no room for even one token."""
        if self._budget <= 0 or self._config.max_new_bytes == 0:
            self.finish = FinishReason.LENGTH
        return self.finish

    def take(self, tokens: Sequence[PathToken]) -> Taken:
        """Append tokens until one ends the output. Tokens behind the end are dropped."""
        first_id, first_byte, data = len(self.ids), self.length, b""
        for token in tokens:
            data += self._append(token)
            if self.finish:
                break
        # A stop string may have begun in earlier tokens: then nothing of these is left.
        data = data[: max(0, self.length - first_byte)]
        kept = tuple(tokens[: max(0, len(self.ids) - first_id)])
        return Taken(kept, data, self.length - self._held(), self.finish)

    def preview(self, data: bytes) -> tuple[int, bool]:
        """How far output may be shown if `data` follows and is not certain; whether a stop string would end it.

        What is shown alone must not end like the beginning of a stop string: the bytes behind it that rule one
        out may never become final.
        """
        text, base, cut = self._tail + data, self.length - len(self._tail), self._stop_string(data)
        sure = self.length - self._held()
        reveal_to = self.length + len(data) if cut is None else cut
        while reveal_to > sure and (held := self._held_of(text[: reveal_to - base])):
            reveal_to -= held
        return max(sure, reveal_to), cut is not None

    def allows(self, tokens: int, size: int, last_id: int) -> bool:
        """Whether so many further tokens of `size` bytes, the last of that id, would all be output."""
        limit = self._config.max_new_bytes
        fits = limit is None or self.length + size <= limit
        return fits and tokens <= self.more and last_id not in self._end_ids

    def output_data(self, token: PathToken) -> bytes:
        """The token's bytes in the output; none for an end of sequence."""
        return b"" if token.id in self._end_ids else token.data

    def stop_now(self, reason: FinishReason) -> int:
        """End from outside (cancelled, error). Returns the output's length; nothing is held back."""
        self.finish = reason
        return self.length

    def _append(self, token: PathToken) -> bytes:
        if token.id in self._end_ids:
            self._keep(PathToken(token.id, b""))  # some vocabularies give it bytes; they are not output
            self.finish = FinishReason.STOP
            return b""
        cut = self._stop_string(token.data)
        limit = self._config.max_new_bytes
        if cut is not None and (limit is None or cut <= limit):
            self._cut_at(cut)
            return token.data
        if limit is not None and self.length + len(token.data) > limit:
            self.finish = FinishReason.LENGTH
            return b""
        self._keep(token)
        if len(self.ids) >= self._budget or self.length == limit:
            self.finish = FinishReason.LENGTH
        return token.data

    def _keep(self, token: PathToken) -> None:
        self.ids.append(token.id)
        self.length += len(token.data)
        self._ends.append(self.length)
        self._tail = (self._tail + token.data)[-self._window :] if self._window else b""

    def _stop_string(self, data: bytes) -> int | None:
        """Output offset at which the stop string begins that `data` completes first, if any."""
        text, base = self._tail + data, self.length - len(self._tail)
        found = [
            (at + len(stop), at)
            for stop in self._config.stop
            if (at := _ending_after(text, stop, self._tail)) >= 0
        ]
        return base + min(found)[1] if found else None

    def _cut_at(self, cut: int) -> None:
        """Make `cut` the end of bytes, and drop ids that do not lie wholly before it."""
        self.finish, self.length, self._tail = FinishReason.STOP, cut, b""
        while self._ends and self._ends[-1] > cut:
            self._ends.pop()
            self.ids.pop()

    def _held(self) -> int:
        return 0 if self.finish else self._held_of(self._tail)

    def _held_of(self, tail: bytes) -> int:
        held = 0
        for stop in self._config.stop:
            for size in range(min(len(stop) - 1, len(tail)), held, -1):
                if tail.endswith(stop[:size]):
                    held = size
                    break
        return held


def _ending_after(text: bytes, stop: bytes, tail: bytes) -> int:
    """Start of the first occurrence of `stop` that ends behind `tail`; -1 if none."""
    return text.find(stop, max(0, len(tail) - len(stop) + 1))
