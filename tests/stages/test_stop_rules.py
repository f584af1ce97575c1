"""The one cut point, against an oracle that reads byte by byte (`stage_driver.cut_slowly`)."""

import itertools

from hypothesis import example, given
from hypothesis import strategies as st
from stage_driver import cut_slowly

from grimboost.messages import FinishReason, PathToken
from grimboost.stages.configuration import CascadeConfig
from grimboost.stages.stop_rules import StopRules

END, CONTROL = 9, 8
PIECES = (b"a", b"b", b"ab", b"ba", b"aab", b"bbb", b"\xc3", b"\xa9")
tokens = st.one_of(
    st.sampled_from([PathToken(id, data) for id, data in enumerate(PIECES)]),
    st.sampled_from([PathToken(id, data) for id, data in enumerate(PIECES)]),
    st.sampled_from(
        [PathToken(id, data) for id, data in enumerate(PIECES)]
        + [PathToken(END, b""), PathToken(END, b"ab"), PathToken(CONTROL, b"")]
    ),
)
paths = st.lists(tokens, max_size=14)
stops = st.lists(st.text("ab", min_size=1, max_size=5).map(str.encode) | st.just(b"\xc3\xa9"), max_size=3)
configs = st.builds(
    CascadeConfig,
    context_limit=st.integers(3, 20),
    max_new_tokens=st.integers(0, 16),
    max_new_bytes=st.none() | st.integers(0, 24),
    stop=stops.map(tuple),
    end_ids=st.sampled_from([(), (END,)]),
)
PROMPT = 3


def run(config, path, sizes=(1,)):
    """Take `path` in groups of `sizes`, over and over; the rules, the bytes taken, and each `reveal_to`."""
    rules, data, reveals = StopRules(config, PROMPT), b"", [0]
    if rules.begin():
        return rules, data, reveals
    rest = list(path)
    for size in itertools.cycle(sizes):
        if not rest or rules.finish:
            break
        group, rest = rest[:size], rest[size:]
        taken = rules.take(group)
        data = (data + taken.data)[: rules.length]
        reveals.append(taken.reveal_to)
        assert taken.finish == rules.finish
    return rules, data, reveals


def outcome(rules, data):
    return tuple(rules.ids), data, rules.finish


@given(configs, paths)
def test_the_cut_is_that_of_the_slow_oracle(config, path):
    rules, data, _ = run(config, path)
    slow = cut_slowly(config, PROMPT, path)
    if slow is None:
        assert rules.finish is None
        assert outcome(rules, data) == (tuple(t.id for t in path), b"".join(t.data for t in path), None)
    else:
        assert outcome(rules, data) == (slow.ids, slow.data, slow.finish)
        assert rules.length == len(slow.data)


