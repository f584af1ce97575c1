"""Spans wait contiguously; what does not join on is noticed."""

from grimboost import messages as m
from grimboost.stages.waiting_spans import WaitingSpans


def message(offset, *texts, retired=False):
    spans = tuple(m.GatedSpan(m.Span(1, text, 0.9), m.Decision.VERIFY, "x") for text in texts)
    return m.Spans(0, 0, offset, spans, retired)


def test_spans_that_join_on_are_taken_and_others_noticed():
    waiting = WaitingSpans()
    waiting.join(message(0, b"ab"))
    waiting.join(message(2, b"c"))
    assert ([span.data for span in waiting], waiting.lost, len(waiting)) == ([b"ab", b"c"], False, 2)
    waiting.join(message(9, b"d"))
    assert (len(waiting), waiting.lost) == (2, True)
    waiting.clear()
    assert (len(waiting), waiting.lost) == (0, False)


def test_that_a_drafter_has_retired_loses_nothing():
    waiting = WaitingSpans()
    waiting.join(message(5, retired=True))
    assert not waiting.lost


def test_it_tells_which_spans_were_released():
    waiting = WaitingSpans()
    waiting.release(m.Release(0, 0, (m.Span(1, b"ab", 0.9),)))
    waiting.join(message(0, b"ab", b"c"))
    assert waiting.released(waiting.first(9)) == [True, False]
    waiting.keep(list(waiting)[1:], 2)
    assert waiting.released(waiting.first(9)) == [False]
    waiting.stand((m.Span(1, b"xyz", 0.5),))
    assert waiting.released(waiting.first(9)) == [True]
