"""Whole generations of pure stages, in any order of messages: the output is that of plain decoding.

The target is a function of its slot's content, so that a cache that is one token off shows in the output. The
drafter proposes anything: the truth, the truth broken at one byte, half characters, noise, nothing.
"""

import math
import random
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_driver import Driver, plain
from stage_world import (
    CURVES,
    END,
    KINDS,
    PROMPT,
    VOCABULARY,
    ShakyTarget,
    SpiedTarget,
    ahead_of,
    cascades,
    configs,
    hashed,
    scripts,
    truth,
)

from grimboost import messages as m
from grimboost.adapters.script_drafter import ScriptDrafter
from grimboost.adapters.scripted_target import ScriptedTarget
from grimboost.stages.configuration import CascadeConfig, CostCurve
from grimboost.stages.sampling_rule import SamplingRule


def watch_the_cache(driver, target):
    """The slot holds the path without its last token, then what was accepted; nothing else is ever kept."""

    def on_pass(request):
        held = target.held()
        assert request.keep <= len(held)
        if request.choose and len(request.tokens) == request.choose:
            assert held[: request.keep][: len(driver.path)] == driver.path[: request.keep]

    def on_verdict(verdict):
        accepted = [token.id for token in verdict.tokens[: verdict.accepted]]
        known = [*driver.path, *accepted]
        assert target.held()[: len(known)] == known

    driver.on_pass, driver.on_verdict = on_pass, on_verdict


def check(driver, done, expected):
    """The laws that every generation keeps, however it was scheduled."""
    assert (done.ids, driver.streamed, done.reason) == (expected.ids, expected.data, expected.finish)
    assert done.length == len(expected.data)
    assert isinstance(driver.events[-1], m.Done) and sum(isinstance(one, m.Done) for one in driver.events) == 1
    assert driver.target.open_slots == 0
    assert driver.replayed()


@st.composite
def generations(draw):
    salt = draw(st.integers(0, 200))
    next_token = hashed(salt, draw(st.sampled_from([3, 20, 1000])))
    cascade = draw(cascades)
    drafter = ScriptDrafter(
        scripts(truth(next_token), draw(st.sampled_from(KINDS)), draw(st.integers(0, 20))),
        draw(st.sampled_from([0.9, 0.99, 0.3])),
        draw(st.booleans()),
    )
    rows, credit = draw(st.sampled_from([1, 2, 5, 16])), draw(st.integers(1, 40))
    made = configs(cascade, draw(st.sampled_from(CURVES)), rows, credit)
    return next_token, cascade, drafter, made, random.Random(draw(st.integers(0, 2**32)))


@settings(deadline=None, max_examples=300)
@given(generations())
def test_ids_bytes_and_finish_equal_plain_decoding_for_every_drafter_curve_budget_and_order(case):
    """Cases B1, B2, B9, C1, C3: with the cache checked at every pass and verdict, and the log replayed."""
    next_token, cascade, drafter, made, order = case
    target = SpiedTarget(VOCABULARY, next_token, context_limit=cascade.context_limit)
    driver = Driver(made, target, drafter, PROMPT, order=order)
    watch_the_cache(driver, target)
    done = driver.run()
    check(driver, done, plain(cascade, PROMPT, next_token, VOCABULARY.data))
    whole = [*PROMPT, *done.ids]
    [held] = target.closed
    assert held == whole[: len(held)], "the slot was given back with tokens that are not of the output"
    assert len(held) == driver.released.length >= min(len(whole) - 1, len(held))
    if done.counts.target_passes:
        assert len(whole) - 1 <= len(held) <= len(whole)


@settings(deadline=None, max_examples=60)
@given(generations(), st.integers(0, 60))
def test_a_cancelled_generation_keeps_a_beginning_of_the_plain_output_and_gives_its_slot_back(case, step):
    next_token, cascade, drafter, made, order = case
    target = SpiedTarget(VOCABULARY, next_token, context_limit=cascade.context_limit)
    driver = Driver(made, target, drafter, PROMPT, order=order)
    watch_the_cache(driver, target)
    done = driver.run(cancel_after=step)
    expected = plain(cascade, PROMPT, next_token, VOCABULARY.data)
    if done.reason is not m.FinishReason.CANCELLED:
        return check(driver, done, expected)
    assert done.length == len(driver.streamed)
    assert VOCABULARY.join(done.ids) == driver.streamed
    assert expected.ids == done.ids[: len(expected.ids)] or expected.ids[: len(done.ids)] == done.ids
    assert target.open_slots == 0
    [held] = target.closed or [[]]
    assert held == [*PROMPT, *done.ids][: len(held)]
    assert driver.replayed()
    return None


