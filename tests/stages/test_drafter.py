"""The drafter's pure part: one answer per commit, credit, and what is stale."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stage_messages import any_message, receive

from grimboost import messages as m
from grimboost.stages.configuration import DrafterConfig
from grimboost.stages.drafter import DrafterStage, State

CONFIG = DrafterConfig(max_ahead_bytes=12, minimum_request_bytes=4)
STARTED = m.Started((1, 2), b"the prompt")


def span(data):
    return m.Span(data[0], data, 0.9)


def returned(request, data=b""):
    """The worker's answer to a request: one span a byte, and the standing candidate again if it was to be cut."""
    text = (request.ahead if request.realign else b"") + data
    skip = 0 if request.realign else len(request.ahead)
    spans = tuple(span(bytes([byte])) for byte in text)
    return m.DraftReturned(request.request, request.epoch, request.frontier, request.frontier + skip, spans)


def drafter(state=State.ASKED, config=CONFIG):
    stage = DrafterStage(config)
    if state is not State.WAITING:
        [request] = stage.receive(STARTED)
    if state is State.IDLE:
        stage.receive(returned(request, b"abcdef"))
    if state is State.RETIRED:
        stage.receive(m.DraftFailed(request.request, "broken"))
    if state is State.DONE:
        stage.receive(m.Finished(2, m.FinishReason.STOP))
    assert stage._state is state
    return stage


@given(st.sampled_from(State), st.lists(any_message, min_size=1, max_size=4))
def test_any_state_and_any_message_give_messages_or_a_stage_error(state, messages):
    stage = drafter(state)
    for message in messages:
        receive(stage, message)


@given(any_message)
def test_behind_the_end_nothing_is_said_and_nothing_comes_alive(message):
    stage = drafter(State.DONE)
    assert not receive(stage, message)
    assert stage.done


@pytest.mark.parametrize("state", [State.IDLE, State.ASKED, State.RETIRED])
def test_a_generation_starts_once(state):
    assert receive(drafter(state), STARTED) is None


def committed(frontier, data, epoch=0):
    return m.Committed(epoch, frontier + len(data), tuple(m.PathToken(byte, bytes([byte])) for byte in data), 9)


def test_a_disabled_drafter_retires_at_once_and_answers_no_commit():
    stage = DrafterStage(DrafterConfig(enabled=False))
    assert stage.receive(STARTED) == [m.Draft(0, 0, 0, (), retired=True)]
    assert stage.receive(committed(0, b"a")) == []


def test_a_drafter_that_failed_retires_and_a_late_answer_is_dropped():
    stage = drafter()
    assert stage.receive(m.DraftFailed(1, "broken")) == [m.Draft(0, 0, 0, (), retired=True)]
    assert stage.receive(committed(0, b"a")) == []
    assert stage.receive(m.DraftReturned(1, 0, 0, 0, (span(b"a"),))) == []


class World:
    """The cascade's and the worker's side of one drafter: a text that grows, and requests that wait."""

    def __init__(self, config):
        self.stage, self.config = DrafterStage(config), config
        self.text, self.epoch = b"", 0
        self.told = b""  # what the worker knows as committed
        self.waiting, self.drafts, self.commits = [], [], [(0, 0)]
        self.asked_in = 0  # the epoch of the answer under way
        self.continued = b""  # what the answer under way continues: committed bytes, and those ahead of them
        self.note(self.stage.receive(STARTED))

    def note(self, answers):
        for answer in answers:
            if isinstance(answer, m.Draft):
                assert (answer.epoch, answer.frontier) == (self.epoch, len(self.text))
                if answer.spans:
                    assert self.asked_in == self.epoch, "drafted in an epoch that is over"
                    assert self.continued.startswith(self.text), "drafted behind bytes that were not committed"
                self.drafts.append(answer)
                continue
            assert isinstance(answer, m.DraftRequested)
            assert not self.waiting, "two requests in flight"
            self.waiting.append(answer)
            self.told += answer.committed
            assert self.told == STARTED.prompt + self.text, "the worker's context is exactly what is committed"
            assert answer.frontier == len(self.text)
            assert 0 <= answer.limit <= self.config.max_ahead_bytes - len(answer.ahead)

    def commit(self, data, change):
        change = False if not data and change is None else change  # a control token where the candidate goes on
        if change is not None:
            self.epoch += 1
            self.note(self.stage.receive(m.Invalidated(self.epoch, keep=change)))
        message = committed(len(self.text), data, self.epoch)
        self.text += data
        self.commits.append((self.epoch, len(self.text)))
        self.note(self.stage.receive(message))

    def answer(self, data):
        if self.waiting:
            request = self.waiting.pop()
            self.asked_in = request.epoch
            self.continued = self.told[len(STARTED.prompt) :] + request.ahead
            self.note(self.stage.receive(returned(request, data[: request.limit])))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.text("ab", max_size=4), st.sampled_from([None, None, True, False])),
        st.tuples(st.just("answer"), st.text("ab", max_size=12), st.none()),
    ),
    max_size=25,
)
drafter_configs = st.builds(DrafterConfig, st.just(True), st.integers(1, 16), st.integers(1, 8))


