"""The certificate: when it opens, for what, when it closes, what it keeps, and what it says."""

from math import log

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grimboost.errors import MisuseError
from grimboost.stages.certificate import Certificate, CertificateState, Terms, ThresholdCounts, own_needed
from grimboost.stages.e_process import Watch, log_e_value, rate_upper, spans_needed

GRID = (0.9, 0.7, 0.5)
TERMS = Terms(0.2, 0.2, GRID)
NEEDED = spans_needed(0.2, 0.2, 0)
BETWEEN = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)

spans = st.lists(st.tuples(st.sampled_from(BETWEEN), st.booleans(), st.booleans()), max_size=120)
rarely_slipping = st.lists(
    st.tuples(st.sampled_from(BETWEEN), st.integers(0, 15).map(lambda one: one == 0), st.booleans()), max_size=150
)


def certificate(seen, terms=TERMS):
    made = Certificate(terms)
    for span in seen:
        made.observe(*span)
    return made


def clean(count, confidence=0.95, made=None, released=False, terms=TERMS):
    made = made or Certificate(terms)
    for _ in range(count):
        made.observe(confidence, False, released)
    return made


def model(seen, terms=TERMS):
    """The rules, written out: every e-value after every span, and the watch on released spans while open."""
    passed, since, watch, openings, closings = set(), [], None, 0, 0
    for confidence, slip, released in seen:
        was_open = terms.thresholds[0] in passed
        since.append((confidence, slip))
        for threshold in terms.thresholds:
            chosen = [slip for confidence, slip in since if confidence >= threshold]
            if log_e_value(terms.epsilon, len(chosen), sum(chosen)) >= -log(terms.delta):
                passed.add(threshold)
        if was_open and released and watch.observe(slip):
            passed, since, closings = set(), [], closings + 1
        elif terms.thresholds[0] in passed and not was_open:
            watch, openings = Watch(terms.epsilon), openings + 1
    counting, stricter = [], 2.0
    for place, threshold in enumerate(terms.thresholds):
        own = [slip for confidence, slip in since if threshold <= confidence < stricter]
        if set(terms.thresholds[: place + 1]) <= passed and (not place or len(own) >= own_needed(threshold)):
            counting.append(threshold)
        stricter = threshold
    return (counting[-1] if counting else None), openings, closings


@settings(max_examples=60)
@given(spans | rarely_slipping)
def test_it_is_what_computing_every_e_value_after_every_span_says(seen):
    made = certificate(seen)
    assert (made.threshold, made.state.openings, made.state.closings) == model(seen)


@settings(max_examples=40)
@given(rarely_slipping, spans, rarely_slipping)
def test_so_it_is_over_closings_and_openings(before, bad, after):
    opening = [(0.95, False, False)] * NEEDED
    released = [(confidence, True, True) for confidence, *_ in bad[:8]]
    seen = [*opening, *before, *released, *opening, *after]
    made = certificate(seen)
    assert (made.threshold, made.state.openings, made.state.closings) == model(seen)


def test_it_opens_with_the_last_clean_span_needed():
    made = clean(NEEDED - 1)
    assert not made.opened
    assert made.threshold is None
    made.observe(0.95, False, False)
    assert made.opened
    assert made.threshold == 0.9
    assert made.state.openings == 1


def test_within_3400_clean_spans_at_one_in_a_thousand():
    made, count = Certificate(Terms()), 0
    while not made.opened:
        made.observe(0.9999, False, False)
        count += 1
    assert count <= 3400


@given(rarely_slipping)
def test_a_slip_never_opens_nor_widens(seen):
    made = Certificate(TERMS)
    for confidence, slip, released in seen:
        before = made.threshold
        made.observe(confidence, slip, released)
        if slip:
            assert made.threshold in (before, None)


@given(rarely_slipping, st.randoms(use_true_random=False))
def test_evidence_does_not_depend_on_the_order(seen, random):
    shuffled = list(seen)
    random.shuffle(shuffled)
    rows = [
        [(row.spans, row.slips) for row in certificate(each).state.rows]
        for each in ([(c, s, False) for c, s, _ in seen], [(c, s, False) for c, s, _ in shuffled])
    ]
    assert rows[0] == rows[1]


def test_a_laxer_threshold_counts_only_when_all_stricter_have_passed():
    made = clean(10 * NEEDED, 0.75)  # passes for 0.7 and 0.5; nothing was seen of 0.9
    assert [row.passed for row in made.state.rows] == [False, True, True]
    assert made.threshold is None
    clean(NEEDED, 0.95, made)
    assert made.threshold == 0.7


