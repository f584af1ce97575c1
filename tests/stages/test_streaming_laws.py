"""Streaming mode, whole generations of pure stages in any order of messages, whatever the drafter says.

What the client sees keeps the promises of its kind: append-only with every slip found, or revisable and in the
end exactly the target's own output. The slips that the engine counts are those of an independent audit, which
asks the target about each token of the output, given the tokens before it.
"""

import random
import zlib

from client_view import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from stage_driver import Driver, Output, plain
from stage_world import (
    CURVES,
    KINDS,
    PROMPT,
    VOCABULARY,
    ShakyTarget,
    SpiedTarget,
    cascades,
    configs,
    hashed,
    scripts,
    truth,
)

from grimboost import messages as m
from grimboost.adapters.script_drafter import ScriptDrafter
from grimboost.stages.configuration import (
    CascadeConfig,
    DrafterConfig,
    GateConfig,
    RevealerConfig,
    StageConfigs,
    TrustConfig,
)

OFTEN = ("true", "broken", "own noise", "always wrong", "broken", "cut anywhere") * 3


def streaming(
    made: StageConfigs, *, stands: bool, gate: GateConfig, trust: TrustConfig, open_end: bool, request_bytes: int
):
    return replace(
        made,
        cascade=replace(made.cascade, streaming=True, shown_stands=stands, open_end=open_end, trust=trust),
        verifier=replace(made.verifier, streaming=True, shown_stands=stands),
        drafter=DrafterConfig(
            max_ahead_bytes=made.drafter.max_ahead_bytes,
            minimum_request_bytes=made.drafter.minimum_request_bytes,
            request_bytes=request_bytes,
            running_on=True,
        ),
        gate=gate,
        revealer=RevealerConfig(streaming=True, revisable=not stands),
    )