@given(drafter_configs, steps)
def test_each_commit_that_is_not_overtaken_is_answered_exactly_once(config, moves):
    """And with the drafter's context in order (case A4): see the assertions in `World.note`."""
    world = World(config)
    for kind, text, change in moves:
        if kind == "commit":
            world.commit(text.encode(), change)
        else:
            world.answer(text.encode())
    asked = len(world.drafts)
    for _ in range(3):  # a stale answer is asked for again, and so on; then all is answered
        world.answer(b"ab")
    assert not world.waiting
    assert len(world.drafts) <= len(world.commits)
    assert len(world.drafts) - asked <= 2
    answered = [(draft.epoch, draft.frontier) for draft in world.drafts]
    assert world.commits[-1] in answered
    assert answered == [one for one in world.commits if one in answered for _ in range(answered.count(one))]


@given(drafter_configs, steps)
def test_where_each_commit_waits_for_its_answer_each_has_exactly_one(config, moves):
    world = World(config)
    world.answer(b"a")
    for kind, text, change in moves:
        if kind == "commit":
            world.commit(text.encode(), change)
            world.answer(b"abab")
        assert [(draft.epoch, draft.frontier) for draft in world.drafts] == world.commits


@given(drafter_configs, steps)
def test_spans_of_one_epoch_join_on_and_stay_within_the_credit(config, moves):
    world = World(config)
    for kind, text, change in moves:
        before = len(world.drafts)
        if kind == "commit":
            world.commit(text.encode(), change)
        else:
            world.answer(text.encode())
        for draft in world.drafts[before:]:
            end = draft.offset + sum(len(one.data) for one in draft.spans)
            assert len(world.text) <= draft.offset <= end <= len(world.text) + config.max_ahead_bytes


@given(st.integers(1, 3))
def test_a_stale_answer_has_no_effect_but_to_be_asked_again(epoch):
    stage = drafter()
    stage.receive(m.Invalidated(epoch))
    assert stage.receive(committed(0, b"x", epoch)) == []  # one request at a time
    [again] = stage.receive(m.DraftReturned(1, 0, 0, 0, (span(b"a"),)))
    assert isinstance(again, m.DraftRequested)
    assert (again.epoch, again.frontier, again.committed, again.ahead) == (epoch, 1, b"x", b"")


@pytest.mark.parametrize("change", [None, False])
def test_a_stale_answer_is_dropped_even_if_its_offset_fits_again(change):
    """`abcdef` stands and more is asked for; then six other bytes are committed, by a mismatch or unseen."""
    stage = drafter(State.IDLE)
    [request] = stage.receive(committed(0, b"a"))
    epoch = 0
    if change is not None:
        epoch = 1
        stage.receive(m.Invalidated(1))
    stage.receive(committed(1, b"xxxxx", epoch))
    [again] = stage.receive(returned(request, b"ghi"))
    assert isinstance(again, m.DraftRequested)
    assert (again.frontier, again.ahead, again.committed) == (6, b"", b"xxxxx")


def test_a4_a_token_cut_in_half_leaves_the_context_exactly_committed():
    """` thank` was drafted, ` th` accepted, the target goes on with `e`."""
    stage = DrafterStage(DrafterConfig())
    [request] = stage.receive(STARTED)
    stage.receive(m.DraftReturned(request.request, 0, 0, 0, (span(b" thank"),)))
    stage.receive(m.Invalidated(1))
    [request] = stage.receive(m.Committed(1, 4, (m.PathToken(1, b" th"), m.PathToken(2, b"e")), 9))
    assert (request.committed, request.ahead, request.frontier) == (b" the", b"", 4)