class OneLateDraft(Driver):
    """The gate is stuck and patience short until `verdicts` verdicts overtook the drafts."""

    def __init__(self, *args, verdicts, **kwargs):
        super().__init__(*args, **kwargs)
        self.verdicts = verdicts

    def _pick(self, ready):
        late = sum(isinstance(entry.message, m.Verdict) for entry in self.log) < self.verdicts
        others = [name for name in ready if name != ("gate" if late else "time")]
        if late:
            return super()._pick(others or ready)
        return "drafter worker" if "drafter worker" in others else (others or ready)[0]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 100), st.integers(0, 2**32), st.integers(0, 4))
def test_a_drafter_that_is_right_but_was_late_is_used_again(salt, seed, verdicts):
    """Spans that a verdict overtook are asked for anew; else none that follow would ever join on."""

    def next_token(prefix):
        return (3, 8, 9)[zlib.crc32(bytes([salt, *prefix])) % 3]  # no two join to another: each draft fits

    cascade = CascadeConfig(context_limit=200, max_new_tokens=60)
    drafter = ScriptDrafter(scripts(truth(next_token), "true", 0), 0.99)
    target = SpiedTarget(VOCABULARY, next_token, context_limit=200)
    made = configs(cascade, rows=8)
    driver = OneLateDraft(made, target, drafter, PROMPT, order=random.Random(seed), verdicts=verdicts)
    done = driver.run()
    check(driver, done, plain(cascade, PROMPT, next_token, VOCABULARY.data))
    assert done.counts.accepted_tokens >= 40


# ---------------------------------------------------------------- named cases, in a fixed order


def generate(next_token, cascade, script, **options):
    target = SpiedTarget(VOCABULARY, next_token, context_limit=cascade.context_limit)
    driver = Driver(configs(cascade, **options), target, ScriptDrafter(script, 0.99), PROMPT)
    watch_the_cache(driver, target)
    done = driver.run()
    check(driver, done, plain(cascade, PROMPT, next_token, VOCABULARY.data))
    return driver, done


def scripted(ids, end=END):
    return lambda prefix: ids[len(prefix) - len(PROMPT)] if len(prefix) - len(PROMPT) < len(ids) else end


def constant(text):
    return lambda context, limit: ahead_of(text, context)[:limit]


@pytest.mark.parametrize("drafted", [b"ababab", b"ab", b"", b"abab!"])
def test_c1_end_of_sequence_inside_a_block_as_the_bonus_token_and_unforeseen(drafted):
    driver, done = generate(scripted([2, 3, END, 2, 3]), CascadeConfig(64, end_ids=(END,)), constant(drafted))
    assert (done.ids, driver.streamed, done.reason) == ((2, 3, END), b"ab", m.FinishReason.STOP)
    assert driver.target.closed == [[*PROMPT, 2, 3]]


def test_c1_without_an_end_id_the_budget_ends_it():
    driver, done = generate(scripted([2, 3, END, 2], 3), CascadeConfig(64, max_new_tokens=6), constant(b"ababab"))
    assert (done.ids, driver.streamed, done.reason) == ((2, 3, END, 2, 3, 3), b"ababb", m.FinishReason.LENGTH)


def test_c3_one_cut_for_bytes_ids_cache_and_counts():
    """Stop ` ha ha`, draft ` ha ha ha ha!`."""
    target_says = scripted([2, 7, 7, 7, 7, 8])
    driver, done = generate(target_says, CascadeConfig(64, stop=(b" ha ha",)), constant(b"a ha ha ha ha!"))
    assert (done.ids, driver.streamed, done.reason) == ((2,), b"a", m.FinishReason.STOP)
    assert driver.target.closed == [[*PROMPT, 2]]
    assert (done.counts.new_tokens, done.counts.new_bytes) == (1, 1)


@pytest.mark.parametrize(("limit", "budget", "expected"), [(8, 50, 4), (4, 50, 0), (64, 4, 4), (5, 1, 1)])
def test_b9_at_the_context_limit_and_at_the_budget(limit, budget, expected):
    _, done = generate(scripted([], 2), CascadeConfig(limit, budget), constant(b"a" * 50))
    assert (len(done.ids), done.reason) == (expected, m.FinishReason.LENGTH)


