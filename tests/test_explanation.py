"""Why each byte of the kept logs is what it is: the chain is complete, in order, and about that byte."""

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace
from record_logs import LOGS

import grimboost
from grimboost import messages as m
from grimboost.committed_token import Source
from grimboost.errors import LogError, MisuseError
from grimboost.explain_command import tokens_from
from grimboost.explanation import Explainer, Explanation, Step, explain
from grimboost.log import Log
from grimboost.output_views import Place, find_text, output_of
from grimboost.provenance import Traced
from grimboost.redaction import redact

NAMES = sorted(path.stem for path in LOGS.glob("*.grimlog"))
STANDS = ["slips", "takeover", "certified"]


@cache
def open_log(name: str) -> Log:
    return Log.open(LOGS / f"{name}.grimlog")


@cache
def explainer(name: str) -> Explainer:
    return Explainer(open_log(name))


def all_of(name: str) -> list[Explanation]:
    one = explainer(name)
    return [one.explain(offset) for offset in range(len(one.output))]


def steps(one: Explanation, kind: str) -> list[Step]:
    return [step for step in one.steps if step.kind == kind]


def step(one: Explanation, kind: str) -> Step:
    [found] = steps(one, kind)
    return found


def done(name: str) -> m.Done:
    [event] = [answer for entry in open_log(name) for answer in entry.answers if isinstance(answer, m.Done)]
    return event


# ---------------------------------------------------------------- every byte of every kept log


@pytest.mark.parametrize("name", NAMES)
def test_the_chain_of_every_byte_is_complete_in_order_and_about_that_byte(name: str) -> None:
    output = explainer(name).output
    assert len(output) == done(name).length
    for offset, one in enumerate(all_of(name)):
        byte = output[offset : offset + 1]
        assert (one.offset, one.data, one.output_bytes) == (offset, byte, len(output))
        assert one.token[offset - one.start :][:1] == byte
        for kind in ("commit", "reveal"):
            own = step(one, kind)
            assert own.data[offset - own.start :][:1] == byte, (offset, kind)
        if one.source is not Source.UNCHECKED:
            judged = step(one, "verdict")
            assert judged.sequence <= step(one, "commit").sequence
            assert steps(one, "pass")
            assert all(asked.sequence < judged.sequence for asked in steps(one, "pass"))
        if one.source in {Source.DRAFTED, Source.SLIP}:
            gate = step(one, "gate")
            assert gate.data[offset - gate.start :][:1] == byte
            assert steps(one, "draft")
            assert len(steps(one, "request")) == len(steps(one, "draft"))
            assert gate.sequence < step(one, "verdict").sequence
        assert [one.seconds for one in one.steps] == sorted(one.seconds for one in one.steps)


@pytest.mark.parametrize("name", NAMES)
def test_each_link_of_a_chain_is_named_by_its_lineage(name: str) -> None:
    log, traced = open_log(name), Traced(open_log(name))
    for one in all_of(name):
        for link in one.steps:
            own, _, place = link.name.partition(".")
            assert traced.lineage.names[link.sequence] == own
            if place:
                assert int(place) < len(log.entries[link.sequence].answers)


@pytest.mark.parametrize("name", NAMES)
def test_causes_come_before_effects_along_a_chain(name: str) -> None:
    order = ("request", "draft", "gate", "verdict", "commit")
    for one in all_of(name):
        places = [max(step.sequence for step in steps(one, kind)) for kind in order if steps(one, kind)]
        assert all(first < second for first, second in pairwise(places)), one
        if steps(one, "release"):
            assert step(one, "release").sequence < step(one, "reveal").sequence
        for taken in steps(one, "taken"):
            assert step(one, "reveal").sequence < taken.sequence


