"""A drafter that proposes what a test tells it to: any bytes, at any offset."""

from collections.abc import Callable

from grimboost.adapters.drafter import DraftSession, Proposal
from grimboost.messages import DraftToken

Script = Callable[[bytes, int], bytes]
"""(all committed bytes and the candidate behind them, limit) -> proposed bytes."""


class ScriptDrafter:
    """Proposes `script(context, limit)`, cut to the limit, with one confidence for all."""

    name = "script"

    def __init__(self, script: Script, confidence: float = 0.9, whole: bool = True) -> None:
        self.script, self.confidence, self.whole = script, confidence, whole

    def begin(self) -> DraftSession:
        return _Session(self)


class _Session:
    def __init__(self, drafter: ScriptDrafter) -> None:
        self._drafter = drafter
        self._context = b""

    def extend(self, committed: bytes) -> None:
        self._context += committed

    def propose(self, ahead: bytes, limit: int) -> Proposal:
        data = self._drafter.script(self._context + ahead, limit)[:limit]
        if not data:
            return Proposal()
        return Proposal(data, (DraftToken(len(data), self._drafter.confidence),), self._drafter.whole)