def test_a_threshold_that_has_not_passed_holds_back_all_laxer_ones():
    made = Certificate(TERMS)
    for _ in range(10):
        made.observe(0.75, True, False)
    clean(10 * NEEDED, 0.55, clean(NEEDED, 0.95, made))
    assert [row.passed for row in made.state.rows] == [True, False, True]
    assert made.threshold == 0.9


def test_a_laxer_threshold_has_to_have_seen_spans_of_its_own():
    made = clean(10 * NEEDED)
    assert [row.passed for row in made.state.rows] == [True, True, True]
    assert made.threshold == 0.9
    clean(own_needed(0.7) - 1, 0.75, made)
    assert made.threshold == 0.9
    clean(1, 0.75, made)
    assert made.threshold == 0.7
    clean(own_needed(0.5), 0.65, clean(own_needed(0.5), 0.55, made))
    assert made.threshold == 0.5


@pytest.mark.parametrize(("threshold", "needed"), [(0.998, 500), (0.99, 100), (0.8, 5), (0.5, 2), (0.7, 4)])
def test_so_many_that_one_slip_was_to_be_expected(threshold, needed):
    assert own_needed(threshold) == needed


def test_a_lax_threshold_that_fails_leaves_the_stricter_ones():
    made = Certificate(TERMS)
    for place in range(20 * NEEDED):
        made.observe(0.95, False, False)
        made.observe(0.8, place % 20 == 0, False)
        made.observe(0.6, place % 2 == 0, False)
    assert made.threshold == 0.7
    assert [row.passed for row in made.state.rows] == [True, True, False]


@given(st.lists(st.sampled_from(BETWEEN), max_size=60))
def test_open_it_stays_while_no_released_span_slips(confidences):
    made, reached = clean(NEEDED), 0.9
    for confidence in confidences:
        made.observe(confidence, True, False)  # held back, or checked before it was shown
        made.observe(confidence, False, True)
        assert made.threshold is not None
        assert made.threshold <= reached
        reached = made.threshold


def test_released_slips_close_it_and_it_begins_anew():
    made, count = clean(NEEDED), 0
    while made.opened:
        made.observe(0.95, True, True)
        count += 1
    assert count < 10
    state = made.state
    assert (state.openings, state.closings) == (1, 1)
    assert all((row.spans, row.slips, row.passed) == (0, 0, False) for row in state.rows)
    assert (state.released, state.released_slips) == (count, count)
    assert not clean(NEEDED - 1, made=made).opened
    assert clean(1, made=made).opened
    assert (made.state.openings, made.state.closings) == (2, 1)


def test_the_watch_begins_with_the_opening():
    """Spans released before (under an earlier opening, audited late) are evidence, but close nothing again."""
    made = clean(NEEDED)
    while made.opened:
        made.observe(0.95, True, True)
    for _ in range(20):
        made.observe(0.4, True, True)
    assert made.state.closings == 1
    assert clean(NEEDED, made=made).opened
    made.observe(0.95, True, True)
    assert made.opened


@given(rarely_slipping, rarely_slipping)
def test_what_is_kept_is_enough_to_go_on_from(before, after):
    whole, part = certificate(before), certificate(before)
    part.end_generation(True, True)
    whole.end_generation(True, True)
    kept = msgspec.json.decode(msgspec.json.encode(part.state), type=CertificateState)
    assert kept == part.state
    part = Certificate(TERMS, kept)
    for span in after:
        whole.observe(*span)
        part.observe(*span)
    assert part.state == whole.state
    assert part.report() == whole.report()


def test_answers_are_bounded_by_one_loss_each():
    made = Certificate(TERMS)
    for place in range(200):
        made.end_generation(slip=place % 50 == 0, whole=True)
    made.end_generation(slip=False, whole=False)  # cut short: says nothing
    made.end_generation(slip=True, whole=False)  # but what slipped did
    report = made.report()
    assert (report.answers, report.answers_with_slip) == (201, 5)
    assert report.answers_upper == rate_upper(201, 5, TERMS.delta)
    assert 5 / 201 < report.answers_upper < 0.1


def test_answers_go_on_over_closings():
    made = clean(NEEDED)
    made.end_generation(False, True)
    while made.opened:
        made.observe(0.95, True, True)
    made.end_generation(True, True)
    assert (made.state.answers, made.state.answers_with_slip) == (2, 1)


def test_a_confidence_that_is_no_number_counts_for_nothing():
    made = clean(NEEDED * 2, float("nan"))
    assert not made.opened
    assert made.state.rows[-1].spans == 0


def test_the_report_says_how_many_clean_spans_are_missing_and_that_is_true():
    made = clean(5)
    made.observe(0.95, True, False)
    report = made.report()
    missing = report.thresholds[0].missing
    assert (report.spans, report.slips, report.open) == (6, 1, False)
    assert f"closed: 1 slip in 6 audited spans of confidence 0.9 or more; about {missing} more" in report.reason
    clean(missing - 1, made=made)
    assert not made.opened
    assert "about 1 more" in made.report().reason
    assert clean(1, made=made).opened