@pytest.mark.parametrize("name", NAMES)
def test_the_tokens_of_the_explanations_are_those_of_the_output(name: str) -> None:
    """Each token once, one behind the other; a stop string may cut the last."""
    found = tokens_from(explainer(name), Place(0), len(explainer(name).output))
    text = b"".join(one.token for one in found)
    assert text.startswith(explainer(name).output)
    ids = [id for id in done(name).ids if id not in open_log(name).header.stages.cascade.end_ids]
    if name not in {"stop-string"} and all(one.source is not Source.UNCHECKED for one in found):
        assert len(found) == len(ids)
        assert text == explainer(name).output


@pytest.mark.parametrize("name", NAMES)
def test_what_the_target_is_said_to_have_accepted_is_what_was_counted(name: str) -> None:
    counts, found = done(name).counts, tokens_from(explainer(name), Place(0), len(explainer(name).output))
    drafted = sum(one.source is Source.DRAFTED for one in found)
    slips = {one.offset for one in found if one.source is Source.SLIP}
    if name in STANDS:
        assert slips == {slip.offset for slip in counts.slips}
        assert drafted + len(slips) >= counts.accepted_tokens
    elif name != "stop-string":
        assert not slips
        assert drafted == counts.accepted_tokens


# ---------------------------------------------------------------- single chains


def test_a_byte_that_nobody_drafted_says_so() -> None:
    one = explainer("no-drafter").explain(5)
    assert one.source is Source.TARGET
    assert [step.kind for step in one.steps] == ["pass", "verdict", "commit", "reveal", "taken"]
    assert "nothing was drafted there" in step(one, "verdict").text


def test_a_refused_draft_is_named_beside_the_targets_own_token() -> None:
    one = explainer("lookup").explain(8)
    assert (one.source, one.token) == (Source.TARGET, b"X")
    assert 'drafted was "c"' in step(one, "verdict").text
    assert step(one, "gate").data == b"c"


def test_a_slip_says_what_the_target_would_have_chosen_and_was_shown_before_the_verdict() -> None:
    [first, *_] = done("slips").counts.slips
    one = explainer("slips").explain(first.offset)
    assert (one.source, one.token) == (Source.SLIP, first.data)
    assert '" jumps"' in step(one, "slip").text
    assert step(one, "release").seconds < step(one, "reveal").seconds < step(one, "verdict").seconds
    assert "confident" in step(one, "gate").text
    assert "calibrated confidence 0.9, threshold 0.5" in step(one, "gate").text
    assert "never checked" not in step(one, "commit").text


def test_a_byte_in_doubt_says_that_it_waited_for_that() -> None:
    reasons = {step(one, "gate").text.split(":")[0] for one in all_of("slips") if steps(one, "gate")}
    assert {"release (confident)", "verify (doubt)"} <= reasons


def test_a_certificate_that_opens_changes_the_threshold_of_later_decisions() -> None:
    texts = [step(one, "gate").text for one in all_of("certified") if steps(one, "gate")]
    assert any("threshold 0.5" in text for text in texts)


def test_what_was_taken_back_is_told_with_the_byte_that_took_its_place() -> None:
    one = explainer("retracted").explain(18)
    assert one.source is Source.TARGET
    assert "had been shown here" in step(one, "taken back").text
    assert '"qs' in step(one, "taken back").text
    assert not steps(one, "release")  # what was released there is not what stands


def test_near_ties_list_every_pass_of_the_verdict() -> None:
    chains = all_of("near-ties")
    passes = max(len(steps(one, "pass")) for one in chains)
    assert passes > 2
    assert any("near-tie re-checked" in step(one, "verdict").text for one in chains)


def test_a_shown_byte_of_a_generation_that_was_broken_off_was_never_checked() -> None:
    log = open_log("slips")
    first = next(place for place, entry in enumerate(log.entries) if _has(entry, m.Chunk))
    cut = Log(log.header, log.entries[: first + 1], None)
    one = Explainer(cut).explain(0)
    assert one.source is Source.UNCHECKED
    assert [step.kind for step in one.steps] == ["request", "draft", "gate", "release", "reveal"]


def _has(entry: object, kind: type) -> bool:
    return any(isinstance(answer, kind) for answer in entry.answers)  # type: ignore[attr-defined]