def test_a_realignment_keeps_the_bytes_and_asks_for_their_spans_again():
    stage = drafter(State.IDLE)  # `abcdef` stands
    stage.receive(m.Invalidated(1, keep=True))
    [request] = stage.receive(m.Committed(1, 2, (m.PathToken(7, b"ab"),), 9))
    assert (request.realign, request.ahead, request.limit) == (True, b"cdef", 8)
    [draft] = stage.receive(returned(request, b"gh"))
    assert (draft.offset, b"".join(one.data for one in draft.spans)) == (2, b"cdefgh")


def test_a_full_credit_is_answered_by_an_empty_draft_without_a_request():
    stage = drafter(config=DrafterConfig(max_ahead_bytes=8, minimum_request_bytes=4))
    stage.receive(m.DraftReturned(1, 0, 0, 0, tuple(span(bytes([byte])) for byte in b"abcdefgh")))
    assert stage.receive(committed(0, b"a")) == [m.Draft(0, 1, 8, ())]
    [request] = stage.receive(committed(1, b"bcde"))
    assert (request.committed, request.ahead, request.limit) == (b"abcde", b"fgh", 5)


def test_the_worker_is_told_of_slips_and_of_tokens_without_bytes_in_the_committed_bytes():
    stage = DrafterStage(DrafterConfig())
    [request] = stage.receive(m.Started((1, 2), b"prompt", (3, 6)))
    assert (request.committed, request.breaks, request.slips) == (b"prompt", (3, 6), ())
    tokens = (m.PathToken(1, b"ab"), m.PathToken(2, b"c"), m.PathToken(3, b""))
    assert stage.receive(m.Committed(0, 3, tokens, 9, slips=(1,))) == []  # one request is under way
    [request] = stage.receive(m.DraftReturned(1, 0, 0, 0, ()))
    assert (request.committed, request.breaks, request.slips) == (b"abc", (3,), (2,))


def test_streaming_it_runs_on_while_there_is_credit_and_says_so():
    limits = {"max_ahead_bytes": 12, "minimum_request_bytes": 2, "request_bytes": 2, "most_request_bytes": 5}
    stage = DrafterStage(DrafterConfig(**limits, running_on=True))
    [request] = stage.receive(m.Started((1,), b"prompt"))
    seen, offset = [], 0
    for _ in range(3):
        span = m.Span(1, b"abcdefgh"[: request.limit], 0.9)
        draft, *more = stage.receive(m.DraftReturned(request.request, 0, 0, offset, (span,)))
        seen.append((request.limit, draft.more))
        offset += request.limit
        [request] = more or [None]
    assert seen == [(2, True), (4, True), (5, False)]  # twice as many each time, up to five; one is not worth it
    [draft] = stage.receive(m.Committed(0, 0, (), 9))
    assert (draft.spans, draft.more) == ((), False)
    [request] = stage.receive(m.Committed(0, 4, (m.PathToken(1, b"abab"),), 9))
    assert request.limit == 2  # behind a commit the first few are wanted soon again


def test_streaming_shown_bytes_that_stand_are_what_is_ahead_in_a_new_epoch():
    stage = DrafterStage(DrafterConfig(running_on=True))
    [request] = stage.receive(m.Started((1,), b"prompt"))
    stage.receive(m.DraftReturned(1, 0, 0, 0, (m.Span(1, b"abcdef", 0.9),)))
    stage.receive(m.Invalidated(1))
    answers = stage.receive(
        m.Committed(1, 2, (m.PathToken(1, b"ab"),), 9, standing=1, released=(m.Span(1, b"c", 0.9),))
    )
    answers += stage.receive(m.DraftReturned(2, 0, 0, 6, ()))  # of the old epoch
    [request] = [one for one in answers if isinstance(one, m.DraftRequested)]
    assert (request.epoch, request.committed, request.ahead) == (1, b"ab", b"c")


def test_a_takeover_drafts_nothing():
    stage = DrafterStage(DrafterConfig(running_on=True))
    stage.receive(m.Started((1,), b"prompt"))
    stage.receive(m.DraftReturned(1, 0, 0, 0, ()))
    [draft] = stage.receive(m.Committed(0, 1, (m.PathToken(1, b"a"),), 9, alone=1))
    assert (type(draft), draft.spans) == (m.Draft, ())
    [request] = stage.receive(m.Committed(0, 2, (m.PathToken(1, b"b"),), 9))
    assert request.committed == b"ab"
