"""What-if, the library: a run under another configuration, as far as a log can tell, is the run that would be."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace
from stage_driver import Driver
from stage_world import PROMPT, VOCABULARY, SpiedTarget, configs, hashed, scripts, truth
from stages.test_streaming_laws import streaming
from timed_driver import TimedDriver, untimed

from grimboost import messages as m
from grimboost.adapters.drafter import Drafter, Proposal
from grimboost.adapters.lookup_drafter import LookupDrafter
from grimboost.adapters.script_drafter import ScriptDrafter
from grimboost.adapters.target import TargetFacts
from grimboost.counterfactual import Counterfactual, Memory, Step
from grimboost.errors import LogError, MisuseError
from grimboost.known_answers import NotRecorded, Unasked, exchanges
from grimboost.log import Log
from grimboost.message_lanes import alike
from grimboost.parameters import parameters
from grimboost.resolution import Clearance, resolve_stages
from grimboost.stages.configuration import CascadeConfig, CostCurve, GateConfig, StageConfigs, TrustConfig
from grimboost.what_if import Changes, WhatIfs, changed, what_if
from grimboost.what_if_figures import figures
from grimboost.wiring import CASCADE, DRAFTER, REVEALER, VERIFIER

FOLDER = Path(__file__).parent / "logs"
LOGS = sorted(FOLDER.glob("*.grimlog"))
COSTLY = CostCurve((1, 2, 4, 8, 16), (1.0, 1.25, 1.5, 2.5, 5.0))
CURVES = (
    CostCurve(),
    COSTLY,
    CostCurve((1, 2, 4), (1.0, 2.0, 4.0)),
)


class World:
    """A target, a drafter and a configuration that were drawn; `record` runs it with some values changed."""

    def __init__(self, draw) -> None:
        self.next_token = hashed(draw(st.integers(0, 200)), draw(st.sampled_from([1000, 1000, 1000, 30])))
        kinds = ["often wrong"] * 5 + ["true", "broken", "own noise", "cut anywhere", "fails"]
        script = script_of(truth(self.next_token), draw(st.sampled_from(kinds)), draw(st.integers(0, 20)))
        steps = draw(st.sampled_from([(0.9,), (0.9, 0.6), (0.95, 0.3, 0.6), (0.5, 0.8, 0.7, 0.99)]))
        self.script, self.steps, self.whole = script, steps, draw(st.booleans())
        cascade = CascadeConfig(
            context_limit=64,
            max_new_tokens=draw(st.integers(15, 45)),
            max_new_bytes=draw(st.sampled_from([None, None, 30, 41])),
            stop=draw(st.sampled_from([(), (), (b"ab!",), (b"bab", b" ha ha")])),
            end_ids=draw(st.sampled_from([(0,), ()])),
        )
        stands = draw(st.booleans())
        self.configs = streaming(
            configs(cascade, draw(st.sampled_from(CURVES)), draw(st.sampled_from([16, 5, 2])), 60),
            stands=stands,
            gate=draw(gates),
            trust=draw(trusts),
            open_end=stands and draw(st.sampled_from([False, False, True])),
            request_bytes=draw(st.sampled_from([9, 20, 60])),
        )
        self.learns = False
        self.draft_seconds = draw(st.sampled_from([2.0**-9, 2.0**-9, 2.0**-7, 2.0**-5, 2.0**-3]))

    def drafter(self) -> Drafter:
        if self.learns:
            return LookupDrafter()
        return SteppedDrafter(self.script, self.steps, self.whole)

    def target(self) -> SpiedTarget:
        return SpiedTarget(VOCABULARY, self.next_token, context_limit=64)

    def run(self, configs: StageConfigs) -> TimedDriver:
        driver = TimedDriver(configs, self.target(), self.drafter(), PROMPT, draft_seconds=self.draft_seconds)
        driver.run()
        return driver

    def __repr__(self) -> str:
        return f"World({vars(self)})"


def script_of(text: bytes, kind: str, place: int):
    """Those of the other worlds, and one that is wrong again and again, wherever it begins."""
    if kind != "often wrong":
        return scripts(text, kind, place)
    every, start = place + 3, len(VOCABULARY.join(PROMPT))

    def often_wrong(context, limit):
        data = bytearray(text[len(context) - start :][:limit])
        for at in range(len(data)):
            if (len(context) + at) % every == 0:
                data[at] = ord("!")
        return bytes(data)

    return often_wrong


class SteppedDrafter(ScriptDrafter):
    """How sure it is depends on the place in the text, and on nothing else."""

    def __init__(self, script, steps, whole) -> None:
        super().__init__(script, steps[0], whole)
        self.steps = steps

    def begin(self):
        return _SteppedSession(self)


class _SteppedSession:
    def __init__(self, drafter) -> None:
        self._drafter, self._context = drafter, b""

    def extend(self, committed):
        self._context += committed

    def propose(self, ahead, limit):
        text = self._context + ahead
        data = self._drafter.script(text, limit)[:limit]
        steps = self._drafter.steps
        tokens = [m.DraftToken(1, steps[(len(text) + place) // 3 % len(steps)]) for place in range(len(data))]
        return Proposal(data, tuple(tokens), self._drafter.whole)


gates = st.builds(
    GateConfig,
    mode=st.just("streaming"),
    release=st.sampled_from(["always"] * 12 + ["certified", "never"]),
    certified=st.booleans(),
    threshold=st.sampled_from([0.0, 0.5, 0.75, 0.75, 0.93]),
    anchor_bytes=st.sampled_from([512, 512, 8]),
    max_unverified_bytes=st.sampled_from([200, 200, 12, 5, 1]),
    max_unverified_tokens=st.sampled_from([64, 64, 4, 1]),
)
trusts = st.builds(
    TrustConfig,
    doubt_bytes=st.sampled_from([10, 30, 3, 0]),
    max_repairs=st.integers(0, 2),
    takeover_tokens=st.sampled_from([0, 1, 5]),
)


@st.composite
def worlds(draw):
    return World(draw)


@st.composite
def pairs(draw):
    """A world, and changes of its configuration."""
    world = World(draw)
    gate, trust, found = draw(gates), draw(trusts), dict[str, float]()
    if draw(st.sampled_from([True, True, False])):
        found["threshold"] = max(gate.threshold, world.configs.gate.threshold * world.configs.gate.certified)
    for name in ("anchor_bytes", "max_unverified_bytes", "max_unverified_tokens"):
        if draw(st.sampled_from([True, False, False])):
            found[name] = getattr(gate, name)
    if draw(st.booleans()):
        found |= structs.asdict(trust)
    return world, Changes(**found)


def plain(steps: list[Step]) -> list[tuple[object, ...]]:
    """What can be compared: without choices that were not looked at, and without how long a pass took."""
    return [(one.seconds, one.stage, _bare(one.message), tuple(map(_bare, one.answers))) for one in steps]


def _bare(message: m.Message) -> m.Message:
    match message:
        case m.PassReturned():
            return replace(message, choices=(), seconds=0.0)
        case m.Verdict():
            return replace(message, choices=())
        case m.DraftReturned():
            return replace(message, seconds=0.0)
    return message


def steps_of(driver: TimedDriver) -> list[Step]:
    return [Step(one.seconds, one.stage, one.message, one.answers) for one in driver.entries]


def commits(steps: list[Step]) -> list[m.Commit]:
    return [one for step in steps if step.stage == "cascade" for one in step.answers if isinstance(one, m.Commit)]


def assert_is_beginning_of(run: Counterfactual, rerun: TimedDriver) -> None:
    """The answer, step by step, is what the real rerun did; all of it, where the answer has no end."""
    exact = len(run.steps) if run.exact_steps is None else run.exact_steps
    did = steps_of(rerun)
    assert plain(run.steps[:exact]) == plain(did[:exact])
    assert run.end is not None or len(did) == exact
    said, shown = commits(run.steps), commits(did)
    text, whole = (b"".join(one.data for one in all_) for all_ in (said, shown))
    assert whole.startswith(text)
    if run.end is not None and rerun.configs.cascade.shown_stands:
        tokens = sum(len(one.ids) for one in said)
        slips = [slip for one in shown for slip in one.slips if slip.position < tokens]
        assert [slip for one in said for slip in one.slips] == slips


@settings(deadline=None, max_examples=250)
@given(pairs())
def test_another_configuration_is_answered_as_a_rerun_shows(pair) -> None:
    world, changes = pair
    log = world.run(world.configs).recorded()
    other = changed(log, changes)
    assert other is not None
    run = Counterfactual(log, other).run()
    assert_is_beginning_of(run, world.run(other))


@settings(deadline=None, max_examples=300)
@given(pairs())
def test_where_all_answers_are_known_the_answer_is_the_whole_rerun(pair) -> None:
    """As if the log had been asked everything: then only the run itself can be wrong."""
    world, changes = pair
    log = world.run(world.configs).recorded()
    other = changed(log, changes)
    assert other is not None
    rerun = world.run(other)
    memory = known_to_all(log, rerun)
    run = Counterfactual(log, other, memory).run()
    assert_is_beginning_of(run, rerun)
    if run.end is not None:  # then for another reason, or for an answer that came too late in the rerun, too
        late = [one for stage in (VERIFIER, DRAFTER) for one in exchanges(rerun.entries, stage)]
        assert "evidence" in run.end or any(one.answer is None for one in late)


def known_to_all(log: Log, rerun: TimedDriver) -> Memory:
    """What both runs know."""
    memory = Memory(log)
    memory.target.learn(exchanges(rerun.entries, VERIFIER))
    memory.drafter.learn(exchanges(rerun.entries, DRAFTER))
    return memory


@settings(deadline=None, max_examples=300)
@given(pairs(), st.randoms(use_true_random=False), st.sampled_from([0.05, 0.2]))
def test_whatever_is_not_known_nothing_is_guessed(pair, chance, share) -> None:
    """As before, but some choices of the target are forgotten."""
    world, changes = pair
    log = world.run(world.configs).recorded()
    other = changed(log, changes)
    assert other is not None
    rerun = world.run(other)
    memory = known_to_all(log, rerun)
    for node in list(memory.target.choices):
        if chance.random() < share:
            del memory.target.choices[node]
    assert_is_beginning_of(Counterfactual(log, other, memory).run(), rerun)


@settings(deadline=None, max_examples=150)
@given(pairs())
def test_what_is_certain_holds_for_a_drafter_that_learns(pair) -> None:
    world, changes = pair
    world.learns = True
    log = world.run(world.configs).recorded()
    other = changed(log, changes)
    assert other is not None
    run = Counterfactual(log, other).run()
    did = steps_of(world.run(other))
    exact = [one for one in (run.exact_steps, run.certain_steps, len(run.steps)) if one is not None]
    assert plain(run.steps[: min(exact)]) == plain(did[: min(exact)])


@settings(deadline=None, max_examples=100)
@given(pairs())
def test_figures_are_those_of_the_rerun_up_to_the_same_commit(pair) -> None:
    world, changes = pair
    log = world.run(world.configs).recorded()
    known = WhatIfs(log)
    answer = known.ask(changes)
    rerun = WhatIfs(world.run(changed(log, changes)).recorded()).ask()
    happened = known.ask()
    assert happened.as_recorded and happened.share == 1.0
    assert happened.recorded == happened.what_if
    assert 0.0 <= answer.share <= 1.0
    assert answer.certain_bytes <= answer.answerable_bytes == answer.what_if.new_bytes
    assert answer.recorded.new_bytes <= answer.answerable_bytes or answer.end is None
    if answer.end is None:
        assert answer.what_if == rerun.what_if
        assert answer.recorded == happened.recorded
    else:
        assert set(answer.what_if.slips) <= set(rerun.what_if.slips)


@settings(deadline=None, max_examples=150)
@given(worlds())
def test_the_recorded_configuration_is_what_happened(world) -> None:
    log = world.run(world.configs).recorded()
    run = Counterfactual(log, world.configs).run()
    assert (run.end, run.left_at, run.reused) == (None, None, 0)
    assert [(one.seconds, one.stage, one.message, one.answers) for one in run.steps] == [
        (one.seconds, one.stage, one.message, one.answers) for one in log
    ]


@settings(deadline=None, max_examples=100)
@given(worlds(), st.integers(0, 2**32), st.none() | st.integers(0, 150))
def test_the_recorded_configuration_is_what_happened_in_any_order(world, seed, cancel_after) -> None:
    driver = Driver(world.configs, world.target(), world.drafter(), PROMPT, order=random.Random(seed))
    driver.run(cancel_after)
    run = Counterfactual(untimed(driver), world.configs).run()
    assert (run.end, run.left_at) == (None, None)
    assert [(one.stage, one.message, one.answers) for one in run.steps] == [
        (one.stage, one.message, one.answers) for one in driver.log
    ]


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_the_recorded_configuration_of_a_kept_log_is_what_happened(path: Path) -> None:
    log = Log.open(path)
    run = Counterfactual(log, log.header.stages).run()
    assert (run.end, run.left_at, run.reused) == (None, None, 0)
    entries = [one for one in log if one.stage != "client"]
    assert [(one.seconds, one.stage, one.message, one.answers) for one in run.steps] == [
        (one.seconds, one.stage, one.message, one.answers) for one in entries
    ]


def log_of(name: str) -> Log:
    return Log.open(FOLDER / f"{name}.grimlog")


def headed(log: Log, **changes) -> Log:
    return Log(replace(log.header, **changes), log.entries, log.torn_at)


# ---------------------------------------------------------------- known cases


def test_a_slip_that_a_higher_threshold_would_not_have_shown_ends_the_answer_behind_it() -> None:
    """The target's own choice there is known, and what it would say behind it is not."""
    log = log_of("slips")
    first = WhatIfs(log).ask().recorded.slips[0]
    answer = what_if(log, Changes(threshold=0.999))
    assert not answer.as_recorded
    assert answer.what_if.slips == ()
    assert answer.what_if.released_bytes == 0
    assert answer.end is not None and f"at byte {answer.answerable_bytes}" in answer.end
    assert first.offset <= answer.answerable_bytes < answer.recorded_bytes