def test_the_statistics_are_those_of_the_drafters_token() -> None:
    log = open_log("sampled")
    for one in all_of("sampled"):
        for draft in steps(one, "draft"):
            if "confidence" not in draft.text:
                continue
            returned = log.entries[draft.sequence].message
            assert isinstance(returned, m.DraftReturned)
            said = draft.text.split("confidence ")[1].split(",")[0]
            assert said in {f"{token.confidence:.3g}" for token in returned.tokens}


# ---------------------------------------------------------------- text


def test_text_is_found_as_often_as_it_is_there() -> None:
    log = open_log("lookup")
    assert output_of(log) == b"abcabcabX abcabcabX abc"
    assert [place.offset for place in find_text(log, b"abc")] == [0, 3, 10, 13, 20]
    assert [place.offset for place in find_text(log, b"bX abca")] == [7]
    assert find_text(log, b"nowhere") == []


def test_text_that_was_taken_back_is_found_where_it_was() -> None:
    log = open_log("retracted")
    [place] = find_text(log, b"jumqs")
    assert place.offset == 15
    assert place.withdrawn_at is not None
    found = tokens_from(explainer("retracted"), place, 5)
    assert [one.source for one in found] == [Source.TARGET, Source.WITHDRAWN, Source.WITHDRAWN]
    assert "".join(one.data.decode() for one in found[1:]) == "qs"
    slipped = next(one for one in found if one.offset == 18)
    assert slipped.data == b"q"
    kinds = [step.kind for step in slipped.steps]
    assert kinds[-1] == "taken back"
    assert {"draft", "gate", "release", "reveal", "taken", "verdict"} <= set(kinds)
    assert step(slipped, "release").data[18 - step(slipped, "release").start :][:1] == b"q"


@pytest.mark.parametrize("offset", [-1, 23, 10**9])
def test_a_byte_beyond_the_output_is_refused_with_its_length(offset: int) -> None:
    with pytest.raises(MisuseError, match=f"no output byte {offset}: the output has 23 bytes"):
        explainer("lookup").explain(offset)


# ---------------------------------------------------------------- logs that hold less


@pytest.mark.parametrize("name", ["slips", "retracted", "lookup"])
def test_every_prefix_of_a_log_explains_what_it_shows(name: str) -> None:
    log = open_log(name)
    for size in range(0, len(log.entries) + 1, 7):
        cut = Explainer(Log(log.header, log.entries[:size], None))
        for offset in range(len(cut.output)):
            one = cut.explain(offset)
            assert step(one, "reveal").data[offset - step(one, "reveal").start :][:1] == one.data


@pytest.mark.parametrize("name", ["slips", "retracted", "lookup"])
def test_a_log_without_its_beginning_explains_what_it_holds(name: str) -> None:
    log = open_log(name)
    for first in range(1, len(log.entries), 11):
        part = Explainer(Log(replace(log.header, first=first), log.entries[first:], None))
        for offset in range(len(part.output)):
            try:
                one = part.explain(offset)
            except LogError as error:
                assert "begins behind" in str(error)
            else:
                assert one.steps


@pytest.mark.parametrize("name", NAMES)
def test_a_redacted_log_gives_the_same_chains_without_texts(name: str, tmp_path: Path) -> None:
    path = tmp_path / "redacted.grimlog"
    redact(LOGS / f"{name}.grimlog", path)
    without = Explainer(Log.open(path))
    assert len(without.output) == len(explainer(name).output)
    for offset, one in enumerate(all_of(name)):
        other = without.explain(offset)
        assert (other.source, other.start, len(other.token)) == (one.source, one.start, len(one.token))
        assert [(step.kind, step.name) for step in other.steps] == [(step.kind, step.name) for step in one.steps]
        assert not any('"' in step.text for step in other.steps)


def test_explain_takes_a_path_and_is_the_librarys() -> None:
    one = grimboost.explain(Path(LOGS / "slips.grimlog"), 0)
    assert one == explain(open_log("slips"), 0)
    assert one.source == "drafted"