@given(configs, paths, st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_grouping_the_same_tokens_otherwise_changes_nothing(config, path, sizes):
    grouped, one_by_one = run(config, path, sizes), run(config, path)
    assert outcome(*grouped[:2]) == outcome(*one_by_one[:2])
    assert grouped[0].length == one_by_one[0].length


@given(configs, paths, st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_no_budget_is_ever_exceeded(config, path, sizes):
    rules, data, _ = run(config, path, sizes)
    assert len(rules.ids) <= min(config.max_new_tokens, max(0, config.context_limit - PROMPT))
    assert rules.length == len(data)
    assert config.max_new_bytes is None or rules.length <= config.max_new_bytes
    assert rules.more >= 0


@given(configs, paths)
@example(CascadeConfig(20, stop=(b"abab", b"baa")), [PathToken(2, b"ab"), PathToken(0, b"a"), PathToken(1, b"b")])
def test_hold_back_is_exact_to_the_byte(config, path):
    rules, text = StopRules(config, PROMPT), b""
    if rules.begin():
        return
    for token in path:
        taken = rules.take([token])
        if taken.finish:
            assert taken.reveal_to == rules.length
            return
        text += token.data
        beginnings = {stop[:size] for stop in config.stop for size in range(1, len(stop))}
        held = max((len(begin) for begin in beginnings if text.endswith(begin)), default=0)
        assert taken.reveal_to == len(text) - held


@given(configs, paths, st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_what_may_be_shown_never_shrinks_and_never_passes_the_later_cut(config, path, sizes):
    rules, _, reveals = run(config, path, sizes)
    assert reveals == sorted(reveals)
    assert reveals[-1] <= rules.length


@given(configs, paths, st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_kept_tokens_of_each_group_join_to_the_ids_unless_a_stop_string_took_some_back(config, path, sizes):
    rules, rest, kept = StopRules(config, PROMPT), list(path), []
    if rules.begin():
        return
    for size in itertools.cycle(sizes):
        if not rest or rules.finish:
            break
        kept += rules.take(rest[:size]).tokens
        rest = rest[size:]
    assert [token.id for token in kept][: len(rules.ids)] == rules.ids


@given(st.integers(1, 6), st.sampled_from([b"ab", b"b"]))
def test_stop_wins_over_length_on_the_same_token(budget, stop):
    path = [PathToken(0, b"a")] * (budget - 1) + [PathToken(2, b"ab")]
    by_string = CascadeConfig(100, max_new_tokens=budget, stop=(stop,))
    by_bytes = CascadeConfig(100, max_new_bytes=budget + 1, stop=(stop,))
    for config in (by_string, by_bytes):
        assert run(config, path)[0].finish is FinishReason.STOP
    by_id = CascadeConfig(100, max_new_tokens=budget, end_ids=(END,))
    assert run(by_id, [*path[:-1], PathToken(END, b"")])[0].finish is FinishReason.STOP


def test_a_stop_string_that_began_in_earlier_tokens_takes_them_back():
    config = CascadeConfig(100, stop=(b"xyz!",))
    rules = StopRules(config, 0)
    first = rules.take([PathToken(1, b"hello x"), PathToken(2, b"y"), PathToken(3, b"z")])
    assert (first.reveal_to, first.finish) == (6, None)
    last = rules.take([PathToken(4, b"!!"), PathToken(5, b"more")])
    assert (last.tokens, last.data, last.reveal_to) == ((), b"", 6)
    assert (rules.ids, rules.length, rules.finish) == ([], 6, FinishReason.STOP)


def test_of_two_stop_strings_that_end_together_the_longer_one_cuts():
    rules = StopRules(CascadeConfig(100, stop=(b"b", b"aab")), 0)
    rules.take([PathToken(1, b"xa"), PathToken(2, b"ab")])
    assert (rules.length, rules.ids) == (1, [])


def test_a_stop_string_inside_one_character_cuts_there():
    rules = StopRules(CascadeConfig(100, stop=(b"\xa9",)), 0)
    taken = rules.take([PathToken(1, "aé".encode())])
    assert (taken.data, rules.ids, rules.finish) == (b"a\xc3", [], FinishReason.STOP)


def test_without_stop_strings_nothing_is_held_back():
    rules = StopRules(CascadeConfig(100), 0)
    assert rules.take([PathToken(1, b"abc")]).reveal_to == 3


@given(st.integers(0, 4), st.integers(1, 5))
def test_c1_end_of_sequence_ends_with_stop_wherever_it_stands_in_a_block(place, size):
    path = [PathToken(0, b"a")] * place + [PathToken(END, b"")] + [PathToken(1, b"b")] * 3
    rules, data, _ = run(CascadeConfig(100, end_ids=(END,)), path, [size])
    assert outcome(rules, data) == ((*[0] * place, END), b"a" * place, FinishReason.STOP)


def test_c1_without_end_ids_the_same_id_is_an_ordinary_token():
    path = [PathToken(0, b"a"), PathToken(END, b""), PathToken(1, b"b")]
    rules, data, _ = run(CascadeConfig(100, end_ids=()), path, [3])
    assert outcome(rules, data) == ((0, END, 1), b"ab", None)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_c3_a_stop_string_cuts_bytes_and_ids_at_one_place(sizes):
    """Stop ` ha ha` in ` ha ha ha ha!`, tokens of one word each, behind `so`."""
    path = [PathToken(1, b"so"), *[PathToken(2, b" ha")] * 4, PathToken(3, b"!")]
    rules, data, _ = run(CascadeConfig(100, stop=(b" ha ha",)), path, sizes)
    assert outcome(rules, data) == ((1,), b"so", FinishReason.STOP)


def test_c1_an_end_id_whose_table_entry_has_bytes_adds_none():
    """Chat tokens that a tokenizer lists as added but not special have their text as bytes."""
    rules, data, _ = run(CascadeConfig(100, end_ids=(END,)), [PathToken(0, b"a"), PathToken(END, b"<|end|>")], [2])
    assert (outcome(rules, data), rules.length) == (((0, END), b"a", FinishReason.STOP), 1)


def test_c3_the_head_of_a_token_that_straddles_the_cut_is_bytes_without_an_id():
    path = [PathToken(1, b"so"), PathToken(2, b"! ha"), PathToken(3, b" ha")]
    rules, data, _ = run(CascadeConfig(100, stop=(b" ha ha",)), path, [3])
    assert outcome(rules, data) == ((1,), b"so!", FinishReason.STOP)


@given(configs, paths, st.sampled_from([FinishReason.CANCELLED, FinishReason.ERROR]))
def test_an_end_from_outside_keeps_all_that_was_taken(config, path, reason):
    rules, data, _ = run(config, path)
    if not rules.finish:
        assert rules.stop_now(reason) == len(data)
        assert (rules.finish, rules.more) == (reason, 0)
