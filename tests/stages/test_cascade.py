"""The cascade: single writer of frontier and epoch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from stage_driver import cut_slowly
from stage_messages import any_message, path_tokens, receive, tuples

from grimboost import messages as m
from grimboost.stages.cascade import CascadeStage, State
from grimboost.stages.configuration import CascadeConfig, TrustConfig

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


# ---------------------------------------------------------------- streaming mode


STANDS = CascadeConfig(context_limit=1000, streaming=True, shown_stands=True)
REVISABLE = CascadeConfig(context_limit=1000, streaming=True)


def spans(*texts):
    return tuple(m.Span(ord(text[:1]), text, 0.9) for text in texts)


def release(offset, *texts, epoch=0):
    return m.Release(epoch, offset, spans(*texts))


def audit(candidate, choices, epoch=0, outcome=m.Outcome.AGREED, tokens=None):
    """A verdict of streaming mode: `candidate` was fed (all but the last place), `choices` came back."""
    chosen = [m.PathToken(ord(text[:1]) if text else 0, text) for text in choices]
    fields = {"candidate": spans(*candidate), "choices": tuple(chosen)}
    return verdict(tokens or chosen, epoch, outcome, **fields)


def of_kind(kind, answers):
    return [answer for answer in answers if isinstance(answer, kind)]


def test_a_release_is_shown_and_one_of_another_epoch_or_place_is_not():
    stage = cascade(config=STANDS)
    assert stage.receive(release(0, b"a", b"b", epoch=1)) == []
    assert stage.receive(release(1, b"b")) == []
    assert stage.receive(release(0, b"a", b"b")) == [m.Reveal(0, b"ab", 2)]
    assert stage.receive(release(2, b"c")) == [m.Reveal(2, b"c", 3)]
    assert stage.receive(release(1, b"b", b"c", b"d")) == [m.Reveal(3, b"d", 4)]  # of that, d is new


def test_a_release_that_a_verdict_overtook_is_shown_only_where_it_says_the_same():
    """No draft was in the verdict's block, so the epoch is the same; what it committed still says otherwise."""
    for wrong, right in ((b"x", b"a"), (b"ax", b"ab")):
        stage = cascade(config=STANDS)
        stage.receive(audit([], [right]))
        overtaken = release(0, *(wrong[place : place + 1] for place in range(len(wrong))), b"c")
        assert stage.receive(overtaken) == []
        same = release(0, *(right[place : place + 1] for place in range(len(right))), b"c")
        assert stage.receive(same) == [m.Reveal(len(right), b"c", len(right) + 1)]


def test_shown_tokens_that_the_target_chose_are_counted_as_audited():
    stage = cascade(config=STANDS)
    stage.receive(release(0, b"a", b"b"))
    answers = stage.receive(audit([b"a", b"b"], [b"a", b"b", b"c"]))
    [committed] = of_kind(m.Committed, answers)
    [commit] = of_kind(m.Commit, answers)
    assert (committed.frontier, committed.epoch, committed.slips) == (3, 0, ())
    assert (commit.data, commit.standing, commit.slips) == (b"abc", 0, ())
    *_, last = stage.receive(m.CancelRequested())
    assert (last.counts.released_tokens, last.counts.audited_tokens, last.counts.kept_tokens) == (2, 2, 2)


def test_a_slip_is_committed_as_shown_and_what_was_shown_behind_it_is_said_to_stand():
    stage = cascade(config=STANDS)
    stage.receive(release(0, b"a", b"x", b"c", b"d"))
    answers = stage.receive(audit([b"a", b"x"], [b"a", b"b", b"c"], outcome=m.Outcome.MISMATCH))
    [invalidated], [committed] = of_kind(m.Invalidated, answers), of_kind(m.Committed, answers)
    [commit], [audited] = of_kind(m.Commit, answers), of_kind(m.Audited, answers)
    assert (invalidated.epoch, invalidated.keep) == (1, False)
    assert (committed.epoch, committed.frontier, committed.slips) == (1, 3, (1,))
    assert (committed.standing, committed.released) == (1, spans(b"d"))
    assert committed.doubt_until == 2 + STANDS.trust.doubt_bytes  # behind the slip, of which one byte is verified
    assert (commit.data, commit.standing) == (b"axc", 1)
    assert commit.slips == (m.Slip(1, 1, b"x", b"b", 0.9),)
    assert [(one.released, one.slip) for one in audited.spans] == [(True, False), (True, True), (True, False)]