def test_a_slip_that_a_lower_threshold_would_have_shown_is_said_although_the_pass_is_known_in_part() -> None:
    """Where nothing is shown blocks are shorter, so of a longer one behind the slip not all was asked."""
    world = wrong_at_three()
    log = world.run(0.95).recorded()
    assert not WhatIfs(log).ask().recorded.slips
    answer = what_if(log, Changes(threshold=0.1))
    rerun = WhatIfs(world.run(0.1).recorded()).ask()
    assert answer.end is not None
    assert 3 < answer.answerable_bytes < rerun.recorded_bytes
    assert [slip.offset for slip in answer.what_if.slips] == [3]
    assert answer.what_if.slips == rerun.what_if.slips[:1]


class _Fixed:
    """A world without draws."""

    def __init__(self, next_token, drafted: bytes, curve: CostCurve) -> None:
        self.next_token, self.drafted, self.curve = next_token, drafted, curve

    def run(self, threshold: float) -> TimedDriver:
        start = len(VOCABULARY.join(PROMPT))
        cascade = CascadeConfig(context_limit=64, max_new_tokens=20)
        made = streaming(
            configs(cascade, self.curve, 16, 60),
            stands=True,
            gate=GateConfig("streaming", "always", threshold=threshold, floor=threshold),
            trust=TrustConfig(),
            open_end=False,
            request_bytes=20,
        )
        drafter = ScriptDrafter(lambda context, limit: self.drafted[len(context) - start :][:limit], 0.9)
        driver = TimedDriver(made, SpiedTarget(VOCABULARY, self.next_token, context_limit=64), drafter, PROMPT)
        driver.run()
        return driver


