"""A gate rule for an engine: found, checked, and heard of when it fails. It does not know what rules decide."""

from grimboost.adapters.drafter import Drafter
from grimboost.diagnostics import get_logger
from grimboost.loading import drafter_digest
from grimboost.messages import Span
from grimboost.plugins import check_interface, load_plugin
from grimboost.stages.gate_rule import GateRule

log = get_logger(__name__)


class WatchedRule:
    """Answers as its rule does. What that raises goes on to the gate; the first time it is a warning, too."""

    def __init__(self, rule: GateRule) -> None:
        self.rule = rule
        self.name = rule.name
        self.digest = str(getattr(rule, "digest", rule.name))
        self._warned = False

    def hold(self, offset: int, span: Span, confidence: float, tail: bytes) -> str | None:
        try:
            return self.rule.hold(offset, span, confidence, tail)
        except BaseException as error:
            if not self._warned:
                log.warning(
                    "a gate rule fails; it holds back what it is asked about", rule=self.name, error=repr(error)
                )
            self._warned = True
            raise


def make_rule(rule: GateRule | str | None) -> WatchedRule | None:
    """A rule by name or import path, or an object. Raises `MisuseError` for what is no gate rule."""
    if rule is None or isinstance(rule, WatchedRule):
        return rule
    if isinstance(rule, str):
        return WatchedRule(load_plugin("gate", rule))
    check_interface("gate", rule)
    return WatchedRule(rule)


def digest_with(drafter: Drafter | None, rule: WatchedRule | None) -> str:
    """Identifies a drafter for its certificate; with a rule other spans are shown, and evidence is apart."""
    digest = drafter_digest(drafter)
    return digest if rule is None else f"{digest} with gate rule {rule.digest}"