long_cascades = st.builds(
    CascadeConfig,
    context_limit=st.just(64),
    max_new_tokens=st.integers(15, 40),
    max_new_bytes=st.sampled_from([None, None, 30, 41]),
    stop=st.sampled_from([(), (), (b"ab!",), (b"bab", b" ha ha")]),
    end_ids=st.sampled_from([(0,), (0,), ()]),
)
gates = st.builds(
    GateConfig,
    mode=st.just("streaming"),
    release=st.sampled_from(["always"] * 6 + ["certified", "certified", "never"]),
    certified=st.booleans(),
    threshold=st.sampled_from([0.0, 0.0, 0.5, 0.95]),
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


class Case:
    """One drawn generation; `run` it and look."""

    def __init__(self, draw, stands):
        self.next_token = hashed(draw(st.integers(0, 200)), draw(st.sampled_from([1000, 1000, 20, 3])))
        self.cascade = draw(st.sampled_from([long_cascades] * 6 + [cascades]).flatmap(lambda kind: kind))
        self.gate = draw(gates)
        kind, place = draw(st.sampled_from([*OFTEN, *KINDS])), draw(st.integers(0, 20))
        script = scripts(truth(self.next_token), kind, place)
        self.drafter = ScriptDrafter(
            script, draw(st.sampled_from([0.99, 0.9, 0.3])), draw(st.sampled_from([True, True, False]))
        )
        rows, credit = draw(st.sampled_from([16, 5, 2, 1])), draw(st.sampled_from([60, 60, 60, 40, 40, 25, 9, 1]))
        made = configs(self.cascade, draw(st.sampled_from(CURVES)), rows, credit)
        self.open_end = stands and draw(st.sampled_from([False, False, True]))
        self.made = streaming(
            made,
            stands=stands,
            gate=self.gate,
            trust=draw(trusts),
            open_end=self.open_end,
            request_bytes=draw(st.sampled_from([9, 20, 60])),
        )
        self.order = random.Random(draw(st.integers(0, 2**32)))
        steps = st.dictionaries(st.integers(0, 200), st.sampled_from([None, 0.0, 0.95]), max_size=3)
        self.certified = draw(steps) if self.gate.release == "certified" else {}
        self.verdicts = 0

    def run(self, cancel_after=None, target=None, gate_rule=None):
        target = target or SpiedTarget(VOCABULARY, self.next_token, context_limit=self.cascade.context_limit)
        self.driver = Driver(self.made, target, self.drafter, PROMPT, order=self.order, gate_rule=gate_rule)
        self.driver.on_verdict = self._count
        self.done = self.driver.run(cancel_after, self.certified)
        self.client = Client()
        for event in self.driver.events:
            self.client.read(event)
        return self.done

    def _count(self, verdict):
        self.verdicts += 1

    def __repr__(self):
        known = {name: value for name, value in vars(self).items() if name not in {"driver", "client", "order"}}
        shown = getattr(self, "client", None)
        return f"Case({known}, shows {shown.text if shown else None!r})"

    @property
    def expected(self) -> Output:
        return plain(self.cascade, PROMPT, self.next_token, VOCABULARY.data)

    def offline_slips(self, audited: int) -> list[int]:
        """Places in the output at which the target, asked about each token by itself, says another one."""
        path = [*PROMPT, *self.done.ids]
        start = len(PROMPT)
        return [place for place in range(audited) if self.next_token(path[: start + place]) != path[start + place]]

    def check(self):
        done, driver, client = self.done, self.driver, self.client
        assert sum(isinstance(one, m.Done) for one in driver.events) == 1 and driver.events[-1] is done
        assert driver.target.open_slots == 0
        assert driver.replayed()
        assert self.unverified() <= self.gate.max_unverified_bytes
        assert len(client.text) == done.length == done.counts.new_bytes
        assert client.slips == list(done.counts.slips)
        assert len(done.ids) <= self.cascade.max_new_tokens
        if self.cascade.max_new_bytes is not None:
            assert len(client.text) <= self.cascade.max_new_bytes
        self.check_epochs()
        counts = done.counts
        assert len(counts.slips) <= counts.audited_tokens <= counts.released_tokens
        if self.made.cascade.shown_stands:
            assert bool(counts.released_tokens) == bool(counts.released_bytes)
        unchecked = len(client.text) - client.committed
        assert not unchecked or self.open_end
        # a verdict is one pass and commits at least one token: never more passes than tokens
        tokens = sum(len(one.tokens) for one in self.committed())
        assert done.counts.target_passes <= tokens + 1
        if self.gate.release == "never":
            assert done.counts.released_bytes == 0

    def check_epochs(self):
        """Nothing older than the current epoch has effect."""
        epoch = 0
        for entry in self.driver.log:
            if entry.stage == "cascade":
                if isinstance(entry.message, m.Release | m.Verdict) and entry.message.epoch != epoch:
                    assert entry.answers == ()
                epoch = max([epoch, *(one.epoch for one in entry.answers if isinstance(one, m.Invalidated))])

    def unverified(self):
        """Most bytes that were ever shown beyond the committed frontier."""
        frontier = most = 0
        for answer in (answer for entry in self.driver.log for answer in entry.answers):
            match answer:
                case m.Committed():
                    frontier = answer.frontier
                case m.Reveal(reveal_to=reveal_to) | m.Commit(reveal_to=reveal_to, finish=None):
                    most = max(most, reveal_to - frontier)
        return most

    def committed(self):
        return [answer for entry in self.driver.log for answer in entry.answers if isinstance(answer, m.Committed)]


@st.composite
def cases(draw, stands):
    return Case(draw, stands)


@settings(deadline=None, max_examples=300)
@given(cases(stands=False))
def test_a_client_that_can_take_back_ends_with_exactly_the_targets_own_output(case):
    done = case.run()
    expected = case.expected
    assert (done.ids, case.client.text, done.reason) == (expected.ids, expected.data, expected.finish)
    case.check()
    retracted = sum(isinstance(event, m.Retracted) for event in case.driver.events)
    assert bool(done.counts.retracted_bytes) == bool(retracted)


@settings(deadline=None, max_examples=400)
@given(cases(stands=True))
def test_appended_bytes_stand_and_the_slips_are_those_of_an_independent_audit(case):
    done = case.run()
    case.check()
    spelled = b"".join(VOCABULARY.data(id) for id in done.ids if id not in case.cascade.end_ids)
    assert case.client.text.startswith(spelled)
    if case.client.text != spelled:  # the head of a token in which a stop string began
        assert done.reason is m.FinishReason.STOP
    if not case.open_end:
        positions = [slip.position for slip in done.counts.slips]
        cut = positions[-1:] == [len(done.ids)] and case.client.text != spelled
        assert (positions[:-1] if cut else positions) == case.offline_slips(len(done.ids))
        assert done.counts.audited_tokens == done.counts.kept_tokens
    if not done.counts.slips and not case.open_end:
        assert (done.ids, case.client.text) == (case.expected.ids, case.expected.data)
    for stop in case.cascade.stop:
        assert stop not in case.client.text


@settings(deadline=None, max_examples=120)
@given(st.booleans().flatmap(lambda stands: cases(stands)), st.integers(0, 120))
def test_a_cancelled_generation_keeps_what_its_client_cannot_take_back(case, step):
    done = case.run(cancel_after=step)
    if done.reason is not m.FinishReason.CANCELLED:
        return
    assert len(case.client.text) == done.length
    assert case.driver.replayed() and case.driver.target.open_slots == 0
    spelled, expected = VOCABULARY.join(done.ids), case.expected
    if case.made.cascade.shown_stands:  # the head of a token may have been shown
        assert case.client.text.startswith(spelled)
        assert done.counts.audited_tokens <= done.counts.kept_tokens
        return
    assert case.client.text == spelled
    assert expected.ids == done.ids[: len(expected.ids)] or expected.ids[: len(done.ids)] == done.ids


@settings(deadline=None, max_examples=150)
@given(st.booleans().flatmap(lambda stands: cases(stands)))
def test_near_ties_of_a_target_that_is_not_row_invariant_are_settled_for_audits_too(case):
    case.made = replace(
        case.made,
        verifier=replace(case.made.verifier, row_invariant=False, tie_bound=ShakyTarget.BOUND),
        cascade=replace(case.made.cascade, open_end=False),
    )
    done = case.run(target=ShakyTarget(case.next_token, case.cascade.context_limit))
    positions = [slip.position for slip in done.counts.slips if slip.position < len(done.ids)]
    if case.made.cascade.shown_stands:
        assert positions == case.offline_slips(len(done.ids))
    else:
        assert (done.ids, case.client.text) == (case.expected.ids, case.expected.data)


# ---------------------------------------------------------------- with a rule in the gate


class Whim:
    """Holds about one span in `share`, by what it is told alone; and remembers what it was told."""

    name = "whim"

    def __init__(self, share):
        self.share = share
        self.asked = []

    def hold(self, offset, span, confidence, tail):
        number = zlib.crc32(b"%d %d %.3f" % (offset, span.id, confidence) + tail)
        held = number % self.share == 0
        if number % 7 == 3 and self.share < 1000:
            raise RuntimeError("no answer")
        self.asked.append((offset, span.data, tail, held))
        return f"about {number % 5}" if held else None


@settings(deadline=None, max_examples=200)
@given(st.booleans().flatmap(lambda stands: cases(stands)), st.sampled_from([2, 3, 6]))
def test_a_rule_changes_what_is_shown_unchecked_and_no_promise(case, share):
    done = case.run(gate_rule=Whim(share))
    case.check()
    if not case.made.cascade.shown_stands:
        assert (done.ids, case.client.text) == (case.expected.ids, case.expected.data)
    elif not case.open_end:
        positions = [slip.position for slip in done.counts.slips if slip.position < len(done.ids)]
        assert positions == case.offline_slips(len(done.ids))


@settings(deadline=None, max_examples=200)
@given(cases(stands=True), st.sampled_from([3, 10**9]))
def test_a_rule_is_told_of_each_span_that_is_shown_and_of_the_output_before_it(case, share):
    """Shown bytes stand here, so that what stood before a span is what the output has there.

    Releases that a verdict overtook on their way may be the rest of a draft that it contradicted.
    """
    rule = Whim(share)
    case.run(gate_rule=rule)
    text, frontiers, known = case.client.text, {"gate": 0, "cascade": 0}, {}
    for entry in case.driver.log:
        if entry.stage == "gate" and isinstance(entry.message, m.Committed):
            frontiers["gate"] = entry.message.frontier
        known |= {id(one): frontiers["gate"] for one in entry.answers if isinstance(one, m.Release)}
        shown = [one for one in entry.answers if isinstance(one, m.Reveal)]
        if shown and isinstance(entry.message, m.Release) and known[id(entry.message)] == frontiers["cascade"]:
            at = entry.message.offset
            for span in entry.message.spans:
                if shown[0].offset <= at and at + len(span.data) <= shown[0].reveal_to:
                    assert (at, span.data, text[:at], False) in rule.asked
                at += len(span.data)
        for one in entry.answers:
            if isinstance(one, m.Committed):
                frontiers["cascade"] = one.frontier


@settings(deadline=None, max_examples=100)
@given(st.booleans().flatmap(lambda stands: cases(stands)))
def test_what_a_rule_holds_is_no_evidence_and_is_not_shown(case):
    case.run(gate_rule=Whim(1))
    assert case.driver.audited == []
    assert case.done.counts.released_bytes == 0
