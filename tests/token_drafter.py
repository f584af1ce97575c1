"""A drafter with a tokenizer of its own, as a neural one has: BOS, positions, a cache that is cut and fed again.

Case A4 in a few lines: its cache always holds BOS and then tokens that spell the committed bytes, and it checks
that itself at every step.
"""

from collections.abc import Sequence

from grimboost.adapters.drafter import Proposal
from grimboost.adapters.scripted_target import NextToken, ScriptedTarget
from grimboost.adapters.segmentation import LongestMatchSegmenter
from grimboost.adapters.target import Chosen, Rows
from grimboost.adapters.vocabulary import Vocabulary
from grimboost.messages import DraftToken
from grimboost.stages.sampling_rule import SamplingRule


def byte_driven(vocabulary: Vocabulary, text: bytes) -> NextToken:
    """What follows a prefix in `text`, by longest match; behind the end the last id, a control token."""
    segmenter = LongestMatchSegmenter(vocabulary)

    def next_token(prefix: Sequence[int]) -> int:
        rest = text[len(vocabulary.join(prefix)) :]
        return segmenter.cut(rest[: vocabulary.longest])[0][0] if rest else len(vocabulary) - 1

    return next_token


class TokenDrafter:
    """Drafts `text`, whatever the context says, through `vocabulary`, whose last id is BOS and ends a draft."""

    name = "tokens"

    def __init__(self, vocabulary: Vocabulary, text: bytes, at_most: int = 1000) -> None:
        self.vocabulary, self.text, self.at_most = vocabulary, text, at_most
        self.next_token = byte_driven(vocabulary, text)
        self.rounds = 0

    def begin(self) -> "TokenSession":
        return TokenSession(self)


class TokenSession:
    """One cache. `tokens` mirrors it."""

    def __init__(self, drafter: TokenDrafter) -> None:
        self._drafter = drafter
        self._vocabulary = drafter.vocabulary
        self._bos = len(self._vocabulary) - 1
        self._model = ScriptedTarget(self._vocabulary, drafter.next_token)
        self._slot = self._model.open(SamplingRule())
        self._tokens: list[int] = []
        self._committed = b""
        self._feed([self._bos])

    def context(self) -> bytes:
        """What the cache spells."""
        assert self._tokens.count(self._bos) == 1
        assert self._tokens[0] == self._bos
        return self._vocabulary.join(self._tokens)

    def extend(self, committed: bytes) -> None:
        self._drafter.rounds += 1
        self._committed += committed
        self._align(self._committed)

    def propose(self, ahead: bytes, limit: int) -> Proposal:
        self._align(self._committed + ahead)
        data, tokens = b"", list[DraftToken]()
        limit = min(limit, self._drafter.at_most)
        [[chosen]] = self._again_last()
        while (piece := self._vocabulary.data(chosen.id)) and len(data + piece) <= limit:
            data += piece
            tokens.append(DraftToken(len(piece), 0.9))
            [[chosen]] = self._feed([chosen.id])
        return Proposal(data, tuple(tokens))

    def _align(self, context: bytes) -> None:
        """Keep the tokens that spell the beginning of `context`; cut the others and feed what is missing."""
        keep, spelled = 1, b""
        for id in self._tokens[1:]:
            longer = spelled + self._vocabulary.data(id)
            if not context.startswith(longer):
                break
            keep, spelled = keep + 1, longer
        self._cut(keep)
        for id, _ in LongestMatchSegmenter(self._vocabulary).cut(context[len(spelled) :]):
            self._feed([id])
        assert self.context() == context

    def _again_last(self) -> list[list[Chosen]]:
        last = self._tokens[-1]
        self._cut(len(self._tokens) - 1)
        return self._feed([last])

    def _cut(self, length: int) -> None:
        self._model.rollback(self._slot, length)
        del self._tokens[length:]

    def _feed(self, ids: list[int]) -> list[list[Chosen]]:
        self._tokens += ids
        chosen = self._model.step([Rows(self._slot, tuple(ids), 1)])
        assert self._model.length(self._slot) == len(self._tokens)  # positions are contiguous
        return chosen
