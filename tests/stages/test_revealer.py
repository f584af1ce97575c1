"""The revealer: append-only, exactly as far as the cascade allows."""

from client_view import Client
from hypothesis import given
from hypothesis import strategies as st
from stage_messages import any_message, of, receive

from grimboost import messages as m
from grimboost.stages.configuration import RevealerConfig
from grimboost.stages.revealer import RevealerStage

inputs = of(m.Prefilled, m.Commit)


def shown(events):
    """The chunks joined; each has to begin where the last ended."""
    data = b""
    for event in events:
        if isinstance(event, m.Chunk):
            assert event.offset == len(data)
            assert event.data
            data += event.data
    return data


@given(st.lists(inputs | any_message, max_size=8))
def test_any_messages_give_events_or_a_stage_error_and_the_output_never_shrinks(messages):
    stage, events = RevealerStage(), []
    for message in messages:
        before = shown(events)
        events += receive(stage, message) or []
        assert shown(events).startswith(before)
    dones = [place for place, event in enumerate(events) if isinstance(event, m.Done)]
    assert dones in ([], [len(events) - 1])
    assert stage.done == bool(dones)


@st.composite
def commits(draw):
    """Commits of one output with a growing `reveal_to`, and a last one that may cut into what was held."""
    parts = draw(st.lists(st.binary(max_size=4), min_size=1, max_size=6))
    made, end, reveal = [], 0, 0
    for part in parts:
        reveal = draw(st.integers(reveal, end + len(part)))
        made.append(m.Commit(end, part, reveal, (len(made),)))
        end += len(part)
    cut = draw(st.integers(reveal, end))
    last = m.Commit(end, b"", cut, (7, 8), m.FinishReason.STOP, m.Counts(new_bytes=cut))
    return b"".join(parts), [*made, last]


@given(commits())
def test_bytes_are_shown_exactly_up_to_reveal_to(case):
    text, made = case
    stage, events = RevealerStage(), []
    for commit in made:
        events += stage.receive(commit)
        assert shown(events) == text[: commit.reveal_to]
    done = events[-1]
    assert done == m.Done(m.FinishReason.STOP, (7, 8), made[-1].reveal_to, m.Counts(new_bytes=made[-1].reveal_to))


@given(commits(), st.integers(1, 3))
def test_a_commit_that_leaves_a_gap_or_takes_bytes_back_is_a_stage_error(case, shift):
    _, [*before, last] = case
    stage = RevealerStage()
    for commit in before:
        stage.receive(commit)
    held = before[-1].offset + len(before[-1].data)
    assert receive(stage, m.Commit(held + shift, b"x", held + shift, ())) is None
    assert receive(stage, m.Commit(held, b"x", held + 1 + shift, ())) is None
    if before[-1].reveal_to >= shift:
        assert receive(stage, m.Commit(held, b"x", before[-1].reveal_to - shift, ())) is None
    assert receive(stage, last) is not None  # none of these changed anything


def test_a_chunk_may_end_inside_a_character():
    stage = RevealerStage()
    assert stage.receive(m.Commit(0, b"a\xc3", 2, (1,))) == [m.Chunk(0, b"a\xc3")]


def test_prefill_is_shown_as_progress_and_nothing_follows_the_end():
    stage = RevealerStage()
    assert stage.receive(m.Prefilled(3, 9)) == [m.Progress(3, 9)]
    stage.receive(m.Commit(0, b"", 0, (), m.FinishReason.LENGTH))
    assert receive(stage, m.Prefilled(4, 9)) is None
    assert receive(stage, m.Commit(0, b"", 0, ())) is None


# ---------------------------------------------------------------- streaming mode


def streaming(revisable):
    return RevealerStage(RevealerConfig(streaming=True, revisable=revisable))


def test_released_bytes_are_chunks_that_say_so_and_are_confirmed_later():
    stage = streaming(revisable=False)
    assert stage.receive(m.Reveal(0, b"abc", 2)) == [m.Chunk(0, b"ab", released=True)]
    assert stage.receive(m.Commit(0, b"abcd", 4, (1,))) == [m.CommittedTo(2), m.Chunk(2, b"cd")]
    assert stage.receive(m.Reveal(4, b"e", 5)) == [m.Chunk(4, b"e", released=True)]


def test_revisable_bytes_are_provisional_and_the_first_that_differs_is_taken_back():
    stage = streaming(revisable=True)
    assert stage.receive(m.Reveal(0, b"abc", 3)) == [m.Provisional(0, b"abc")]
    slip = m.Slip(0, 1, b"bc", b"x", 0.9)
    assert stage.receive(m.Commit(0, b"ax", 2, (1,), slips=(slip,))) == [
        m.Slipped(slip),
        m.Retracted(1),
        m.CommittedTo(1),
        m.Chunk(1, b"x"),
    ]


def test_what_stands_behind_a_commit_stays_shown():
    stage = streaming(revisable=True)
    stage.receive(m.Reveal(0, b"abcd", 4))
    assert stage.receive(m.Commit(0, b"ab", 4, (1,), standing=2)) == [m.CommittedTo(2)]
    assert stage.receive(m.Commit(2, b"c", 3, (1,), standing=0)) == [m.Retracted(3), m.CommittedTo(3)]


def test_the_end_takes_back_what_lies_behind_it():
    stage = streaming(revisable=True)
    stage.receive(m.Reveal(0, b"abcd", 4))
    *events, done = stage.receive(m.Commit(0, b"ab", 2, (1,), m.FinishReason.STOP, m.Counts()))
    assert events == [m.Retracted(2), m.CommittedTo(2)]
    assert (done.length, stage.done) == (2, True)


def test_bytes_that_a_stop_string_may_take_back_are_not_final():
    stage = streaming(revisable=True)
    stage.receive(m.Reveal(0, b"abc", 3))
    assert stage.receive(m.Commit(0, b"ab", 3, (1,), standing=1, certain_to=1)) == [m.CommittedTo(1)]
    *events, _ = stage.receive(m.Commit(2, b"", 1, (), m.FinishReason.STOP, m.Counts()))
    assert events == [m.Retracted(2), m.Retracted(1)]


def test_an_append_only_client_is_never_told_to_take_back():
    stage = streaming(revisable=False)
    stage.receive(m.Reveal(0, b"abc", 3))
    assert receive(stage, m.Commit(0, b"ax", 2, (1,))) is None
    assert receive(stage, m.Commit(0, b"ab", 2, (1,), m.FinishReason.STOP, m.Counts())) is None
    assert receive(stage, m.Commit(0, b"abc", 3, (1,))) == [m.CommittedTo(3)]  # these changed nothing


@given(st.booleans(), st.lists(of(m.Reveal, m.Commit) | any_message, max_size=8))
def test_streaming_any_messages_give_events_or_a_stage_error_and_finals_stay(revisable, messages):
    stage, client = streaming(revisable), Client()
    for message in messages:
        for event in receive(stage, message) or []:
            client.read(event)
            assert revisable or not isinstance(event, m.Provisional | m.Retracted)
