"""The gate: for each span, release it unseen or have the target verify it.

In strict mode the answer is always *verify*, with the reason `strict`; the stage still stands in the path, so
that every span carries a decision and a reason in the log. It knows neither the target nor the client.
"""

from grimboost import messages as m
from grimboost.stages.configuration import GateConfig
from grimboost.stages.stage import undefined


class GateStage:
    """Turns drafts into decided spans; drops those of an older epoch."""

    patience = None

    def __init__(self, config: GateConfig) -> None:
        self._config = config
        self._epoch = 0
        self._done = False

    @property
    def done(self) -> bool:
        return self._done

    def receive(self, message: m.GateInput) -> list[m.Message]:
        """One `Spans` for each draft of the current epoch; that a drafter retired is news in any epoch."""
        if self._done:
            return []  # a draft that was under way when the generation ended
        match message:
            case m.Draft(epoch=epoch, retired=retired):
                return [self._decide(message)] if epoch == self._epoch or retired else []
            case m.Invalidated(epoch=epoch):
                self._epoch = epoch
                return []
            case m.Committed():
                return []
            case m.Finished():
                self._done = True
                return []
        raise undefined("gate", "open", message)

    def _decide(self, draft: m.Draft) -> m.Spans:
        spans = tuple(m.GatedSpan(span, m.Decision.VERIFY, self._config.mode) for span in draft.spans)
        return m.Spans(draft.epoch, draft.frontier, draft.offset, spans, draft.retired)
