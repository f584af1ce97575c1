"""What a log knows of its target and its drafter, asked by hand."""

import pytest

from grimboost import messages as m
from grimboost.known_answers import (
    UNASKED,
    DrafterAsker,
    DrafterMemory,
    NotRecorded,
    TargetAsker,
    TargetMemory,
)
from grimboost.log import LogEntry
from grimboost.stages.configuration import CostCurve

CURVE = CostCurve((1, 2, 4), (1.0, 2.0, 3.0))


def choice(id: int) -> m.Choice:
    return m.Choice(id, b"x", 1.0)


def log_of(stage: str, *exchanges: tuple[float, m.Message, float, m.Message | None]) -> list[LogEntry]:
    """Requests and answers with their times."""
    entries = []
    for asked, request, answered, answer in exchanges:
        entries.append(LogEntry(len(entries), asked, stage, m.Elapsed(), (request,)))  # type: ignore[arg-type]
        if answer is not None:
            entries.append(LogEntry(len(entries), answered, stage, answer, ()))  # type: ignore[arg-type]
    return entries


def target(invariant: bool = True) -> TargetMemory:
    """Prompt 1 2; behind it the target wants 5, was offered 6 7 and refused, then went on to 8."""
    passes = (
        (0.0, m.PassRequested(1, 0, (1,), 0), 0.5, m.PassReturned(1, (), 1)),
        (1.0, m.PassRequested(2, 1, (2, 6, 7), 3), 1.75, m.PassReturned(2, tuple(map(choice, (5, 60, 70))), 4)),
        (2.0, m.PassRequested(3, 2, (5,), 1), 2.25, m.PassReturned(3, (choice(8),), 3)),
    )
    return TargetMemory(log_of("verifier", *passes), invariant, CURVE)


def test_a_choice_is_known_behind_its_prefix_in_any_pass() -> None:
    asker = TargetAsker(target())
    answer = asker.ask(m.PassRequested(1, 0, (1, 2, 5), 2))
    assert isinstance(answer.message, m.PassReturned)
    assert (answer.message.choices, answer.message.length) == ((choice(5), choice(8)), 3)
    assert not answer.as_recorded
    answer = asker.ask(m.PassRequested(2, 2, (6,), 1))  # what was rejected was asked about, too
    assert isinstance(answer.message, m.PassReturned)
    assert answer.message.choices == (choice(60),)


def test_a_choice_behind_another_prefix_is_unknown_and_the_first_one_has_to_be_known() -> None:
    asker = TargetAsker(target())
    answer = asker.ask(m.PassRequested(1, 0, (1, 2, 5, 9), 3))
    assert isinstance(answer.message, m.PassReturned)
    assert answer.message.choices[:2] == (choice(5), choice(8))
    assert answer.message.choices[2] is UNASKED
    with pytest.raises(NotRecorded):
        asker.ask(m.PassRequested(2, 4, (3,), 1))
    with pytest.raises(NotRecorded):  # 6 stands where it was fed behind 1 2 5, not behind 1 2
        asker.ask(m.PassRequested(3, 3, (6, 7), 2))


def test_a_pass_takes_as_long_as_the_same_one_did_or_as_many_rows_or_by_the_curve() -> None:
    memory = target()
    assert memory.seconds(m.PassRequested(9, 1, (2, 6, 7), 3)) == 0.75
    assert memory.seconds(m.PassRequested(9, 1, (2, 5, 7), 3)) == 0.75
    assert memory.seconds(m.PassRequested(9, 3, (3,), 1)) == 0.375  # between 0.5 and 0.25
    scale = 0.3  # the middle of 0.5 / 1, 0.75 / 2.5 and 0.25 / 1
    assert memory.seconds(m.PassRequested(9, 3, (3, 4), 2)) == pytest.approx(scale * 2.0)


