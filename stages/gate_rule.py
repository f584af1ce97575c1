"""A rule that a plug-in adds to the gate: it may hold back a span which the gate would show, and can do no more.

The gate asks it about each drafted span in streaming mode, and about none in strict mode. Its answer counts
after every reason of the gate's own, so no cap, anchor, doubt or certificate is weaker with a rule than without
one; and spans that it holds are no evidence for the certificate, which speaks of what would be shown. A rule has
to be a function of its arguments alone: a replay asks it again and has to get the same answers. One that raises,
or answers what is no reason, holds the span: the same at each replay, and nothing is shown that it might have
refused. It is asked on the event loop, so it has to be quick. It knows neither the target nor what the gate
itself thinks.
"""

from typing import Protocol

from grimboost.messages import Span

TAIL_BYTES = 256
"""Bytes of the output before the span that a rule gets to see; the prompt is not among them."""

LONGEST_REASON = 80

FAILED = "rule failed"
"""Reason of a span about which the rule gave no answer that counts."""


class GateRule(Protocol):
    """What `grimboost.gates` and `--gate` name."""

    @property
    def name(self) -> str:
        """Written to the log's header: a replay needs the rule of this name."""
        ...

    def hold(self, offset: int, span: Span, confidence: float, tail: bytes) -> str | None:
        """Why this span must wait for the target, in a word or two; None if it need not.

        `offset`: output bytes before the span. `confidence`: calibrated. `tail`: the last bytes before the span,
        at most `TAIL_BYTES`, drafted ones included. Shown in logs as `rule: ` and these words.
        """
        ...


def reason_to_hold(rule: GateRule, offset: int, span: Span, confidence: float, tail: bytes) -> str | None:
    """The rule's answer as one line that a log can hold; None to let the span go."""
    try:
        answer = rule.hold(offset, span, confidence, tail[-TAIL_BYTES:])
    except (Exception, SystemExit):
        return FAILED
    if answer is None:
        return None
    words = " ".join(answer.split()) if isinstance(answer, str) else ""
    if not words:
        return FAILED
    return f"rule: {words[:LONGEST_REASON]}".encode(errors="replace").decode()
