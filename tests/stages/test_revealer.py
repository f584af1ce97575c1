"""The revealer: append-only, exactly as far as the cascade allows."""

from hypothesis import given
from hypothesis import strategies as st
from stage_messages import any_message, of, receive

from grimboost import messages as m
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
