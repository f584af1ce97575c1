"""Drafters: the lookup drafter against a brute-force oracle, scripts, and one with a tokenizer of its own (A4)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import BYTES, loaded
from token_drafter import TokenDrafter, byte_driven

from grimboost.adapters.drafter import DraftSession, Proposal
from grimboost.adapters.lookup_drafter import MINIMUM_MATCH, LookupDrafter, MatchConfidence
from grimboost.adapters.script_drafter import ScriptDrafter
from grimboost.adapters.scripted_target import ScriptedTarget
from grimboost.adapters.segmentation import LongestMatchSegmenter
from grimboost.adapters.vocabulary import Vocabulary
from grimboost.engine import Engine


def session(text: bytes) -> DraftSession:
    """A lookup session that has read `text`."""
    begun = LookupDrafter().begin()
    begun.extend(text)
    return begun


def assert_lawful(proposal: Proposal, limit: int) -> Proposal:
    assert len(proposal.data) <= limit
    assert sum(token.length for token in proposal.tokens) == len(proposal.data)
    assert all(token.length > 0 and 0.0 <= token.confidence <= 1.0 for token in proposal.tokens)
    return proposal


# ---------------------------------------------------------------- lookup


def test_it_goes_on_as_the_text_went_on_the_last_time() -> None:
    text = b"a fox ran. a fox sat. a fox"
    assert session(text).propose(b"", 4).data == b" sat"


def test_the_longest_match_wins_over_a_later_one() -> None:
    assert session(b"red fox ran, blue fox sat, red fox").propose(b"", 4).data == b" ran"


@pytest.mark.parametrize("text", [b"", b"a", b"abcdef", b"ab ca d a"], ids=repr)
def test_nothing_is_proposed_where_nothing_matches(text: bytes) -> None:
    assert session(text).propose(b"", 20) == Proposal()


def test_a_periodic_text_goes_on_for_ever() -> None:
    assert session(b" ha ha ha").propose(b"", 14).data == b" ha ha ha ha h"
    assert session(b"aaa").propose(b"", 7).data == b"aaaaaaa"


def test_a_proposal_goes_on_behind_what_still_stands() -> None:
    text = b"the quick fox jumps over. the quick"
    whole = session(text).propose(b"", 18).data
    stepwise = session(text)
    first = stepwise.propose(b"", 8).data
    second = stepwise.propose(first, 10).data
    assert first + second == whole == b" fox jumps over. t"
    stepwise.extend(first[:4])  # half of it became final
    assert stepwise.propose(first[4:] + second, 5).data == b"he qu"


def test_behind_a_candidate_of_somebody_else_it_abstains_where_nothing_reads_so() -> None:
    begun = session(b"the quick fox jumps. the quick")
    begun.propose(b"", 8)
    assert begun.propose(b" cat", 8) == Proposal()
    begun.extend(b" dog")  # a full reject
    assert begun.propose(b" fox", 8).data == b" jumps. "
    assert begun.propose(b" fax", 8) == Proposal()


def test_behind_shown_bytes_that_stand_by_themselves_it_goes_on_as_the_text_did() -> None:
    """They are the drafter's own, although the target would have chosen others, or somebody else's."""
    begun = session(b"the quick fox jumps. the lazy dog sleeps. the quick")
    begun.propose(b"", 4)
    assert begun.propose(b" dog", 8).data == b" sleeps."
    assert begun.propose(b" dog sleeps", 5).data == b". the"
    begun.slipped(1)
    begun.extend(b" dog")
    assert begun.propose(b" sl", 4).data == b"eeps"


def test_a_slip_teaches_that_the_byte_was_wrong_although_it_stands() -> None:
    drafter = LookupDrafter()
    begun = drafter.begin()
    begun.extend(b"abcdefgh abcd")
    begun.propose(b"", 4)
    before = drafter.confidence.byte(5), drafter.confidence.byte(6)
    begun.slipped(1)
    begun.extend(b"efgh")
    assert drafter.confidence.byte(5) < before[0]
    assert drafter.confidence.byte(6) == before[1]


def test_a5_what_stood_behind_a_control_token_is_not_how_the_text_went_on() -> None:
    """An end of turn has no bytes; a copy that runs over it would say what the target never says there."""
    begun = LookupDrafter().begin()
    begun.breaks([12])
    begun.extend(b"say red kite\nassistant\nsay red")
    whole = begun.propose(b"", 20)
    assert (whole.data, whole.whole) == (b" kite", True)
    begun.extend(b" kite")
    assert begun.propose(b"", 20) == Proposal()
    assert begun.propose(b"\nass", 10).data == b"istant\nsay"  # behind it the text goes on


def test_what_is_over_the_limit_is_not_proposed() -> None:
    begun = session(b"thank you so much, thank")
    assert begun.propose(b"", 0) == Proposal()
    assert begun.propose(b"", 1).data == b" "
    assert [token.length for token in begun.propose(b"", 9).tokens] == [4, 3, 2]


def test_each_session_has_its_own_text() -> None:
    drafter = LookupDrafter()
    one, other = drafter.begin(), drafter.begin()
    one.extend(b"thank you, thank")
    other.extend(b"thank them, thank")
    assert (one.propose(b"", 4).data, other.propose(b"", 5).data) == (b" you", b" them")


def test_confidence_learns_from_what_became_final() -> None:
    def after(committed: bytes) -> float:
        drafter = LookupDrafter()
        begun = drafter.begin()
        begun.extend(b"thank you, thank")
        before = drafter.confidence.byte(5)
        assert begun.propose(b"", 4).data == b" you"
        begun.extend(committed)
        return drafter.confidence.byte(5) - before

    assert after(b" you") > 0
    assert after(b"s") < 0
    assert after(b"") == 0


def test_a_drafter_that_was_wrong_is_less_sure_of_itself() -> None:
    drafter = LookupDrafter()
    sure = []
    for _ in range(30):
        begun = drafter.begin()
        begun.extend(b"thank you, thank")
        sure.append(begun.propose(b"", 4).tokens[0].confidence)
        begun.extend(b"ful")
    assert sure == sorted(sure, reverse=True)
    assert sure[-1] < sure[0] / 2


@given(st.lists(st.tuples(st.integers(0, 200), st.booleans()), max_size=50))
def test_confidence_is_a_probability(observed: list[tuple[int, bool]]) -> None:
    confidence = MatchConfidence()
    for length, right in observed * 60:  # often enough to forget
        confidence.observe(length, right)
        assert 0.0 <= confidence.byte(length) <= 1.0


def test_longer_matches_are_trusted_more_until_there_is_experience() -> None:
    bytes_right = [MatchConfidence().byte(length) for length in range(80)]
    assert bytes_right == sorted(bytes_right)
    assert bytes_right[0] == 0.5


def continuations(text: bytes, limit: int) -> set[bytes]:
    """Brute force: what followed each earlier occurrence of the longest suffix that has one."""
    for length in range(len(text) - 1, MINIMUM_MATCH - 1, -1):
        ends = [end for end in range(length, len(text)) if text[end - length : end] == text[-length:]]
        if ends:
            return {
                (text[end:] * limit)[:limit] if end + limit > len(text) else text[end : end + limit]
                for end in ends
            }
    return set()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([b"a", b"b", b"ab", b"ba", b" the", b"\xff\x00"]), max_size=16), st.integers(1, 12)
)
def test_the_proposal_followed_an_earlier_occurrence_of_the_longest_suffix(parts: list[bytes], limit: int) -> None:
    text = b"".join(parts)
    proposal = assert_lawful(session(text).propose(b"", limit), limit)
    want = continuations(text, limit)
    assert proposal.data in want if want else proposal == Proposal()


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=30), st.lists(st.tuples(st.binary(max_size=6), st.integers(0, 9), st.integers(0, 12))))
def test_any_course_of_commits_and_candidates_is_lawful(
    prompt: bytes, rounds: list[tuple[bytes, int, int]]
) -> None:
    begun = session(prompt)
    for wrong, right, limit in rounds:
        proposal = assert_lawful(begun.propose(b"", limit), limit)
        assert_lawful(begun.propose(proposal.data[:right], limit), limit)
        begun.extend(proposal.data[:right] + wrong)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([b"a", b"b", b"ab", b" the", b"x"]), min_size=4, max_size=12),
    st.lists(
        st.tuples(
            st.sampled_from([b"", b"a", b"ab", b"x", b" theab"]),
            st.integers(0, 9),
            st.integers(0, 12),
            st.integers(0, 9),
            st.none() | st.integers(0, 5),
        ),
        max_size=8,
    ),
)
def test_any_course_with_shown_bytes_that_stand_is_lawful(
    parts: list[bytes], rounds: list[tuple[bytes, int, int, int, int | None]]
) -> None:
    """What stands grows by drafts, is cut short, begins with anybody's bytes, and slips; nothing is undefined."""
    begun = session(b"".join(parts))
    for foreign, kept, limit, committed, slip in rounds:
        first = assert_lawful(begun.propose(foreign, limit), limit)
        ahead = foreign + first.data[:kept]
        second = assert_lawful(begun.propose(ahead, limit), limit)
        ahead += second.data
        assert_lawful(begun.propose(ahead[:kept], limit), limit)
        if slip is not None:
            begun.slipped(slip)
        begun.extend(ahead[:committed])


