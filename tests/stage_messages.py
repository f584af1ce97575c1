"""Hypothesis strategies for every message, over small values so that epochs and offsets often meet."""

from hypothesis import strategies as st

from grimboost import messages as m
from grimboost.errors import StageError
from grimboost.stages.sampling_rule import SamplingRule

epochs = st.integers(0, 2)
offsets = st.integers(0, 6)
ids = st.integers(0, 5)
data = st.binary(max_size=3)
confidences = st.floats(0.0, 1.0)

path_tokens = st.builds(m.PathToken, ids, data)
choices = st.builds(m.Choice, ids, data, st.sampled_from([0.0, 0.05, 1.0, float("inf")]))
spans = st.builds(m.Span, ids, st.binary(min_size=1, max_size=3), confidences)
gated_spans = st.builds(m.GatedSpan, spans, st.just(m.Decision.VERIFY), st.just("strict"))
reasons = st.sampled_from(m.FinishReason)


def tuples(element: st.SearchStrategy, least: int = 0, most: int = 4) -> st.SearchStrategy:
    """Tuples of `least` to `most` elements."""
    return st.lists(element, min_size=least, max_size=most).map(tuple)


BY_TYPE: dict[type[m.Message], st.SearchStrategy] = {
    m.Started: st.builds(m.Started, tuples(ids, 1), data),
    m.Elapsed: st.just(m.Elapsed()),
    m.CancelRequested: st.just(m.CancelRequested()),
    m.DraftReturned: st.builds(m.DraftReturned, st.integers(0, 3), epochs, offsets, offsets, tuples(spans)),
    m.DraftFailed: st.builds(m.DraftFailed, st.integers(0, 3), st.just("broken")),
    m.Draft: st.builds(m.Draft, epochs, offsets, offsets, tuples(spans), st.booleans()),
    m.Spans: st.builds(m.Spans, epochs, offsets, offsets, tuples(gated_spans), st.booleans()),
    m.Prefilled: st.builds(m.Prefilled, offsets, offsets),
    m.Verdict: st.builds(
        m.Verdict,
        epoch=epochs,
        frontier=offsets,
        tokens=tuples(path_tokens, 1),
        outcome=st.sampled_from(m.Outcome),
        drafted=st.integers(0, 4),
        drafted_bytes=offsets,
        accepted=st.integers(0, 4),
        accepted_bytes=offsets,
        passes=st.integers(1, 3),
        rows=st.integers(1, 5),
        candidate=tuples(spans),
        choices=tuples(path_tokens),
    ),
    m.Release: st.builds(m.Release, epochs, offsets, tuples(spans)),
    m.Reveal: st.builds(m.Reveal, offsets, data, offsets),
    m.Certified: st.builds(m.Certified, st.none() | confidences),
    m.Audited: st.just(m.Audited(())),
    m.TargetFailed: st.just(m.TargetFailed("out of memory")),
    m.Commit: st.builds(
        m.Commit,
        offsets,
        data,
        offsets,
        tuples(ids),
        st.none() | reasons,
        st.none() | st.just(m.Counts()),
        standing=st.just(0) | offsets,
        certain_to=st.none() | offsets,
    ),
    m.Committed: st.builds(
        m.Committed,
        epochs,
        offsets,
        tuples(path_tokens),
        st.integers(0, 5),
        standing=st.just(0) | offsets,
        released=st.just(()) | tuples(spans),
        doubt_until=st.just(0) | offsets,
        alone=st.integers(0, 2),
        slips=st.just(()) | tuples(offsets, most=2),
    ),
    m.Invalidated: st.builds(m.Invalidated, epochs, st.booleans()),
    m.Finished: st.builds(m.Finished, offsets, reasons),
    m.Opened: st.just(m.Opened()),
    m.PassReturned: st.builds(m.PassReturned, st.integers(0, 5), tuples(choices), offsets),
    m.PassFailed: st.just(m.PassFailed("out of memory")),
    m.Released: st.builds(m.Released, offsets),
    m.Progress: st.builds(m.Progress, offsets, offsets),
    m.OpenRequested: st.just(m.OpenRequested(SamplingRule())),
}

any_message = st.one_of(*BY_TYPE.values())


def of(*types: type[m.Message]) -> st.SearchStrategy:
    """Messages of these types."""
    return st.one_of(*(BY_TYPE[kind] for kind in types))


def receive(stage, message) -> list[m.Message] | None:
    """The law of every stage: any state and any message give messages or `StageError` (None), nothing else."""
    try:
        answers = stage.receive(message)
    except StageError:
        return None
    assert isinstance(answers, list)
    assert all(isinstance(answer, m.Message) for answer in answers)
    return answers