def wrong_at_three() -> _Fixed:
    """The target writes ` a a a`, the drafter ` a b a`."""

    def next_token(prefix):
        return VOCABULARY.ids[b"a" if len(prefix) % 2 else b" "]

    drafted = b" a b" + b" a" * 20
    return _Fixed(next_token, drafted, COSTLY)


def test_where_texts_can_be_taken_back_the_answer_comes_to_the_end() -> None:
    log = log_of("retracted")
    answer = what_if(log, Changes(threshold=0.999))
    if answer.end is None:
        assert answer.answerable_bytes == answer.recorded_bytes
    assert answer.what_if.retracted_bytes == 0


def test_choices_that_were_not_asked_for_cannot_be_looked_at() -> None:
    one = Unasked(-1)
    for look in (lambda: one == 3, lambda: one != 3, lambda: one == one):  # noqa: PLR0124
        with pytest.raises(NotRecorded):
            look()
    assert one not in frozenset({3, 4})


def test_a_target_that_is_not_row_invariant_is_known_as_far_as_it_was_asked_the_same() -> None:
    log = wrong_at_three().run(0.95).recorded()
    stages = log.header.stages
    shaky = headed(log, stages=replace(stages, verifier=replace(stages.verifier, row_invariant=False)))
    assert what_if(shaky).as_recorded
    answer = what_if(shaky, Changes(threshold=0.1))
    assert answer.end is not None and "row-invariant" in answer.end


