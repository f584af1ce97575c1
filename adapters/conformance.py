"""The published conformance suite of target adapters: every promise of `grimboost.adapters.target`.

`check_target(make_target)` raises `AssertionError` with one sentence that says what the adapter did and what it
had promised. It drives the adapter as the verifier does, compares with plain decoding through the same
adapter, and needs neither weights nor knowledge of what is behind it. Letters (B1, G5) name the cases.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from grimboost.adapters.conformance_subject import (
    GREEDY,
    Effort,
    Subject,
    expect,
    expect_length,
    refused,
)
from grimboost.adapters.sequential import decode_sequentially, prefill
from grimboost.adapters.target import Chosen, Rows, Slot, Target
from grimboost.stages.sampling_rule import SamplingRule

HEAVY = SamplingRule(repetition_penalty=100.0)
HOT = 100.0
"""A temperature at which nearly every id has the same chance: ids that may not be chosen would be."""

ROUNDS = ((4, 4), (0, 0), (4, 0), (0, 0), (0, 0), (3, 1), (1, 1), (8, 5), (1, 0), (2, 2))
"""(drafted, right ones at its beginning) of the rounds that are mixed, over and over again."""


def check_target(make_target: Callable[[], Target], effort: Effort | None = None) -> None:
    """Run the whole suite. `make_target` is called for each check and may return the same target again."""
    for check in _CHECKS:
        target = make_target()
        before = target.open_slots
        check(Subject(target, effort or Effort()))
        after = target.open_slots
        expect(after == before, f"{before} slots were open; after closing all others {after} are")


# ---------------------------------------------------------------- facts and lengths


def _facts(s: Subject) -> None:
    facts = s.facts
    expect(facts == s.target.facts, "two looks at the facts differ")
    expect(bool(facts.name and facts.precision), "the facts name neither target nor precision")
    expect(facts.context_limit >= 2, f"a context limit of {facts.context_limit} has no room for an answer")
    expect(0 <= facts.tie_bound < math.inf, f"the tie bound is {facts.tie_bound}")
    expect(facts.row_invariant or facts.tie_bound > 0, "it is not row-invariant, and its tie bound is 0")
    expect(facts.rollback in {"trim", "replay"}, f"rollback is {facts.rollback!r}")
    expect(len(s.target.vocabulary) > 0, "the vocabulary is empty")


def _lengths(s: Subject) -> None:
    target, before = s.target, s.target.open_slots
    slot = target.open(GREEDY)
    expect(target.open_slots == before + 1, "a slot was opened, and the count of open slots did not say so")
    expect_length(s, slot, 0, "after opening")
    [none] = target.step([Rows(slot, s.ids[:3], 0)])
    expect(none == [], "choices came that nobody had asked for")
    expect_length(s, slot, 3, "after three rows without a choice")
    [two] = target.step([Rows(slot, s.ids[3:6], 2)])
    s.looked_at(two, 2)
    expect_length(s, slot, 6, "after three more with two choices")
    target.rollback(slot, 2)
    expect_length(s, slot, 2, "after a rollback to two")
    s.same(s.feed(slot, s.ids[2:6])[-2:], two, "the same rows fed again after a rollback")
    s.close(slot)
    refused("a closed slot has a length", target.length, slot)
    expect(target.step([]) == [], "an empty batch has results")


def _misuse(s: Subject) -> None:
    target, slot, other, gone = s.target, s.slot(2), s.slot(3), s.slot(1)
    s.close(gone)
    fine = Rows(other, (s.ids[0],), 1)
    for sentence, batch in (
        ("a closed slot was fed", [fine, Rows(gone, (s.ids[0],), 1)]),
        ("an unknown slot was fed", [fine, Rows(Slot(10**9), (s.ids[0],), 1)]),
        ("a slot was fed twice in one batch", [fine, Rows(slot, (s.ids[0],), 1), fine]),
        ("no rows were fed", [fine, Rows(slot, (), 0)]),
        ("more choices than rows were given", [fine, Rows(slot, (s.ids[0],), 2)]),
    ):
        refused(sentence, target.step, batch)
        expect_length(s, slot, 2, f"after {sentence!r} was refused")
        expect_length(s, other, 3, f"in the same batch, after {sentence!r} was refused")
    refused("a closed slot was rolled back", target.rollback, gone, 0)
    refused("a slot was closed twice", target.close, gone)
    s.close(slot, other)


def _context_limit(s: Subject) -> None:
    """B9: exactly full works, one more does not and feeds nothing, to no slot of the batch."""
    limit, ids = s.facts.context_limit, s.ids
    if limit > s.effort.largest_context:
        return
    full, other = s.slot(limit - 1), s.slot(1)
    [last] = s.feed(full, ids[limit - 1 : limit])
    expect_length(s, full, limit, "at the context limit")
    for count in (1, 2):
        batch = [Rows(other, ids[1:2], 1), Rows(full, ids[:count], count)]
        refused(f"{count} rows beyond the context limit were fed", s.target.step, batch)
        expect_length(s, full, limit, "after a row over the context limit")
        expect_length(s, other, 1, "beside a row over the context limit")
    s.target.rollback(full, limit - 1)
    refused("two rows were fed where one has room", s.target.step, [Rows(full, ids[:2], 1)])
    s.same(s.feed(full, ids[limit - 1 : limit]), [last], "the last place of the context, filled again")
    s.close(full, other)


# ---------------------------------------------------------------- rollback


def _rollback(s: Subject) -> None:
    """B1: by zero, by all, by one too many; a prompt of one token, four drafted, 0, 1 and 4 accepted."""
    plain = s.one_by_one(slot := s.target.open(GREEDY), s.ids[:6])
    s.target.rollback(slot, 6)
    for length in (7, -1):
        refused(f"6 tokens were cut to {length}", s.target.rollback, slot, length)
        expect_length(s, slot, 6, f"after a refused rollback to {length}")
    after = s.feed(slot, s.ids[6:7])
    s.target.rollback(slot, 6)
    s.same(s.feed(slot, s.ids[6:7]), after, "a row fed again after rollbacks that change nothing")
    s.target.rollback(slot, 0)
    expect_length(s, slot, 0, "after a rollback by all")
    for accepted in (0, 1, 4):
        s.target.rollback(slot, 0)
        s.feed(slot, (*s.ids[: 1 + accepted], *(s.ids[9:13][accepted:])))  # wrong from `accepted` on
        s.target.rollback(slot, 1 + accepted)
        expect_length(s, slot, 1 + accepted, f"with {accepted} of four accepted")
        got = s.feed(slot, s.ids[1 + accepted : 2 + accepted])
        s.same(got, plain[1 + accepted : 2 + accepted], f"behind {accepted} of four drafted tokens accepted")
    s.close(slot)


def _two_slots(s: Subject) -> None:
    """B1: acceptance 0 and 4 in the same round of one batch."""
    plain = s.one_by_one(reference := s.target.open(GREEDY), s.ids[:8])
    first, second = s.slot(1), s.slot(2)
    wrong, right = s.ids[10:14], s.ids[2:6]
    s.target.step([Rows(first, wrong, 4), Rows(second, right, 4)])
    s.target.rollback(first, 1)
    s.target.rollback(second, 6)
    both = s.target.step([Rows(first, s.ids[1:3], 2), Rows(second, s.ids[6:7], 1)])
    s.same(both[0], plain[1:3], "a slot that accepted nothing, beside one that accepted all")
    s.same(both[1], plain[6:7], "a slot that accepted all, beside one that accepted nothing")
    expect_length(s, first, 3, "after a round in which it accepted nothing")
    expect_length(s, second, 7, "after a round in which it accepted all")
    s.close(reference, first, second)


def _behind_prefill(s: Subject) -> None:
    """The next choice after a rollback is that of a fresh prefill, also where the prompt itself is cut."""
    length = min(100, s.facts.context_limit // 2)
    ids = s.ids[: length + 5]
    slot, fresh = s.slot(length), s.slot(length)
    s.feed(slot, s.ids[-5:])
    s.target.rollback(slot, length)
    plain = s.one_by_one(fresh, ids[length:])
    s.same(s.feed(slot, ids[length:]), plain, "after a rollback to the end of the prompt")
    cut = length * 3 // 5
    s.target.rollback(slot, cut)
    prefill(s.target, slot, ids[cut:-1])
    s.target.rollback(fresh, length + 4)
    [got], [want] = s.feed(slot, ids[-1:]), s.feed(fresh, ids[-1:])
    # prefill passes have shapes of their own, so not bit for bit
    near = got.margin < max(1.0, s.facts.tie_bound)
    expect(got.id == want.id or near, f"a prompt cut to {cut} tokens and fed again: {got}, uncut {want}")
    s.close(slot, fresh)


def _rounds(s: Subject) -> None:
    """B2, G5, G6: any mix of rounds that accept 0, 1 or k chooses as plain decoding does."""
    for rule in s.rules:
        prompt = s.ids[: min(5, s.facts.context_limit // 2)]
        plain = decode_sequentially(s.target, prompt, rule, s.effort.decode)
        path = [*prompt, *(one.id for one in plain)]
        slot = s.target.open(rule)
        prefill(s.target, slot, prompt[:-1])
        done = round_number = 0
        while done < len(plain):
            drafted, right = (min(n, len(plain) - done - 1) for n in ROUNDS[round_number % len(ROUNDS)])
            at = len(prompt) + done
            wrong = [s.ids[at + place] for place in range(drafted - right)]
            got = s.feed(slot, [path[at - 1], *path[at : at + right], *wrong])
            s.same(got[: right + 1], plain[done : done + right + 1], f"{rule}, round {round_number}")
            s.target.rollback(slot, at + right)
            done += right + 1
            round_number += 1
        s.close(slot)


# ---------------------------------------------------------------- rows and their company


def _rows(s: Subject) -> None:
    """A block of k rows chooses as k single rows, at several positions."""
    most = max(s.effort.rows)
    for place, past in enumerate(past for past in s.effort.positions if s.room(past + most)):
        for rule in s.rules if place == 0 else (GREEDY,):
            slot, tokens = s.slot(past, rule), s.ids[past : past + most]
            plain = s.one_by_one(slot, tokens)
            for count in s.effort.rows:
                s.target.rollback(slot, past)
                s.same(s.feed(slot, tokens[:count]), plain[:count], f"{count} rows behind {past} tokens")
            s.close(slot)


def _company(s: Subject) -> None:
    """G2b: neighbours of other lengths and row counts, first and last, change nothing."""
    if not s.room(102):
        return
    most = max(s.effort.rows)
    shapes = [
        (past, min(rows, most)) for past, rows in ((3, 5), (60, 8), (0, 1), (70, 32), (17, 2), (1, 3), (40, 9))
    ]
    blocks = [Rows(s.slot(past), s.ids[past : past + rows], rows) for past, rows in shapes]
    plain = [s.one_by_one(block.slot, block.tokens) for block in blocks]
    for order in (range(7), range(6, -1, -1), range(1, 4)):
        for block, (past, _) in zip(blocks, shapes, strict=True):
            s.target.rollback(block.slot, past)
        results = s.target.step([blocks[place] for place in order])
        for place, got in zip(order, results, strict=True):
            s.same(got, plain[place], f"slot {place} in a batch of {len(order)}")
    s.close(*(block.slot for block in blocks))


# ---------------------------------------------------------------- choice


def _vocabulary(s: Subject) -> None:
    """A5: ids that have no row in the vocabulary are never chosen, however hot; the seed matters."""
    if not s.effort.sampling:
        return
    count = min(32, s.facts.context_limit)
    seen = []
    for seed in range(8):
        slot = s.target.open(SamplingRule(temperature=HOT, seed=seed))
        seen.append([one.id for one in s.feed(slot, s.ids[:count])])
        s.close(slot)
    spelled = sum(1 for data in s.target.vocabulary.table if data)
    expect(spelled < 4 or len({tuple(ids) for ids in seen}) > 1, "every seed gives the same choices")


def _suppressed(s: Subject) -> None:
    """G6: suppressed ids cannot be chosen before their position, and can from there on."""
    if not s.effort.sampling:
        return
    tokens = s.ids[:6]
    plain = s.one_by_one(slot := s.target.open(GREEDY), tokens)
    s.close(slot)
    for until in (3, 4, 7):  # row i chooses the token of position i + 1
        banned = tuple(sorted({one.id for one in plain}))
        slot = s.target.open(SamplingRule(suppressed=banned, suppressed_until=until))
        got = s.feed(slot, tokens)
        s.same(got[until - 1 :], plain[until - 1 :], f"ids suppressed before position {until}")
        early = [one.id for one in got[: until - 1] if one.id in banned]
        expect(not early, f"ids {early} were chosen, and are suppressed before position {until}")
        s.target.rollback(slot, 0)
        s.same(s.one_by_one(slot, tokens), got, f"ids suppressed before position {until}, row by row")
        s.close(slot)


def _ties(s: Subject) -> None:
    """G1: of equal logits the lowest id wins. A margin of 0 is a tie: without the winner, the other one wins."""
    if not s.effort.sampling:
        return
    tokens = s.ids[: min(32, s.facts.context_limit)]
    for row, one in enumerate(_behind(s, (), tokens, GREEDY)):
        if one.margin == 0.0:
            rule = SamplingRule(suppressed=(one.id,), suppressed_until=len(tokens) + 1)
            other = _behind(s, (), tokens, rule)[row]
            expect(one.id < other.id, f"ids {other.id} and {one.id} are tied, and the higher one was chosen")


def _penalty(s: Subject) -> None:
    """G6: a repetition penalty reaches what was fed before, prompt and draft.

    The best id cannot stay the best under so heavy a penalty; it does where the adapter has forgotten it. That
    a row sees no more than its prefix shows in `_rounds`: there blocks and single rows agree.
    """
    if not s.effort.sampling:
        return
    start = s.ids[:4]
    path = (*start, *(one.id for one in decode_sequentially(s.target, start, GREEDY, s.effort.decode)))
    for size in (1, len(start), len(path) // 2):
        prompt, fed = path[:size], path[size:]
        plain, penalized = _behind(s, prompt, fed, GREEDY), _behind(s, prompt, fed, HEAVY)
        kept: dict[str, list[bool]] = {"prompt": [], "rows of the pass itself": []}
        for row, one in enumerate(plain):
            in_prompt, in_fed = one.id in prompt, one.id in fed[: row + 1]
            if in_prompt != in_fed:
                kept["prompt" if in_prompt else "rows of the pass itself"].append(penalized[row].id == one.id)
        for name, rows in kept.items():
            expect(not rows or not all(rows), f"a repetition penalty does not see the {name}")


def _behind(s: Subject, prompt: Sequence[int], fed: Sequence[int], rule: SamplingRule) -> list[Chosen]:
    """Choices after each of `fed` behind a prompt, in one pass."""
    slot = s.target.open(rule)
    prefill(s.target, slot, prompt)
    chosen = s.feed(slot, fed)
    s.close(slot)
    return chosen


_CHECKS: Iterable[Callable[[Subject], None]] = (
    _facts,
    _lengths,
    _misuse,
    _context_limit,
    _rollback,
    _two_slots,
    _behind_prefill,
    _rounds,
    _rows,
    _company,
    _vocabulary,
    _suppressed,
    _ties,
    _penalty,
)
