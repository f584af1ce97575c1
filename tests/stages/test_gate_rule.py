"""A plug-in's rule in the gate: asked about each drafted span, behind the gate's own reasons, never trusted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from stage_messages import of, receive

from grimboost import messages as m
from grimboost.stages.audit import audit_revisable, audit_standing
from grimboost.stages.configuration import GateConfig
from grimboost.stages.gate import GateStage
from grimboost.stages.gate_rule import FAILED, LONGEST_REASON, TAIL_BYTES, reason_to_hold

STREAMING = GateConfig(mode="streaming", release="always", threshold=0.5)


class Rule:
    """Answers with `answer`, or what that gives when called; remembers the questions."""

    name = "rule"

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def hold(self, offset, span, confidence, tail):
        self.asked.append((offset, span.data, confidence, tail))
        return self.answer(span, tail) if callable(self.answer) else self.answer


def digits(span, tail):
    return "a digit" if span.data.isdigit() else None


def gate(answer, **changes):
    rule = Rule(answer)
    return GateStage(replace(STREAMING, **changes), rule), rule


def draft(offset, *texts, frontier=0, confidence=0.9):
    return m.Draft(0, frontier, offset, tuple(m.Span(1, text, confidence) for text in texts))


def reasons(answers):
    return [gated.reason for one in answers if isinstance(one, m.Spans) for gated in one.spans]


def released(answers):
    return b"".join(span.data for one in answers if isinstance(one, m.Release) for span in one.spans)


def test_a_span_that_a_rule_holds_waits_with_its_reason_and_so_do_those_behind_it():
    stage, _ = gate(digits)
    answers = stage.receive(draft(0, b"in ", b"7", b" days"))
    assert released(answers) == b"in "
    assert reasons(answers) == ["confident", "rule: a digit", "behind"]
    held = [gated.span.held for one in answers if isinstance(one, m.Spans) for gated in one.spans]
    assert held == [False, True, False]
    assert (
        released(stage.receive(m.Committed(0, 4, (m.PathToken(1, b"in "), m.PathToken(1, b"7")), 50))) == b" days"
    )


def test_a_rule_is_told_the_offset_the_calibrated_confidence_and_the_text_before():
    stage, rule = gate(None)
    stage.receive(draft(0, b"one", b" two"))
    stage.receive(draft(7, b" three"))
    assert rule.asked == [(0, b"one", 0.9, b""), (3, b" two", 0.9, b"one"), (7, b" three", 0.9, b"one two")]


def test_the_text_before_is_what_is_shown_where_a_draft_begins_before_it():
    stage, rule = gate(digits)
    stage.receive(draft(0, b"ab", b"1"))
    stage.receive(draft(0, b"a", b"bx", b"2"))  # other borders, and another byte where nothing is shown yet
    assert rule.asked[-2:] == [(1, b"bx", 0.9, b"a"), (3, b"2", 0.9, b"abx")]
    stage.receive(m.Committed(0, 2, (m.PathToken(1, b"ab"),), 50))
    stage.receive(draft(0, b"zz", b"3"))  # one that a verdict overtook
    assert rule.asked[-1] == (2, b"3", 0.9, b"ab")


@pytest.mark.parametrize("reason", ["certificate", "cap", "anchor", "confidence"])
def test_reasons_of_the_gates_own_come_first(reason):
    changes = {
        "certificate": {"release": "certified"},
        "cap": {"max_unverified_bytes": 2},
        "anchor": {"anchor_bytes": 2},
        "confidence": {"threshold": 0.95},
    }
    stage, rule = gate("mine", **changes[reason])
    answers = stage.receive(draft(0, b"one"))
    assert reasons(answers) == [reason]
    assert answers[-1].spans[0].span.held  # what it would hold is no evidence, whatever else holds it
    assert len(rule.asked) == 1


def test_no_rule_is_asked_in_strict_mode():
    stage, rule = gate("mine", mode="strict")
    assert reasons(stage.receive(draft(0, b"one"))) == ["strict"]
    assert rule.asked == []


def raises(span, tail):
    raise SystemExit("enough")


@pytest.mark.parametrize("answer", [raises, True, "", " \n", 7, b"bytes", lambda span, tail: 1 / 0])
def test_a_rule_without_an_answer_that_counts_holds_the_span_and_breaks_nothing(answer):
    stage, _ = gate(answer)
    answers = stage.receive(draft(0, b"one"))
    assert (released(answers), reasons(answers)) == (b"", [FAILED])


def test_a_reason_is_one_line_that_a_log_can_hold():
    span = m.Span(1, b"x", 0.5)
    assert reason_to_hold(Rule("two\nlines \ud800"), 0, span, 0.5, b"") == "rule: two lines ?"
    assert reason_to_hold(Rule("x" * 1000), 0, span, 0.5, b"") == f"rule: {'x' * LONGEST_REASON}"
    rule = Rule(None)
    assert reason_to_hold(rule, 0, span, 0.5, b"y" * 1000) is None
    assert rule.asked == [(0, b"x", 0.5, b"y" * TAIL_BYTES)]


@given(st.lists(of(m.Draft, m.Committed, m.Invalidated, m.Certified), max_size=8))
def test_a_rule_can_only_hold_back(messages):
    """Whatever comes: with a rule nothing is released that would not be without it, at the latest by then."""
    free, (bound, _) = GateStage(STREAMING), gate(lambda span, tail: "odd" if len(span.data) % 2 else None)
    shown, less = 0, 0
    for message in messages:
        one, other = receive(free, message) or [], receive(bound, message) or []
        if any(isinstance(message, kind) for kind in (m.Committed, m.Invalidated)):
            return  # from here on the two see other frontiers
        shown, less = shown + len(released(one)), less + len(released(other))
        assert less <= shown


def test_a_span_whose_context_a_verdict_has_contradicted_is_not_shown():
    stage, _ = gate(None, threshold=0.5)
    stage.receive(draft(0, b"no", confidence=0.1))
    stage.receive(draft(2, b"yes"))
    assert released(stage.receive(m.Committed(0, 2, (m.PathToken(1, b"NO"),), 50))) == b""


def commit(frontier, *texts):
    return m.Committed(0, frontier, tuple(m.PathToken(1, text) for text in texts), 50)


def test_a_span_of_which_the_head_is_committed_may_still_be_contradicted():
    stage, _ = gate(None)
    stage.receive(draft(0, b"abab", confidence=0.1))
    stage.receive(draft(4, b"yes"))
    stage.receive(commit(1, b"a"))
    assert released(stage.receive(commit(4, b"BAB"))) == b""


def test_nothing_goes_on_behind_a_draft_that_a_verdict_contradicted_on_its_way():
    stage, rule = gate(None)
    stage.receive(commit(2, b"no"))
    assert released(stage.receive(draft(0, b"yes"))) == b""
    assert released(stage.receive(draft(3, b" or")) + stage.receive(commit(3, b"t"))) == b""
    assert released(stage.receive(draft(3, b"hing", frontier=3))) == b"hing"
    assert rule.asked[-1] == (3, b"hing", 0.9, b"not")


def test_what_was_released_and_contradicted_before_it_could_be_shown_is_not_built_on():
    stage, rule = gate(None)
    assert released(stage.receive(draft(0, b"yes"))) == b"yes"
    stage.receive(commit(2, b"no"))
    assert released(stage.receive(draft(2, b"t", frontier=2))) == b"t"
    assert rule.asked[-1] == (2, b"t", 0.9, b"no")


SPAN, HELD = m.Span(1, b"a", 0.9), m.Span(1, b"a", 0.9, held=True)
RIGHT, WRONG = m.PathToken(1, b"a"), m.PathToken(2, b"b")


@pytest.mark.parametrize("own", [RIGHT, WRONG])
def test_what_is_said_of_a_held_span_is_no_evidence_but_still_a_correction(own):
    for span, count in ((SPAN, 1), (HELD, 0)):
        standing = audit_standing((), 0, (span,), (own, RIGHT), lambda *_: True)
        revisable = audit_revisable((), 0, (span,), (own, RIGHT), (own,))
        assert (len(standing.judged), len(revisable.judged)) == (count, count)
        assert standing.corrected is revisable.corrected is (own is WRONG)