def test_b2_rounds_with_and_without_accepted_drafts_alternate():
    text = b"abababab!ababab!ab"
    ids = [VOCABULARY.ids[bytes([byte])] for byte in text]
    turns = iter(range(10**6))

    def every_other(context, limit):
        return ahead_of(text, context)[: min(limit, 3)] if next(turns) % 2 else b""

    driver, _ = generate(scripted(ids), CascadeConfig(64, end_ids=(END,)), every_other, rows=4)
    assert driver.streamed == text


def test_a_perfect_drafter_needs_about_one_pass_a_block():
    _, done = generate(scripted([2] * 40), CascadeConfig(128, 40), constant(b"a" * 40), rows=8)
    assert done.counts.target_passes == math.ceil(40 / 8)
    assert (done.counts.mismatches, done.counts.accepted_tokens) == (0, 35)


def test_speculation_that_does_not_pay_costs_no_extra_row():
    linear = CostCurve((1, 2, 16), (1.0, 2.0, 16.0))
    _, done = generate(scripted([2] * 20), CascadeConfig(128, 20), constant(b"a" * 40), curve=linear)
    assert done.counts.target_rows == done.counts.target_passes == 20


# ---------------------------------------------------------------- sampling


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**64 - 1), st.sampled_from(KINDS), st.integers(0, 12), st.integers(0, 2**32))
def test_g5_sampled_output_depends_on_the_seed_alone(seed, kind, place, order):
    def logits(prefix):
        generator = np.random.Generator(np.random.Philox(zlib.crc32(bytes(prefix))))
        return generator.standard_normal(len(VOCABULARY), np.float32)

    rule = SamplingRule(temperature=0.8, top_p=0.9, seed=seed)
    cascade = CascadeConfig(64, 12, end_ids=(END,))
    alone = ScriptedTarget(VOCABULARY, logits=logits, context_limit=64)
    slot = alone.open(rule)

    def next_token(prefix):
        from grimboost.adapters.target import Rows

        alone.rollback(slot, 0)
        [[chosen]] = alone.step([Rows(slot, tuple(prefix), 1)])
        return chosen.id

    expected = plain(cascade, PROMPT, next_token, VOCABULARY.data)
    text = expected.data + b"ab" * 10
    target = SpiedTarget(VOCABULARY, logits=logits, context_limit=64)
    drafter = ScriptDrafter(scripts(text, kind, place))
    driver = Driver(configs(cascade), target, drafter, PROMPT, rule, random.Random(order))
    watch_the_cache(driver, target)
    check(driver, driver.run(), expected)


# ---------------------------------------------------------------- a target that is not row-invariant


def shaky(next_token, cascade, script, order=None, bound=ShakyTarget.BOUND):
    target = ShakyTarget(next_token, cascade.context_limit)
    made = configs(cascade, row_invariant=False, tie_bound=bound)
    driver = Driver(made, target, ScriptDrafter(script, 0.95), PROMPT, order=order)
    return driver, driver.run(), target


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 200), cascades, st.sampled_from(KINDS), st.integers(0, 20), st.integers(0, 2**32))
def test_g1_with_rechecks_a_target_that_is_not_row_invariant_equals_plain(salt, cascade, kind, place, seed):
    next_token = hashed(salt)
    script = scripts(truth(next_token), kind, place)
    driver, done, _ = shaky(next_token, cascade, script, random.Random(seed))
    check(driver, done, plain(cascade, PROMPT, next_token, VOCABULARY.data))


@pytest.mark.parametrize("salt", range(4))
def test_g1_ties_are_counted_and_without_rechecks_the_output_would_differ(salt):
    next_token = hashed(salt, 10**9)
    cascade = CascadeConfig(64, 40)
    expected = plain(cascade, PROMPT, next_token, VOCABULARY.data)
    script = scripts(truth(next_token), "true", 0)
    driver, done, target = shaky(next_token, cascade, script)
    check(driver, done, expected)
    assert target.flipped > 0
    assert done.counts.ties_rechecked > 0
    assert done.counts.target_passes > done.counts.blocks
    _, unchecked, _ = shaky(next_token, cascade, script, bound=0.0)
    assert unchecked.ids != expected.ids
    assert unchecked.counts.ties_rechecked == 0