def test_the_report_of_an_open_one_is_about_the_laxest_threshold_that_counts():
    made = clean(4, 0.6, clean(NEEDED))
    made.observe(0.6, True, False)
    report = made.report()
    seen = NEEDED + 5
    assert report.threshold == 0.5
    assert (report.spans, report.slips) == (seen, 1)
    assert report.reason.startswith(f"open: 1 slip in {seen} audited spans of confidence 0.5 or more")
    assert report.e_value == pytest.approx(10**report.log10_e_value)
    assert report.upper == rate_upper(seen, 1, 0.2)
    assert report.wilson_upper < report.upper
    assert [row.passed for row in report.thresholds] == [True] * 3
    assert [row.missing for row in report.thresholds] == [0] * 3
    assert [row.own_missing for row in report.thresholds] == [0, own_needed(0.7), 0]


def test_the_report_is_finite_whatever_was_seen():
    rows = tuple(ThresholdCounts(one, 10**9, 0, True) for one in GRID)
    report = Certificate(TERMS, CertificateState(rows, openings=1)).report()
    assert report.e_value == 1e300
    assert msgspec.json.decode(msgspec.json.encode(report))["log10_e_value"] > 300
    fresh = Certificate(TERMS).report()
    assert (fresh.e_value, fresh.upper, fresh.wilson_upper, fresh.answers_upper) == (1.0, 1.0, 1.0, 1.0)
    assert f"closed: no audited span of confidence 0.9 or more; about {NEEDED} more" in fresh.reason


def test_after_a_closing_the_sentence_says_so():
    made = clean(NEEDED)
    while made.opened:
        made.observe(0.95, True, True)
    assert made.report().reason.startswith(
        "closed: released spans slipped more often than 20%; since then no audited"
    )


@pytest.mark.parametrize(
    ("epsilon", "grid"),
    [
        (0.001, (0.999, 0.998, 0.995, 0.99, 0.98, 0.95, 0.9, 0.8)),
        (0.05, (0.95, 0.9, 0.75, 0.5)),
        (0.5, (0.5,)),
        (1e-6, (0.9999, 0.9998)),
    ],
)
def test_default_thresholds_follow_epsilon(epsilon, grid):
    assert Terms(epsilon).thresholds == grid
    Terms(epsilon).check()


@pytest.mark.parametrize(
    ("terms", "named"),
    [
        (Terms(0.0), "epsilon"),
        (Terms(0.6), "epsilon"),
        (Terms(float("nan")), "epsilon"),
        (Terms(delta=0.0), "delta"),
        (Terms(delta=1.0), "delta"),
        (Terms(thresholds=(0.9, 0.95)), "thresholds"),
        (Terms(thresholds=(0.9, 0.9)), "thresholds"),
        (Terms(thresholds=(1.2, 0.9)), "thresholds"),
        (Terms(thresholds=(0.9, 0.0)), "thresholds"),
    ],
)
def test_terms_that_cannot_be_are_named(terms, named):
    with pytest.raises(MisuseError, match=named):
        terms.check()
    with pytest.raises(MisuseError, match=named):
        Certificate(terms)


OPEN_ROWS = tuple(ThresholdCounts(one, NEEDED, 0, True) for one in GRID)


@pytest.mark.parametrize(
    "state",
    [
        CertificateState(tuple(ThresholdCounts(one) for one in (0.9, 0.7))),
        CertificateState(tuple(ThresholdCounts(one) for one in (0.9, 0.7, 0.6))),
        CertificateState(tuple(ThresholdCounts(one, NEEDED - 1, 0, True) for one in GRID), openings=1),
        CertificateState(OPEN_ROWS),  # never opened
        CertificateState(OPEN_ROWS, openings=1, closings=1),
        CertificateState(openings=1),
    ],
)
def test_evidence_that_contradicts_itself_opens_nothing(state):
    with pytest.raises(MisuseError, match="evidence"):
        Certificate(TERMS, state)
    assert Certificate(TERMS, CertificateState(OPEN_ROWS, openings=1)).opened


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": [{"threshold": 0.9, "spans": 1, "slips": 2}]},
        {"rows": [{"threshold": 0.9, "spans": 1, "slips": -1}]},
        {"answers": 1, "answers_with_slip": 2},
        {"released": -1},
        {"openings": 0, "closings": 1},
        {"openings": 2, "closings": 0},
        {"clean": -1},
        {"watch": [0.0]},
        {"unknown": 1},
    ],
)
def test_states_that_cannot_be_are_refused(wrong):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(wrong), type=CertificateState)