def test_other_generations_in_the_same_passes_end_the_answer() -> None:
    log = wrong_at_three().run(0.95).recorded()
    entries = [
        replace(one, message=replace(one.message, batch_slots=2))
        if isinstance(one.message, m.PassReturned) and not one.message.choices  # of the prompt: it plans nothing
        else one
        for one in log
    ]
    crowded = Log(log.header, entries, None)
    answer = what_if(crowded, Changes(threshold=0.1))
    assert answer.end is not None and "other generations" in answer.end


def test_a_torn_log_is_answered_to_its_end() -> None:
    log = log_of("slips")
    torn = Log(log.header, log.entries[: len(log.entries) // 2], 1234)
    answer = what_if(torn)
    assert answer.as_recorded
    assert answer.end is not None and "the log ends" in answer.end


def test_whichever_choice_is_not_known_nothing_is_guessed() -> None:
    """Also where it is the target's own behind a block that was accepted whole, and nobody has to compare it."""
    world = _Fixed(lambda prefix: VOCABULARY.ids[b"a" if len(prefix) % 2 else b" "], b" a" * 3, COSTLY)
    log, rerun = world.run(0.95).recorded(), world.run(0.1)
    for node in known_to_all(log, rerun).target.choices:
        memory = known_to_all(log, rerun)
        del memory.target.choices[node]
        assert_is_beginning_of(Counterfactual(log, changed_to(log, 0.1), memory).run(), rerun)


def test_what_a_client_that_cancelled_would_have_done_nobody_knows() -> None:
    world = wrong_at_three()
    log, rerun = world.run(0.95).recorded(), world.run(0.1)
    at = (rerun.entries[-1].seconds + rerun.entries[0].seconds) / 2
    kept = [one for one in log if one.seconds < at]
    cancel = replace(kept[-1], seconds=at, stage=CASCADE, message=m.CancelRequested(), answers=())
    memory = known_to_all(log, rerun)
    run = Counterfactual(Log(log.header, [*kept, cancel], None), changed_to(log, 0.1), memory).run()
    assert run.end is not None and "the client cancelled here" in run.end
    assert run.steps[-1].seconds <= at
    assert_is_beginning_of(run, rerun)


def changed_to(log: Log, threshold: float) -> StageConfigs:
    other = changed(log, Changes(threshold=threshold))
    assert other is not None
    return other


def test_why_the_gate_decides_so_is_no_other_answer() -> None:
    span, other = m.Span(1, b"a", 0.9), m.Span(2, b"b", 0.9)

    def spans(one: m.Span, reason: str) -> m.Spans:
        return m.Spans(0, 0, 0, (m.GatedSpan(one, m.Decision.VERIFY, reason),))

    assert alike([spans(span, "confidence")], [spans(span, "behind")])
    assert not alike([spans(span, "behind")], [spans(other, "behind")])
    assert not alike([spans(span, "behind")], [])


@pytest.mark.parametrize("name", ["slips", "retracted", "takeover"])
def test_figures_up_to_a_commit_know_nothing_of_what_comes_behind(name: str) -> None:
    log = log_of(name)
    run = Counterfactual(log, log.header.stages).run()
    shown = [place for place, one in enumerate(log) if one.stage == REVEALER and isinstance(one.message, m.Commit)]
    assert len(shown) == len(run.marks)
    for mark, place in zip(run.marks, shown, strict=True):
        cut = Counterfactual(Log(log.header, log.entries[: place + 1], None), log.header.stages).run()
        upto = next(one for one in cut.marks if one.counts == mark.counts)
        assert figures(cut, upto) == figures(run, mark)


def test_with_another_certificate_only_the_judged_spans_are_said() -> None:
    log = headed(log_of("certified"), epsilon=0.5)
    known = WhatIfs(log)
    assert known.ask(Changes(epsilon=0.5)).as_recorded
    answer = known.ask(Changes(epsilon=0.1))
    assert (answer.share, answer.answerable_bytes) == (0.0, 0)
    assert answer.end is not None and "evidence" in answer.end
    assert known.judged_spans([0.0])[0].spans > 0


def test_other_evidence_than_recorded_ends_the_answer_where_a_certificate_decides() -> None:
    answer = what_if(log_of("certified"), Changes(max_unverified_bytes=5))
    assert not answer.as_recorded
    assert answer.end is not None and "evidence" in answer.end


def test_judged_spans_are_counted_as_audited() -> None:
    log = log_of("slips")
    spans = [
        span for one in log for answer in one.answers if isinstance(answer, m.Audited) for span in answer.spans
    ]
    curve = log.header.stages.gate.calibration
    [all_, some, none] = WhatIfs(log).judged_spans([0.0, 0.9, 1.1])
    assert (all_.spans, all_.slips, all_.share) == (len(spans), sum(one.slip for one in spans), 1.0)
    assert some.spans == sum(curve.of(one.confidence) >= 0.9 for one in spans)
    assert (none.spans, none.slip_rate) == (0, None)
    assert [one.threshold for one in WhatIfs(log).judged_spans()] == sorted(
        {curve.of(one.confidence) for one in spans}
    )


# ---------------------------------------------------------------- what is asked


@pytest.mark.parametrize("release", ["always", "certified", "never"])
@pytest.mark.parametrize("clearance", [Clearance(), Clearance(0.8)], ids=["closed", "open"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"threshold": 0.9},
        {"threshold": 0.7, "anchor_bytes": 99},
        {"max_unverified_bytes": 50, "max_unverified_tokens": 7},
        {"doubt_bytes": 0, "max_repairs": 5, "takeover_tokens": 1},
    ],
)
def test_changes_mean_what_the_same_options_mean_to_a_generation(release, clearance, options) -> None:
    def resolve(**given) -> StageConfigs:
        params = parameters(None, {"mode": "streaming", "release": release, **given})
        facts = TargetFacts("x", "exact", 4096, True, 0.0)
        return resolve_stages(facts, CostCurve(), params, 10, (0,), True, clearance)[0]

    recorded = headed(log_of("slips"), stages=resolve(threshold=0.6))
    assert changed(recorded, Changes(**options)) == resolve(**{"threshold": 0.6, **options})


def test_below_a_threshold_that_a_certificate_was_asked_for_the_log_says_nothing() -> None:
    stages = log_of("slips").header.stages
    gate = replace(stages.gate, release="certified", certified=True, floor=0.9, threshold=0.9)
    log = headed(log_of("slips"), stages=replace(stages, gate=gate))
    with pytest.raises(MisuseError, match=r"at least 0\.9"):
        changed(log, Changes(threshold=0.5))


def test_a_strict_log_has_nothing_to_vary() -> None:
    assert what_if(log_of("lookup")).as_recorded
    with pytest.raises(MisuseError, match="strict mode"):
        what_if(log_of("lookup"), Changes(threshold=0.5))


@pytest.mark.parametrize("changes", [Changes(threshold=1.5), Changes(anchor_bytes=0), Changes(epsilon=2.0)])
def test_changes_that_cannot_be_are_refused(changes) -> None:
    with pytest.raises(MisuseError):
        what_if(log_of("slips"), changes)


@pytest.mark.parametrize(("header", "words"), [({"redacted": True}, "redacted"), ({"first": 7}, "begins with")])
def test_logs_that_hold_too_little_are_refused(header, words) -> None:
    with pytest.raises(LogError, match=words):
        what_if(headed(log_of("slips"), **header))


def test_a_log_that_does_not_replay_tells_nothing() -> None:
    log = log_of("slips")
    stages = log.header.stages
    other = headed(log, stages=replace(stages, cascade=replace(stages.cascade, max_new_tokens=3)))
    with pytest.raises(LogError, match="does not replay"):
        what_if(other)
    missing = Log(log.header, [*log.entries[:20], *log.entries[21:]], None)
    with pytest.raises(LogError):
        what_if(missing)