def test_where_the_shape_of_a_pass_matters_only_the_recorded_row_of_passes_is_known() -> None:
    asker = TargetAsker(target(invariant=False))
    assert asker.ask(m.PassRequested(1, 0, (1,), 0)).as_recorded
    with pytest.raises(NotRecorded, match="row-invariant"):
        asker.ask(m.PassRequested(2, 1, (2, 6), 2))
    with pytest.raises(NotRecorded):  # the same as recorded, but behind another one
        asker.ask(m.PassRequested(3, 2, (5,), 1))


def test_a_slot_is_given_back_as_long_as_it_is() -> None:
    asker = TargetAsker(target())
    asker.ask(m.PassRequested(1, 0, (1, 2, 5), 2))
    assert asker.ask(m.ReleaseRequested(2)).message == m.Released(2)
    assert asker.ask(m.ReleaseRequested(7)).message == m.Released(3)


def request(number: int, committed: bytes, ahead: bytes = b"", limit: int = 8, **more: object) -> m.DraftRequested:
    return m.DraftRequested(number, 0, 10 * number, committed, ahead, limit, **more)  # type: ignore[arg-type]


def drafted(number: int, data: bytes) -> m.DraftReturned:
    return m.DraftReturned(number, 0, 10 * number, 10 * number, (m.Span(1, data, 0.9),))


def drafter() -> DrafterMemory:
    return DrafterMemory(
        log_of(
            "drafter",
            (0.0, request(1, b"ab"), 0.25, drafted(1, b"one")),
            (1.0, request(2, b"", b"one"), 1.5, drafted(2, b"two")),
            (2.0, request(3, b"cd"), 2.125, drafted(3, b"three")),
            (3.0, request(4, b"ef"), 0.0, None),
            (4.0, m.DraftRequested(5, 0, 0, b"gh", b"", 8), 0.0, None),
        )
    )


def spans(answer: m.Message | None) -> bytes:
    assert isinstance(answer, m.DraftReturned)
    return b"".join(span.data for span in answer.spans)


def test_the_same_question_has_the_same_answer_however_the_text_came() -> None:
    asker = DrafterAsker(drafter())
    answer = asker.ask(request(7, b"abcd"))
    assert (spans(answer.message), answer.seconds, answer.as_recorded) == (b"three", 0.125, False)
    assert isinstance(answer.message, m.DraftReturned)
    assert (answer.message.request, answer.message.frontier, answer.message.offset) == (7, 70, 70)


def test_what_is_as_recorded_ends_with_the_first_other_question() -> None:
    asker = DrafterAsker(drafter())
    assert asker.ask(request(1, b"ab")).as_recorded
    assert not asker.ask(request(2, b"cd")).as_recorded  # the one between was left out
    asker = DrafterAsker(drafter())
    assert not asker.ask(request(1, b"ab", slips=(0,))).as_recorded  # something to learn from
    assert not asker.ask(request(2, b"", b"one")).as_recorded


@pytest.mark.parametrize(
    "other",
    [
        request(1, b"ab", limit=7),
        request(1, b"ax"),
        request(1, b"ab", b"one"),
        request(1, b"ab", breaks=(1,)),
        request(1, b"ab", realign=True),
    ],
)
def test_another_question_has_no_answer(other: m.DraftRequested) -> None:
    with pytest.raises(NotRecorded):
        DrafterAsker(drafter()).ask(other)


def test_going_on_belongs_to_what_was_drafted_before() -> None:
    asker = DrafterAsker(drafter())
    asker.ask(request(1, b"ab"))
    answer = asker.ask(request(9, b"", b"one"))
    assert (spans(answer.message), answer.as_recorded) == (b"two", True)
    assert isinstance(answer.message, m.DraftReturned)
    assert answer.message.offset == 93


def test_an_answer_that_never_came_takes_at_least_as_long_as_it_was_waited_for() -> None:
    asker = DrafterAsker(drafter())
    for one in (request(1, b"ab"), request(2, b"", b"one"), request(3, b"cd")):
        asker.ask(one)
    answer = asker.ask(request(4, b"ef"))
    assert (answer.message, answer.seconds, answer.as_recorded) == (None, 1.0, True)