def test_a_slip_is_taken_back_where_the_client_can():
    stage = cascade(config=REVISABLE)
    stage.receive(release(0, b"a", b"x", b"c"))
    tokens = [m.PathToken(ord("a"), b"a"), m.PathToken(ord("b"), b"b")]
    answers = stage.receive(audit([b"a", b"x"], [b"a", b"b", b"c"], outcome=m.Outcome.MISMATCH, tokens=tokens))
    [committed], [commit] = of_kind(m.Committed, answers), of_kind(m.Commit, answers)
    assert (committed.frontier, committed.standing, committed.released) == (2, 0, ())
    assert (commit.data, commit.reveal_to, commit.standing) == (b"ab", 2, 0)
    *_, last = stage.receive(m.CancelRequested())
    assert (last.counts.retracted_bytes, len(last.counts.slips)) == (2, 1)


def test_a_mismatch_behind_what_was_shown_opens_no_doubt():
    stage = cascade(config=STANDS)
    stage.receive(release(0, b"a"))
    [committed] = of_kind(
        m.Committed, stage.receive(audit([b"a", b"x"], [b"a", b"b"], outcome=m.Outcome.MISMATCH))
    )
    assert (committed.epoch, committed.doubt_until, committed.slips) == (1, 0, ())


def test_repairs_that_fail_end_in_a_takeover_which_the_drafter_is_told():
    stage = cascade(config=replace(STANDS, trust=TrustConfig(doubt_bytes=9, max_repairs=0, takeover_tokens=2)))
    stage.receive(release(0, b"x"))
    stage.receive(audit([b"x"], [b"a", b"b"], outcome=m.Outcome.MISMATCH))
    answers = stage.receive(audit([b"y"], [b"c"], epoch=1, outcome=m.Outcome.MISMATCH))
    assert of_kind(m.Committed, answers)[0].alone == 2
    answers = stage.receive(audit([], [b"d"], epoch=2))
    assert of_kind(m.Committed, answers)[0].alone == 1
    *_, last = stage.receive(m.CancelRequested())
    assert (last.counts.takeovers, last.counts.takeover_tokens, last.counts.doubt_tokens) == (1, 1, 1)


def test_no_release_exceeds_a_budget():
    stage = cascade(config=replace(STANDS, max_new_tokens=2))
    assert stage.receive(release(0, b"a", b"b", b"c")) == [m.Reveal(0, b"ab", 2)]
    stage = cascade(config=replace(STANDS, max_new_bytes=3))
    assert stage.receive(release(0, b"ab", b"cd", b"e")) == [m.Reveal(0, b"ab", 2)]


def test_a_release_of_the_beginning_of_a_stop_string_is_held_back():
    stage = cascade(config=replace(STANDS, stop=(b"bcd",)))
    assert stage.receive(release(0, b"a", b"b")) == [m.Reveal(0, b"ab", 1)]
    assert stage.receive(release(2, b"x")) == [m.Reveal(2, b"x", 3)]


def test_an_open_end_finishes_with_the_release_that_reaches_it():
    stage = cascade(config=replace(STANDS, max_new_tokens=2, open_end=True))
    finished, last = stage.receive(release(0, b"a", b"b"))
    assert (finished.reason, last.data, last.ids) == (m.FinishReason.LENGTH, b"ab", (ord("a"), ord("b")))
    assert (last.counts.kept_tokens, last.counts.audited_tokens) == (2, 0)


@given(st.booleans(), st.lists(any_message, max_size=6))
def test_streaming_any_messages_give_messages_or_a_stage_error(stands, messages):
    stage = cascade(config=STANDS if stands else REVISABLE)
    for message in messages:
        receive(stage, message)
