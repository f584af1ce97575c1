"""The gate in strict mode: every span is verified, drafts of another epoch are dropped."""

from hypothesis import given
from hypothesis import strategies as st
from stage_messages import any_message, of, receive

from grimboost import messages as m
from grimboost.stages.configuration import GateConfig
from grimboost.stages.gate import GateStage

inputs = of(m.Draft, m.Committed, m.Invalidated, m.Finished)


def gate(epoch=0, done=False):
    stage = GateStage(GateConfig())
    if epoch:
        stage.receive(m.Invalidated(epoch))
    if done:
        stage.receive(m.Finished(1, m.FinishReason.STOP))
    return stage


@given(st.lists(inputs, max_size=4), any_message)
def test_any_state_and_any_message_give_messages_or_a_stage_error(before, message):
    stage = gate()
    for one in before:
        receive(stage, one)
    receive(stage, message)


@given(st.integers(0, 2), of(m.Draft))
def test_a_draft_of_this_epoch_is_passed_on_whole_with_a_decision_for_each_span(epoch, draft):
    answers = gate(epoch).receive(draft)
    if draft.epoch != epoch and not draft.retired:
        assert answers == []
        return
    [spans] = answers
    assert isinstance(spans, m.Spans)
    assert tuple(gated.span for gated in spans.spans) == draft.spans
    assert all((gated.decision, gated.reason) == (m.Decision.VERIFY, "strict") for gated in spans.spans)
    assert (spans.epoch, spans.frontier, spans.offset) == (draft.epoch, draft.frontier, draft.offset)
    assert spans.retired == draft.retired


def test_a_retired_drafter_is_announced_even_if_its_epoch_has_just_ended():
    """Else the verifier would wait once more for a drafter that is gone."""
    [spans] = gate(epoch=1).receive(m.Draft(0, 0, 0, (), retired=True))
    assert spans.retired


@given(any_message)
def test_behind_the_end_nothing_is_said(message):
    stage = gate(done=True)
    assert stage.done
    assert not receive(stage, message)
