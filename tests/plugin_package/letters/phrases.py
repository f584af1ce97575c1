"""A drafter that knows phrases by heart: where the text has begun one, it proposes the rest."""

from grimboost.adapters.drafter import Proposal
from grimboost.messages import DraftToken

PHRASES = (
    b"I hope this message finds you well. I am writing to inform you ",
    b"Unfortunately, due to unforeseen circumstances, we ",
    b"We apologize for any inconvenience this may have caused",
    b"please do not hesitate to contact us.",
    b"Thank you for your patience and understanding.\n\nBest regards,\n\n[Your Name]",
)


class PhraseBook:
    name = "phrases"

    def begin(self):
        return Session()


class Session:
    def __init__(self):
        self.text = b""

    def extend(self, committed):
        self.text = (self.text + committed)[-200:]

    def propose(self, ahead, limit):
        text = self.text + ahead
        for phrase in PHRASES:
            for begun in range(len(phrase) - 1, 5, -1):  # at least six bytes of it
                if text.endswith(phrase[:begun]):
                    data = phrase[begun : begun + limit]
                    return Proposal(data, (DraftToken(len(data), 0.9),), whole=begun + limit >= len(phrase))
        return Proposal()
