"""The verifier's pure part: what it asks the target for, and what it makes of the answer."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from stage_messages import any_message, receive

from grimboost import messages as m
from grimboost.stages.configuration import CostCurve, VerifierConfig
from grimboost.stages.sampling_rule import SamplingRule
from grimboost.stages.verifier import State, VerifierStage

PROMPT = (1, 2, 3, 4, 5)
STARTED = m.Started(PROMPT, b"the prompt")
CONFIG = VerifierConfig(prefill_rows=2, max_new_tokens=20)
SHAKY = VerifierConfig(prefill_rows=2, max_new_tokens=20, row_invariant=False, tie_bound=0.5)
PIECES = (b"a", b"b", b"ab", b"ba")


def span(id):
    return m.Span(id, PIECES[id], 0.9)


def spans(ids, offset=0, epoch=0, frontier=None, retired=False):
    gated = tuple(m.GatedSpan(span(id), m.Decision.VERIFY, "strict") for id in ids)
    return m.Spans(epoch, offset if frontier is None else frontier, offset, gated, retired)


def choice(id, margin=5.0):
    return m.Choice(id, PIECES[id], margin)


def returned(request, ids=(), margins=()):
    margins = margins or [5.0] * len(ids)
    picked = tuple(choice(id, margin) for id, margin in zip(ids, margins, strict=True))
    return m.PassReturned(request.number, picked, request.keep + len(request.tokens))


def drafting(config=CONFIG):
    """A stage whose prompt is in the cache, and which waits for the drafter."""
    stage = VerifierStage(config, SamplingRule())
    stage.receive(STARTED)
    [_, request] = stage.receive(m.Opened())
    [_, request] = stage.receive(returned(request))
    [progress] = stage.receive(returned(request))
    assert progress == m.Prefilled(5, 5)
    return stage


def passing(ids=(0, 1), config=CONFIG):
    stage = drafting(config)
    [request] = stage.receive(spans(ids))
    return stage, request


def verifier(state):
    """A stage in that state."""
    stage = VerifierStage(CONFIG, SamplingRule())
    if state not in {State.IDLE, State.OPENING, State.PREFILLING}:
        stage = drafting(SHAKY)
    if state in {State.OPENING, State.PREFILLING}:
        stage.receive(STARTED)
    if state is State.PREFILLING:
        stage.receive(m.Opened())
    if state in {State.PASSING, State.RECHECKING, State.COMMITTING, State.FAILED}:
        [request] = stage.receive(spans([0, 1]))
    if state is State.RECHECKING:
        stage.receive(returned(request, (0, 1, 2), (0.1, 5.0, 5.0)))
    if state is State.COMMITTING:
        stage.receive(returned(request, (0, 1, 2)))
    if state is State.FAILED:
        stage.receive(m.PassFailed("out of memory"))
    if state in {State.RELEASING, State.RELEASED}:
        stage.receive(m.Finished(5, m.FinishReason.CANCELLED))
    if state is State.RELEASED:
        stage.receive(m.Released(4))
    assert stage._state is state
    return stage


@given(st.sampled_from(State), st.lists(any_message, min_size=1, max_size=5))
def test_any_state_and_any_message_give_messages_or_a_stage_error(state, messages):
    stage = verifier(state)
    for message in messages:
        receive(stage, message)


@given(st.sampled_from(State), any_message)
def test_patience_is_asked_for_only_while_waiting_for_the_drafter(state, message):
    stage = verifier(state)
    receive(stage, message)
    assert (stage.patience is not None) == (stage._state is State.DRAFTING)


@pytest.mark.parametrize("state", [state for state in State if state not in {State.RELEASING, State.RELEASED}])
def test_the_end_of_the_generation_is_understood_in_every_state(state):
    stage = verifier(state)
    answers = stage.receive(m.Finished(5, m.FinishReason.CANCELLED))
    assert stage.done == (state is State.IDLE)
    if answers:
        assert isinstance(answers[0], m.ReleaseRequested)
        stage.receive(m.Released(answers[0].keep))
        assert stage.done


@given(st.sampled_from([m.Opened(), m.PassReturned(9, (choice(0),), 9), m.PassFailed("late"), spans([0])]))
def test_what_the_end_overtook_is_dropped_while_the_slot_is_given_back(late):
    assert verifier(State.RELEASING).receive(late) == []


def test_the_prompt_but_its_last_token_is_prefilled_in_parts():
    stage = VerifierStage(CONFIG, SamplingRule())
    assert stage.receive(STARTED) == [m.OpenRequested(SamplingRule())]
    assert stage.receive(m.Opened()) == [m.Prefilled(0, 5), m.PassRequested(1, 0, (1, 2), 0)]
    assert stage.receive(m.PassReturned(1, (), 2)) == [m.Prefilled(2, 5), m.PassRequested(2, 2, (3, 4), 0)]
    assert stage.receive(m.PassReturned(2, (), 4)) == [m.Prefilled(5, 5)]


def test_b1_a_prompt_of_one_token_needs_no_prefill():
    stage = VerifierStage(CONFIG, SamplingRule())
    stage.receive(m.Started((7,), b"x"))
    assert stage.receive(m.Opened()) == [m.Prefilled(1, 1)]
    assert stage.receive(m.Elapsed()) == [m.PassRequested(1, 0, (7,), 1)]


@pytest.mark.parametrize("accepted", [0, 1, 4])
def test_b1_the_next_pass_keeps_exactly_the_path_without_its_last_token(accepted):
    stage, request = passing((0, 0, 0, 0))
    assert (request.keep, request.tokens, request.choose) == (4, (5, 0, 0, 0, 0), 5)
    chosen = [*[0] * accepted, 1, *[3] * (4 - accepted)]
    [verdict] = stage.receive(returned(request, chosen))
    assert (verdict.accepted, [token.id for token in verdict.tokens]) == (accepted, [*[0] * accepted, 1])
    epoch = 0
    if verdict.outcome is not m.Outcome.AGREED:
        epoch = 1
        stage.receive(m.Invalidated(1))
    assert stage.receive(m.Committed(epoch, accepted + 1, verdict.tokens, 9)) == []
    [request] = stage.receive(m.Elapsed())
    assert (request.keep, request.tokens) == (len(PROMPT) + accepted, (1,))


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 12))
def test_b9_draft_length_is_the_least_of_block_budget_less_one_and_rows(more, rows, drafted):
    """`more` counts the token budget and the positions that are left (the cascade takes the smaller)."""
    config = VerifierConfig(prefill_rows=2, max_rows=rows, max_new_tokens=more)
    _, request = passing([0] * drafted, config=config)
    assert len(request.tokens) - 1 == min(drafted, more - 1, rows - 1)
    assert request.choose == len(request.tokens)


def test_b9_context_32_prompt_28_budget_4_draft_8():
    config = VerifierConfig(prefill_rows=64, max_new_tokens=4)
    stage = VerifierStage(config, SamplingRule())
    stage.receive(m.Started(tuple(range(28)), b"x"))
    [_, prefill] = stage.receive(m.Opened())
    stage.receive(returned(prefill))
    [request] = stage.receive(spans([0] * 8))
    assert (request.keep, len(request.tokens)) == (27, 4)  # 31 positions, and the fourth choice takes the last


def test_stale_spans_have_no_effect_but_the_news_that_the_drafter_retired():
    for epoch in (1, 2):
        stage = drafting()
        assert stage.receive(spans([0, 1], epoch=epoch)) == []
        [request] = stage.receive(spans([1]))
        assert request.tokens == (5, 1)
    [request] = drafting().receive(spans([], epoch=1, retired=True))
    assert request.tokens == (5,)


def test_after_one_missed_patience_the_drafter_is_not_waited_for_until_it_answers():
    stage = drafting()
    [request] = stage.receive(m.Elapsed())
    [verdict] = stage.receive(returned(request, [0]))
    [request] = stage.receive(m.Committed(0, 1, verdict.tokens, 9))  # at once
    assert stage.receive(spans([1], offset=1)) == []  # an answer, in time for the pass after this
    [verdict] = stage.receive(returned(request, [0]))
    stage.receive(m.Invalidated(1))
    assert stage.receive(m.Committed(1, 2, verdict.tokens, 9)) == []


def test_spans_that_come_while_a_verdict_is_committed_are_measured_from_behind_it():
    """They belong behind the token just chosen, not before it: case of a slow drafter."""
    stage = drafting()
    [request] = stage.receive(m.Elapsed())
    [verdict] = stage.receive(returned(request, [0]))
    stage.receive(spans([0, 1], offset=0))  # overtaken: `a` is in the verdict already
    assert stage.receive(m.Committed(0, 1, verdict.tokens, 9)) == []
    [request] = stage.receive(m.Elapsed())
    assert request.tokens == (0,)


def test_spans_that_a_verdict_overtook_make_the_next_verdict_ask_for_the_candidate_anew():
    """Else a slow drafter that is right would send spans behind the lost ones for ever, and none would join on."""
    stage = drafting()
    [request] = stage.receive(m.Elapsed())
    [verdict] = stage.receive(returned(request, [0]))
    assert verdict.outcome is m.Outcome.AGREED
    [request] = stage.receive(m.Committed(0, 1, verdict.tokens, 9))
    stage.receive(spans([0, 1, 1], offset=0))
    [verdict] = stage.receive(returned(request, [1]))
    assert verdict.outcome is m.Outcome.REALIGNED
    stage.receive(m.Invalidated(1, keep=True))
    [request] = stage.receive(m.Committed(1, 2, verdict.tokens, 9))
    assert stage.receive(spans([1, 0], offset=2, epoch=1)) == []  # the same candidate, cut again
    [verdict] = stage.receive(returned(request, [1]))
    assert verdict.outcome is m.Outcome.AGREED
    assert stage.receive(m.Committed(1, 3, verdict.tokens, 9)) == []
    [request] = stage.receive(m.Elapsed())
    assert request.tokens == (1, 0)


def test_c3_the_slot_is_given_back_without_what_was_rejected():
    """Draft `a b`, the target says `b`: behind the prompt stands the rejected `a`, where `b` would belong."""
    stage, request = passing((0, 1))
    stage.receive(returned(request, [1, 0, 0]))
    assert stage.receive(m.Finished(6, m.FinishReason.LENGTH)) == [m.ReleaseRequested(5)]


@pytest.mark.parametrize(("number", "choices"), [(99, 3), (3, 2), (3, 4), (3, 0)])
def test_an_answer_to_another_pass_or_of_another_size_is_a_stage_error(number, choices):
    stage, request = passing((0, 1))
    assert (request.number, request.choose) == (3, 3)
    assert receive(stage, m.PassReturned(number, (choice(0),) * choices, 7)) is None
    assert receive(stage, returned(request, [0, 1, 2])) is not None


# ---------------------------------------------------------------- near-ties


def settle(stage, request, chosen):
    """Answer passes of one row until the verdict; what was fed one by one."""
    fed = []
    while True:
        assert len(request.tokens) == 1
        fed.append((request.keep, request.tokens[0], request.choose))
        [answer] = stage.receive(returned(request, [chosen] if request.choose else []))
        if isinstance(answer, m.Verdict):
            return fed, answer
        request = answer


def test_a_near_tie_is_settled_row_by_row_from_the_last_clean_position():
    stage, request = passing((0, 1, 0), SHAKY)
    [recheck] = stage.receive(returned(request, (0, 1, 3, 3), (5.0, 0.1, 5.0, 5.0)))
    fed, verdict = settle(stage, recheck, 2)
    assert fed == [(4, 5, 0), (5, 0, 1)]  # the last prompt token and the accepted draft; the choice behind it
    assert [token.id for token in verdict.tokens] == [0, 2]
    assert (verdict.ties, verdict.accepted, verdict.passes, verdict.rows) == (1, 1, 3, 6)


def test_a_near_tie_behind_the_first_mismatch_decides_nothing():
    stage, request = passing((0, 1, 0), SHAKY)
    [verdict] = stage.receive(returned(request, (1, 1, 3, 3), (5.0, 0.1, 0.1, 0.1)))
    assert (verdict.ties, verdict.accepted) == (0, 0)


def test_a_plain_step_on_a_clean_cache_is_the_reference_and_needs_no_recheck():
    stage, request = passing((), SHAKY)
    [verdict] = stage.receive(returned(request, [0], [0.0]))
    assert verdict.ties == 0


def test_a_plain_step_behind_a_block_is_not_clean_and_is_rechecked_from_before_the_block():
    stage, request = passing((0,), SHAKY)
    [verdict] = stage.receive(returned(request, (0, 1)))
    stage.receive(m.Committed(0, 2, verdict.tokens, 9))
    [request] = stage.receive(m.Elapsed())
    assert request.tokens == (1,)
    [recheck] = stage.receive(returned(request, [0], [0.1]))
    fed, verdict = settle(stage, recheck, 1)
    assert fed == [(4, 5, 0), (5, 0, 0), (6, 1, 1)]
    assert verdict.ties == 1


def test_a_row_invariant_target_is_never_rechecked():
    stage, request = passing((0,), CONFIG)
    [verdict] = stage.receive(returned(request, (0, 1), (0.0, 0.0)))
    assert verdict.ties == 0


# ---------------------------------------------------------------- a small world around it


class World:
    """A slot that keeps its contract, a cascade that commits everything, and a target that is a hash."""

    def __init__(self, config, salt):
        self.stage = VerifierStage(config, SamplingRule())
        self.salt, self.more = salt, config.max_new_tokens
        self.path, self.slot, self.epoch, self.frontier = list(PROMPT), [], 0, 0
        self.request = self.verdict = None
        self.note(self.stage.receive(STARTED))
        self.note(self.stage.receive(m.Opened()))
        while self.request.choose == 0:
            self.answer()
            if self.request is None:
                break

    def next_id(self, prefix):
        return zlib.crc32(bytes([self.salt, *prefix])) % len(PIECES)

    def note(self, answers):
        for answer in answers:
            if isinstance(answer, m.PassRequested):
                assert self.request is None
                assert answer.keep <= len(self.slot), "kept more than the cache holds"
                assert self.slot[: answer.keep] == self.path[: answer.keep], "a rejected draft left a trace"
                assert answer.choose in (0, len(answer.tokens))
                assert answer.choose <= self.more, "more than the budget allows"
                self.request = answer
            if isinstance(answer, m.Verdict):
                assert len(answer.tokens) == answer.accepted + 1
                assert answer.accepted <= answer.drafted < answer.rows
                assert self.slot[: len(self.path) + answer.accepted] == [
                    *self.path,
                    *(token.id for token in answer.tokens[:-1]),
                ]
                self.verdict = answer

    def answer(self):
        if self.request:
            request, self.request = self.request, None
            self.slot = [*self.slot[: request.keep], *request.tokens]
            first = len(self.slot) - request.choose + 1
            rows = [self.next_id(self.slot[: first + row]) for row in range(request.choose)]
            self.note(self.stage.receive(m.PassReturned(request.number, tuple(map(choice, rows)), len(self.slot))))

    def commit(self):
        if self.verdict and self.more > len(self.verdict.tokens):
            verdict, self.verdict = self.verdict, None
            if verdict.outcome is not m.Outcome.AGREED:
                self.epoch += 1
                self.note(self.stage.receive(m.Invalidated(self.epoch, verdict.outcome is m.Outcome.REALIGNED)))
            self.path += [token.id for token in verdict.tokens]
            self.more -= len(verdict.tokens)
            self.frontier += sum(len(token.data) for token in verdict.tokens)
            self.note(self.stage.receive(m.Committed(self.epoch, self.frontier, verdict.tokens, self.more)))

    def draft(self, ids, stale, gap):
        epoch = self.epoch + stale
        self.note(self.stage.receive(spans(ids, self.frontier + gap, epoch, self.frontier)))

    def elapse(self):
        if self.stage.patience is not None:
            self.note(self.stage.receive(m.Elapsed()))


moves = st.lists(
    st.one_of(
        st.tuples(
            st.just("draft"),
            st.lists(st.integers(0, 3), max_size=5),
            st.sampled_from([0, 0, -1]),
            st.sampled_from([0, 0, 1, 3]),
        ),
        st.tuples(st.sampled_from(["answer", "answer", "commit", "commit", "elapse"])),
    ),
    max_size=40,
)
curves = st.sampled_from([CostCurve(), CostCurve((1, 2, 16), (1.0, 1.4, 5.0)), CostCurve((1, 2), (1.0, 2.0))])


@given(curves, st.integers(0, 30), st.integers(1, 9), moves)
def test_whatever_is_drafted_the_path_is_that_of_plain_decoding(curve, salt, rows, steps):
    world = World(VerifierConfig(curve=curve, max_rows=rows, prefill_rows=3, max_new_tokens=15), salt)
    for name, *details in steps:
        getattr(world, name)(*details)
    plain = list(PROMPT)
    while len(plain) < len(world.path):
        plain.append(world.next_id(plain))
    assert world.path == plain


# ---------------------------------------------------------------- streaming mode


STREAMING = replace(CONFIG, streaming=True, shown_stands=True, draft_milliseconds=0.0)


def test_streaming_a_verdict_brings_all_choices_and_what_was_drafted_in_their_places():
    stage, request = passing(ids=(0, 1, 2), config=replace(STREAMING, max_rows=3))
    assert len(request.tokens) == 3  # the last of the path and two spans
    [verdict] = stage.receive(returned(request, (0, 3, 1)))
    assert [one.id for one in verdict.choices] == [0, 3, 1]
    assert [one.id for one in verdict.candidate] == [0, 1, 2]
    assert [one.id for one in verdict.tokens] == [0, 3]


def test_streaming_goes_on_with_what_stands_in_a_new_epoch():
    stage, request = passing(ids=(0, 1, 2), config=STREAMING)
    stage.receive(returned(request, (3, 1, 2, 0)[: request.choose]))
    stage.receive(m.Invalidated(1))
    stage.receive(m.Committed(1, 1, (m.PathToken(0, b"x"),), 9, standing=2, released=(span(1), span(2))))
    [planned] = stage.receive(spans((), offset=4, epoch=1, frontier=1))
    assert planned.tokens == (0, 1, 2)
