"""The lookup drafter with a datastore: what it proposes from earlier generations, and when it would rather not."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grimboost.adapters.datastore import Datastore
from grimboost.adapters.drafter import DraftSession, Proposal, Remembering
from grimboost.adapters.lookup_drafter import LookupDrafter
from grimboost.adapters.text_index import LONGEST

PROMPT = b"<user>Tell me of the fox.<answer>"
ANSWER = b"The quick fox jumps over the lazy dog, and goes on to see whether the dog has noticed. It has not."


def drafter(*past: tuple[bytes, bytes]) -> LookupDrafter:
    made = LookupDrafter(Datastore())
    for prompt, output in past:
        made.remember(prompt, output)
    return made


def session(of: LookupDrafter, *texts: bytes) -> DraftSession:
    begun = of.begin()
    for text in texts:
        begun.extend(text)
    return begun


def test_the_same_prompt_again_gets_its_whole_answer_at_once() -> None:
    proposal = session(drafter((PROMPT, ANSWER)), PROMPT).propose(b"", 1000)
    assert (proposal.data, proposal.whole) == (ANSWER, True)
    assert min(token.confidence for token in proposal.tokens) > 0.99


@pytest.mark.parametrize("size", [1, 3, 40, LONGEST + 100])
def test_whatever_the_length_of_the_prompt(size: int) -> None:
    prompt = random.Random(1).randbytes(size)
    proposal = session(drafter((b"other>", b"nothing"), (prompt, ANSWER)), prompt).propose(b"", 1000)
    assert proposal.data == ANSWER
    assert min(token.confidence for token in proposal.tokens) > 0.99


def test_a_long_answer_comes_by_and_by() -> None:
    begun = session(drafter((PROMPT, ANSWER)), PROMPT)
    got = begun.propose(b"", 20)
    assert (got.data, got.whole) == (ANSWER[:20], False)
    assert begun.propose(ANSWER[:20], 20).data == ANSWER[20:40]
    begun.extend(ANSWER[:30])
    assert begun.propose(ANSWER[30:40], 500) == Proposal(
        ANSWER[40:], begun.propose(ANSWER[30:40], 500).tokens, whole=True
    )
    assert begun.propose(ANSWER[30:], 500).data == b""


def test_where_one_answer_parts_another_one_is_followed() -> None:
    other = ANSWER.replace(b"lazy dog", b"lazy cat")
    begun = session(drafter((PROMPT, ANSWER), (PROMPT, other)), PROMPT)
    assert begun.propose(b"", 1000).data == other  # the later one
    begun.extend(ANSWER[:35])  # ... the lazy d
    proposal = begun.propose(b"", 1000)
    assert proposal.data == ANSWER[35:]
    assert min(token.confidence for token in proposal.tokens) > 0.8


def test_without_a_datastore_nothing_is_kept() -> None:
    plain = LookupDrafter()
    assert isinstance(plain, Remembering)
    plain.remember(PROMPT, ANSWER)
    plain.settle()
    assert session(plain, b"A prompt.").propose(b"", 100) == Proposal()


def test_an_answer_of_nothing_is_not_kept() -> None:
    made = drafter((PROMPT, b""))
    assert made.datastore
    assert made.datastore.statistics().texts == 0


def test_the_longer_match_is_followed_wherever_it_is() -> None:
    stored = drafter((b"?", b"a very quick brown fox jumps"))
    assert session(stored, b"?", b"fox runs. a very quick brown fox").propose(b"", 6).data == b" jumps"
    own = drafter((b"?", b"one fox jumps"))
    assert (
        session(own, b"?", b"a very quick brown fox runs. a very quick brown fox").propose(b"", 5).data == b" runs"
    )


def test_a_source_that_was_wrong_so_far_is_followed_less() -> None:
    """Each kind of match has its own experience: equal lengths, and the datastore has always been wrong."""
    made = drafter((b"?", b"some words and the fox jumps"))
    text = b"more words and the fox sits; even more words and the fox"
    for _ in range(40):
        made.stored_confidence.observe(19, right=False)
    assert session(made, b"?", text).propose(b"", 5).data == b" sits"


def test_how_an_answer_begins_is_judged_apart() -> None:
    """Behind the prompt mostly the template matches. That this is worth little is learned there and only there."""
    made = drafter((PROMPT, ANSWER))
    template = b"of the fox.<answer>"
    before = made.stored_confidence.byte(len(template))
    confidences = []
    for number in range(30):
        begun = session(made, b"<user>Question %d " % number + template)
        proposal = begun.propose(b"", 50)
        if not proposal.data:
            break
        confidences.append(proposal.tokens[0].confidence)
        begun.extend(b"It is another answer.")
    assert confidences[-1] < confidences[0] - 0.3
    assert made.stored_confidence.byte(len(template)) == before
    assert min(token.confidence for token in session(made, PROMPT).propose(b"", 99).tokens) > 0.99


def test_an_accepted_draft_is_a_use_of_the_text_and_a_rejected_one_is_none() -> None:
    store = Datastore(capacity=2 * (64 + len(PROMPT) + len(ANSWER)))
    made = LookupDrafter(store)
    made.remember(PROMPT, ANSWER)
    made.remember(b"second" + PROMPT[6:], ANSWER)
    begun = session(made, PROMPT)
    begun.propose(b"", 50)
    begun.extend(ANSWER[:10])  # accepted: now the second one is the older
    begun = session(made, b"second" + PROMPT[6:])
    begun.propose(b"", 50)
    begun.extend(b"Nothing")
    made.remember(b"third>" + PROMPT[6:], ANSWER)
    assert [text.data[:6] for text in store._texts] == [PROMPT[:6], b"third>"]


def test_a_candidate_of_somebody_else_is_not_continued() -> None:
    begun = session(drafter((PROMPT, ANSWER)), PROMPT)
    begun.propose(b"", 10)
    assert begun.propose(b"A cat", 10) == Proposal()


words = st.lists(st.sampled_from([b"a", b"b", b"ab", b" the", b" fox", b"\xff\x00"]), max_size=12).map(b"".join)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(words, words), max_size=5),
    words,
    st.lists(st.tuples(st.binary(max_size=6) | words, st.integers(0, 9), st.integers(0, 40)), max_size=8),
)
def test_any_course_is_lawful_and_every_draft_stands_somewhere(
    past: list[tuple[bytes, bytes]], prompt: bytes, rounds: list[tuple[bytes, int, int]]
) -> None:
    begun, text = session(drafter(*past), prompt), prompt
    for wrong, right, limit in rounds:
        whole = begun.propose(b"", limit)
        more = begun.propose(whole.data[:right], limit)
        for proposal in (whole, more):
            assert len(proposal.data) <= limit
            assert sum(token.length for token in proposal.tokens) == len(proposal.data)
            assert all(token.length > 0 and 0.0 <= token.confidence <= 1.0 for token in proposal.tokens)
        sources = [one + output for one, output in past] + [text + whole.data]
        assert any(whole.data in source for source in sources)
        begun.extend(whole.data[:right] + wrong)
        text += whole.data[:right] + wrong