# ---------------------------------------------------------------- scripts


def test_a_script_sees_all_that_was_committed_and_the_candidate() -> None:
    seen = []
    drafter = ScriptDrafter(lambda context, limit: seen.append((context, limit)) or b"abcdef", 0.5, whole=False)
    begun = drafter.begin()
    begun.extend(b"one ")
    begun.extend(b"two")
    proposal = assert_lawful(begun.propose(b" three", 4), 4)
    assert seen == [(b"one two three", 4)]
    assert (proposal.data, proposal.tokens[0].confidence, proposal.whole) == (b"abcd", 0.5, False)
    assert ScriptDrafter(lambda *_: b"").begin().propose(b"", 9) == Proposal()


# ---------------------------------------------------------------- A4: a drafter with tokens of its own

THANKS = b"we thank them. " + "السلام 中文 🍂 الا".encode() + b" we thank you"


def own_vocabulary() -> Vocabulary:
    """Byte-equal to the target's and cut otherwise: ` thank` whole, characters in other halves; BOS last."""
    return Vocabulary(
        [
            *(bytes([byte]) for byte in range(256)),
            b" thank",
            b" t",
            b"em",
            b"\xd8\xa7",
            b"\xd9\x84",
            b"\xe4\xb8",
            None,
        ]
    )


