"""What-if, the library: a run under another configuration, as far as a log can tell, is the run that would be."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from stage_driver import Driver
from stage_world import PROMPT, VOCABULARY, SpiedTarget, configs, hashed, scripts, truth
from stages.test_streaming_laws import streaming
from timed_driver import TimedDriver, untimed

from grimboost import messages as m
from grimboost.adapters.script_drafter import ScriptDrafter
from grimboost.counterfactual import Counterfactual, Step
from grimboost.log import Log
from grimboost.stages.configuration import CascadeConfig, CostCurve, GateConfig, StageConfigs, TrustConfig

LOGS = sorted((Path(__file__).parent / "logs").glob("*.grimlog"))
CURVES = (
    CostCurve(),
    CostCurve((1, 2, 4, 8, 16), (1.0, 1.25, 1.5, 2.5, 5.0)),
    CostCurve((1, 2, 4), (1.0, 2.0, 4.0)),
)


class World:
    """A target, a drafter and a configuration that were drawn; `record` runs it with some values changed."""

    def __init__(self, draw) -> None:
        self.next_token = hashed(draw(st.integers(0, 200)), draw(st.sampled_from([1000, 1000, 20])))
        kind = draw(st.sampled_from(["true", "broken", "own noise", "broken", "cut anywhere", "fails", "true"]))
        script = scripts(truth(self.next_token), kind, draw(st.integers(0, 20)))
        steps = draw(st.sampled_from([(0.9,), (0.9, 0.6), (0.95, 0.3, 0.6), (0.5, 0.8, 0.7, 0.99)]))
        self.script, self.steps, self.whole = script, steps, draw(st.booleans())
        cascade = CascadeConfig(
            context_limit=64,
            max_new_tokens=draw(st.integers(10, 45)),
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
        self.draft_seconds = draw(st.sampled_from([2.0**-9, 2.0**-7, 2.0**-5, 2.0**-3]))

    def drafter(self) -> ScriptDrafter:
        return SteppedDrafter(self.script, self.steps, self.whole)

    def target(self) -> SpiedTarget:
        return SpiedTarget(VOCABULARY, self.next_token, context_limit=64)

    def run(self, configs: StageConfigs) -> TimedDriver:
        driver = TimedDriver(configs, self.target(), self.drafter(), PROMPT, draft_seconds=self.draft_seconds)
        driver.run()
        return driver

    def __repr__(self) -> str:
        return f"World({vars(self)})"


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
        from grimboost.adapters.drafter import Proposal

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
    threshold=st.sampled_from([0.0, 0.5, 0.75, 0.95]),
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
    """A world, and another configuration for it."""
    world = World(draw)
    gate, trust = world.configs.gate, world.configs.cascade.trust
    other_gate, other_trust = draw(gates), draw(trusts)
    if draw(st.sampled_from([True, True, False])):
        gate = replace(gate, threshold=other_gate.threshold)
    if draw(st.booleans()):
        caps = {name: getattr(other_gate, name) for name in ("max_unverified_bytes", "max_unverified_tokens")}
        gate = replace(gate, anchor_bytes=other_gate.anchor_bytes, **caps)
    if draw(st.booleans()):
        trust = other_trust
    cascade = replace(world.configs.cascade, trust=trust)
    return world, replace(world.configs, gate=gate, cascade=cascade)


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


@settings(deadline=None, max_examples=500)
@given(pairs())
def test_another_configuration_is_answered_as_a_rerun_shows(pair) -> None:
    world, other = pair
    log = world.run(world.configs).recorded()
    run = Counterfactual(log, other).run()
    assert_is_beginning_of(run, world.run(other))


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
