"""The cascade: single writer of frontier and epoch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stage_driver import cut_slowly
from stage_messages import any_message, path_tokens, receive, tuples

from grimboost import messages as m
from grimboost.stages.cascade import CascadeStage, State
from grimboost.stages.configuration import CascadeConfig

PROMPT = (3, 4, 5)
configs = st.builds(
    CascadeConfig,
    context_limit=st.integers(3, 12),
    max_new_tokens=st.integers(0, 8),
    max_new_bytes=st.none() | st.integers(0, 8),
    stop=tuples(st.binary(min_size=1, max_size=2), most=2),
    end_ids=st.sampled_from([(), (0,)]),
)
OPEN = CascadeConfig(context_limit=1000)


def verdict(tokens, epoch=0, outcome=m.Outcome.AGREED, accepted=None, **more):
    accepted = len(tokens) - 1 if accepted is None else accepted
    size = sum(len(token.data) for token in tokens[:accepted])
    fields = {"drafted": accepted, "drafted_bytes": size, "passes": 1, "rows": accepted + 1} | more
    return m.Verdict(epoch, 0, tuple(tokens), outcome, accepted=accepted, accepted_bytes=size, **fields)


def cascade(state=State.RUNNING, config=OPEN):
    stage = CascadeStage(config)
    if state is not State.WAITING:
        stage.receive(m.Started(PROMPT, b"the prompt"))
    if state is State.FINISHED:
        stage.receive(m.CancelRequested())
    assert stage._state is state
    return stage


@given(st.sampled_from(State), any_message, any_message)
def test_any_state_and_any_message_give_messages_or_a_stage_error(state, first, second):
    stage = cascade(state)
    receive(stage, first)
    receive(stage, second)


@given(any_message)
def test_behind_the_end_nothing_is_said(message):
    stage = cascade(State.FINISHED)
    assert stage.done
    assert receive(stage, message) == []


@given(tuples(path_tokens, 1), st.integers(1, 3), st.sampled_from(m.Outcome))
def test_a_verdict_of_another_epoch_has_no_effect(tokens, epoch, outcome):
    stage = cascade()
    assert stage.receive(verdict(tokens, epoch, outcome)) == []
    assert stage.receive(verdict(tokens)) == cascade().receive(verdict(tokens))


@given(tuples(path_tokens, 1), st.sampled_from(m.Outcome))
def test_a_verdict_moves_the_frontier_and_control_comes_first(tokens, outcome):
    answers = cascade().receive(verdict(tokens, outcome=outcome))
    size = sum(len(token.data) for token in tokens)
    epoch = 0 if outcome is m.Outcome.AGREED else 1
    before = [m.Invalidated(1, keep=outcome is m.Outcome.REALIGNED)] if epoch else []
    committed = m.Committed(epoch, size, tokens, OPEN.max_new_tokens - len(tokens))
    assert answers[:-1] == [*before, committed]
    assert answers[-1] == m.Commit(0, b"".join(t.data for t in tokens), size, tuple(t.id for t in tokens))


verdicts = st.lists(st.tuples(tuples(path_tokens, 1), st.sampled_from(m.Outcome)), max_size=8)


@given(configs, verdicts)
def test_what_is_committed_equals_the_slow_oracle_and_every_offset_follows_the_last(config, blocks):
    stage, epoch, answers = CascadeStage(config), 0, []
    answers += stage.receive(m.Started(PROMPT, b""))
    for tokens, outcome in blocks:
        answers += stage.receive(verdict(tokens, epoch, outcome))
        epoch = max([epoch, *(one.epoch for one in answers if isinstance(one, m.Invalidated))])
    commits = [one for one in answers if isinstance(one, m.Commit)]
    text = b""
    for commit in commits:
        assert commit.offset == len(text)
        text += commit.data
    slow = cut_slowly(config, len(PROMPT), [token for tokens, _ in blocks for token in tokens])
    if slow is None:
        assert not stage.done
        return
    last, finished = commits[-1], [one for one in answers if isinstance(one, m.Finished)]
    assert (last.ids, text[: last.reveal_to], last.finish) == (slow.ids, slow.data, slow.finish)
    assert finished == [m.Finished(len(PROMPT) + len(slow.ids), slow.finish)]
    assert (last.counts.new_tokens, last.counts.new_bytes) == (len(slow.ids), len(slow.data))


@given(verdicts, st.sampled_from([m.CancelRequested(), m.TargetFailed("out of memory")]))
def test_an_end_from_outside_keeps_what_is_committed_and_holds_nothing_back(blocks, ending):
    stage, epoch, text, ids = CascadeStage(CascadeConfig(1000, stop=(b"\x00\x00\x00\x00\x00\x00",))), 0, b"", ()
    stage.receive(m.Started(PROMPT, b""))
    for tokens, outcome in blocks:
        stage.receive(verdict(tokens, epoch, outcome))
        epoch += outcome is not m.Outcome.AGREED
        text += b"".join(token.data for token in tokens)
        ids += tuple(token.id for token in tokens)
    if stage.done:
        return
    finished, last = stage.receive(ending)
    reason = m.FinishReason.CANCELLED if isinstance(ending, m.CancelRequested) else m.FinishReason.ERROR
    assert finished == m.Finished(len(PROMPT) + len(ids), reason)
    assert (last.offset, last.data, last.reveal_to) == (len(text), b"", len(text))
    assert (last.ids, last.finish) == (ids, reason)
    assert last.error == getattr(ending, "error", None)


@pytest.mark.parametrize(
    "config",
    [CascadeConfig(len(PROMPT)), CascadeConfig(9, max_new_tokens=0), CascadeConfig(9, max_new_bytes=0)],
    ids=["b9 full context", "no tokens", "no bytes"],
)
def test_no_room_for_a_single_token_ends_with_length_at_once(config):
    finished, last = CascadeStage(config).receive(m.Started(PROMPT, b""))
    assert finished == m.Finished(len(PROMPT), m.FinishReason.LENGTH)
    assert (last.ids, last.data, last.counts.prompt_tokens) == ((), b"", len(PROMPT))


def test_b9_more_counts_down_to_the_context_limit():
    stage = cascade(config=CascadeConfig(len(PROMPT) + 3, max_new_tokens=50))
    mores = [stage.receive(verdict([m.PathToken(1, b"a")]))[0] for _ in range(3)]
    assert [one.more for one in mores[:2]] == [2, 1]
    assert mores[2] == m.Finished(len(PROMPT) + 3, m.FinishReason.LENGTH)


def test_counts_of_accepted_drafts_stop_at_the_cut():
    stage = cascade(config=CascadeConfig(1000, max_new_tokens=2))
    tokens = [m.PathToken(1, b"aa"), m.PathToken(2, b"b"), m.PathToken(3, b"c"), m.PathToken(4, b"d")]
    counts = stage.receive(verdict(tokens, ties=2))[-1].counts
    assert (counts.accepted_tokens, counts.accepted_bytes, counts.drafted_tokens) == (2, 3, 3)
    assert (counts.blocks, counts.target_passes, counts.target_rows, counts.ties_rechecked) == (1, 1, 4, 2)
