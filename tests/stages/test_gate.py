"""The gate: every span is verified in strict mode; in streaming mode it is released unless a reason forbids it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from stage_messages import any_message, of, receive

from grimboost import messages as m
from grimboost.stages.calibration import CalibrationCurve
from grimboost.stages.configuration import GateConfig
from grimboost.stages.gate import GateStage, inside_character

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


# ---------------------------------------------------------------- streaming mode


STREAMING = GateConfig(
    mode="streaming", release="always", threshold=0.5, anchor_bytes=100, max_unverified_bytes=50
)


def spans(*texts, confidence=0.9):
    return tuple(m.Span(1, text, confidence) for text in texts)


def draft(offset, *texts, confidence=0.9, frontier=0, epoch=0):
    return m.Draft(epoch, frontier, offset, spans(*texts, confidence=confidence))


def committed(frontier, data=b"", epoch=0, **more):
    return m.Committed(epoch, frontier, (m.PathToken(1, data),), 50, **more)


def streaming(**changes):
    return GateStage(replace(STREAMING, **changes))


def split(answers):
    """Bytes released with their offset, or None; and the reasons given."""
    released = [one for one in answers if isinstance(one, m.Release)]
    said = [gated.reason for one in answers if isinstance(one, m.Spans) for gated in one.spans]
    if not released:
        return None, said
    [release] = released
    return (release.offset, b"".join(span.data for span in release.spans)), said


def test_confident_spans_are_released_before_they_are_sent_on():
    answers = streaming().receive(draft(0, b"one", b" two"))
    assert [type(answer) for answer in answers] == [m.Release, m.Spans]
    assert split(answers) == ((0, b"one two"), ["confident", "confident"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"release": "never"}, "never"),
        ({"greedy": False}, "sampling"),
        ({"release": "certified"}, "certificate"),
        ({"anchor_bytes": 2}, "anchor"),
        ({"max_unverified_bytes": 2}, "cap"),
        ({"max_unverified_tokens": 0}, "cap"),
        ({"threshold": 0.95}, "confidence"),
        ({"calibration": CalibrationCurve((0.0, 1.0), (0.0, 0.4))}, "confidence"),
    ],
)
def test_each_reason_not_to_release(changes, reason):
    assert split(streaming(**changes).receive(draft(0, b"one"))) == (None, [reason])


def test_the_first_reason_that_holds_is_named():
    """All hold; they are taken away from the front."""
    order = ("never", "sampling", "certificate", "doubt", "anchor", "cap", "incomplete", "confidence")
    ways = {
        "never": {"release": "never"},
        "sampling": {"greedy": False},
        "certificate": {"release": "certified"},
        "anchor": {"anchor_bytes": 1},
        "cap": {"max_unverified_bytes": 1},
        "confidence": {"threshold": 0.99},
    }
    for place, reason in enumerate(order):
        changes = {}
        for held in reversed(order[place:]):
            changes |= ways.get(held, {})
        stage = streaming(**changes)
        if "doubt" in order[place:]:
            stage.receive(committed(0, doubt_until=5))
        span = m.Span(1, b"abc", 0.9, whole="incomplete" not in order[place:])
        _, said = split(stage.receive(m.Draft(0, 0, 0, (span,))))
        assert said == [reason]


def test_a_span_behind_one_that_waits_waits_too_and_is_released_once_that_is_committed():
    stage = streaming()
    one, two = m.Span(1, b"no", 0.1), m.Span(1, b"yes", 0.9)
    assert split(stage.receive(m.Draft(0, 0, 0, (one, two)))) == (None, ["confidence", "behind"])
    assert split(stage.receive(committed(2, b"no"))) == ((2, b"yes"), [])


def test_nothing_is_released_in_a_doubt_interval_nor_while_the_target_goes_alone():
    stage = streaming()
    stage.receive(committed(0, doubt_until=4))
    assert split(stage.receive(draft(0, b"abc", b"def"))) == (None, ["doubt", "doubt"])
    assert split(stage.receive(committed(3, b"abc", doubt_until=4))) == (None, [])
    assert split(stage.receive(committed(6, b"def", doubt_until=4))) == (None, [])
    assert split(stage.receive(draft(6, b"ghi", frontier=6))) == ((6, b"ghi"), ["confident"])
    stage.receive(committed(9, b"ghi", alone=2))
    assert split(stage.receive(draft(9, b"jkl", frontier=9))) == (None, ["doubt"])


def test_the_cap_counts_what_is_shown_and_not_verified():
    stage = streaming(max_unverified_bytes=5, max_unverified_tokens=9)
    assert split(stage.receive(draft(0, b"abc", b"de", b"f"))) == (
        (0, b"abcde"),
        ["confident", "confident", "cap"],
    )
    assert split(stage.receive(committed(3, b"abc"))) == ((5, b"f"), [])
    tokens = streaming(max_unverified_tokens=2)
    assert split(tokens.receive(draft(0, b"a", b"b", b"c")))[0] == (0, b"ab")
    assert split(tokens.receive(committed(1, b"a")))[0] == (2, b"c")


def test_an_anchor_waits_until_everything_shown_is_verified():
    stage = streaming(anchor_bytes=4)
    assert split(stage.receive(draft(0, b"abc", b"def")))[0] == (0, b"abc")
    assert split(stage.receive(committed(2, b"ab")))[0] is None
    assert split(stage.receive(committed(3, b"c")))[0] == (3, b"def")  # the next anchor is at 7


def test_half_a_character_is_released_with_its_other_half_or_not_at_all():
    stage = streaming()
    halves = [bytes([byte]) for byte in "é".encode()]
    assert split(stage.receive(draft(0, b"caf", halves[0]))) == ((0, b"caf"), ["confident", "incomplete"])
    assert split(stage.receive(draft(4, halves[1], b"!"))) == ((3, "é!".encode()), ["confident", "confident"])


def test_a_character_that_the_target_has_begun_is_ended_by_a_release():
    stage = streaming()
    stage.receive(committed(1, "é".encode()[:1]))
    assert split(stage.receive(draft(1, "é".encode()[1:], frontier=1)))[0] == (1, "é".encode()[1:])


def test_a_new_epoch_voids_what_waits_and_says_what_stands():
    stage = streaming()
    stage.receive(draft(0, b"abc", b"def"))
    stage.receive(m.Invalidated(1))
    assert split(stage.receive(committed(3, b"abc", epoch=1, standing=3, released=spans(b"def"))))[0] is None
    assert split(stage.receive(draft(6, b"old")))[0] is None  # of epoch 0
    assert split(stage.receive(draft(6, b"ghi", epoch=1, frontier=3))) == ((6, b"ghi"), ["confident"])


def test_spans_of_shown_bytes_that_come_again_are_not_released_again():
    stage = streaming()
    stage.receive(draft(0, b"abc", b"def"))
    stage.receive(m.Invalidated(1, keep=True))
    stage.receive(committed(1, b"a", epoch=1, standing=5))
    answers = stage.receive(draft(1, b"bc", b"def", b"g", epoch=1, frontier=1))
    assert split(answers) == ((6, b"g"), ["standing", "standing", "confident"])


def test_a_certificate_that_opens_releases_what_waits_and_one_that_closes_stops():
    stage = streaming(release="certified", threshold=1.0, floor=0.3)
    assert split(stage.receive(draft(0, b"abc"))) == (None, ["certificate"])
    assert split(stage.receive(m.Certified(0.8)))[0] == (0, b"abc")
    assert split(stage.receive(m.Certified(None)))[0] is None
    assert split(stage.receive(draft(3, b"def"))) == (None, ["certificate"])


@given(st.lists(of(m.Draft, m.Committed, m.Invalidated, m.Finished, m.Certified), max_size=8), any_message)
def test_streaming_any_state_and_any_message_give_messages_or_a_stage_error(before, message):
    stage = streaming()
    for one in (*before, message):
        receive(stage, one)


@given(st.text(max_size=3), st.integers(0, 4))
def test_inside_character_is_what_a_decoder_says(text, more):
    whole = text.encode()
    assert not inside_character(whole)
    for end in range(len(whole)):
        try:
            whole[:end].decode()
            expected = False
        except UnicodeDecodeError:
            expected = True
        assert inside_character(whole[:end]) == expected
    assert not inside_character(b"\x80" * more)