def target_vocabulary() -> Vocabulary:
    return Vocabulary([*BYTES.table[:-1], b"\xa7\xd9", b"\xb8\xad", b" \xd8", None])


@pytest.mark.parametrize(
    ("prompt", "drafted", "committed"),
    [
        (b"we", b" thank", b" fox"),
        (b"we", b" thank", b" th"),
        (b"we", b" thank", b" thex"),
        (b"x", b"\xd8\xa7\xd9\x84", b"\xd8\xa7\xd9"),
        (b"x", b"\xd8\xa7\xd9\x84", b"\xd8"),
        (b"x", "中".encode(), b"\xe4"),
        (b"x", "中".encode(), b"\xe4\xb8\xaf"),
    ],
    ids=repr,
)
def test_a4_behind_each_round_the_context_is_exactly_the_committed_bytes(
    prompt: bytes, drafted: bytes, committed: bytes
) -> None:
    begun = TokenDrafter(own_vocabulary(), prompt + drafted).begin()
    begun.extend(prompt)
    assert begun.propose(b"", len(drafted)).data == drafted
    begun.extend(committed)
    assert begun.context() == prompt + committed
    begun.propose(b"", 8)
    begun.extend(b" thank you")
    assert begun.context() == prompt + committed + b" thank you"


@pytest.mark.parametrize("limit", [24, 160])
async def test_a4_the_target_itself_behind_another_tokenizer_is_accepted_whole(limit: int) -> None:
    vocabulary = target_vocabulary()
    prompt = b"thanks: "
    target = ScriptedTarget(vocabulary, byte_driven(vocabulary, prompt + THANKS))
    drafter = TokenDrafter(own_vocabulary(), prompt + THANKS, at_most=limit)
    ids = [id for id, _ in LongestMatchSegmenter(vocabulary).cut(prompt)]
    async with (
        Engine(loaded(target, len(vocabulary) - 1), drafter) as engine,
        engine.generate(ids, max_new_tokens=200) as generation,
    ):
        async for _ in generation:
            pass
    result = generation.result
    assert result.data == THANKS
    counts = result.statistics
    assert counts.drafted_bytes == counts.accepted_bytes > 0
    assert counts.mismatches == 0
    assert drafter.rounds > 2
