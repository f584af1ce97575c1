"""Five fresh stages, a target and a drafter, run synchronously in an order that the test chooses.

Messages travel by the wiring's table. A mailbox delivers control before data and keeps each lane's order; which
mailbox or worker is next, and when patience ends, is drawn from `random`. Beside it stands the slow oracle:
plain sequential decoding, cut byte by byte. It knows no event loop.
"""

import random
from collections.abc import Callable, Sequence

from msgspec import Struct

from grimboost import messages as m
from grimboost import wiring as w
from grimboost.adapters.drafter import Drafter
from grimboost.adapters.segmentation import LongestMatchSegmenter
from grimboost.adapters.target import Target
from grimboost.draft_service import DraftService
from grimboost.message_lanes import Lanes
from grimboost.replaying import fresh_stages
from grimboost.stages.configuration import CascadeConfig, StageConfigs
from grimboost.stages.gate_rule import GateRule
from grimboost.stages.sampling_rule import SamplingRule
from grimboost.target_service import TargetService
from grimboost.worker import Job, Lease

STEPS = 20_000
TIME = "time"


class Output(Struct, frozen=True):
    """What a generation comes to."""

    ids: tuple[int, ...]
    data: bytes
    finish: m.FinishReason


def cut_slowly(config: CascadeConfig, prompt_tokens: int, tokens: Sequence[m.PathToken]) -> Output | None:
    """The stop rules read byte by byte over the whole token list; None if nothing ends it."""
    budget = min(config.max_new_tokens, config.context_limit - prompt_tokens)
    limit = float("inf") if config.max_new_bytes is None else config.max_new_bytes
    if budget <= 0 or limit == 0:
        return Output((), b"", m.FinishReason.LENGTH)
    for count, token in enumerate(tokens, 1):
        whole = tokens[:count]
        ids = tuple(one.id for one in whole)
        text = b"".join(one.data for one in whole)
        before = len(text) - len(token.data)
        if token.id in config.end_ids:
            return Output(ids, text[:before], m.FinishReason.STOP)
        for end in range(before + 1, len(text) + 1):
            starts = [end - len(stop) for stop in config.stop if text[:end].endswith(stop)]
            if starts and min(starts) <= limit:
                return Output(_whole_before(whole, min(starts)), text[: min(starts)], m.FinishReason.STOP)
            if starts:
                break
        if len(text) > limit:
            return Output(ids[:-1], text[:before], m.FinishReason.LENGTH)
        if count == budget or len(text) == limit:
            return Output(ids, text, m.FinishReason.LENGTH)
    return None


def _whole_before(tokens: Sequence[m.PathToken], cut: int) -> tuple[int, ...]:
    ends = [len(b"".join(token.data for token in tokens[: place + 1])) for place in range(len(tokens))]
    return tuple(token.id for token, end in zip(tokens, ends, strict=True) if end <= cut)


def plain(
    config: CascadeConfig,
    prompt: Sequence[int],
    next_token: Callable[[Sequence[int]], int],
    data: Callable[[int], bytes],
) -> Output:
    """Sequential decoding, one token at a time, until the slow cut says that it is over."""
    path = list(prompt)
    while True:
        tokens = [m.PathToken(id, data(id)) for id in path[len(prompt) :]]
        output = cut_slowly(config, len(prompt), tokens)
        if output is not None:
            return output
        path.append(next_token(path))


class LogEntry(Struct, frozen=True):
    """One input of one stage and what it answered."""

    stage: str
    message: m.Message
    answers: tuple[m.Message, ...]


class Driver:
    """One generation. `weights` make some actors slow for the whole run; without `random` it is fair and fixed."""

    def __init__(
        self,
        configs: StageConfigs,
        target: Target,
        drafter: Drafter,
        prompt: Sequence[int],
        rule: SamplingRule | None = None,
        order: random.Random | None = None,
        gate_rule: GateRule | None = None,
    ) -> None:
        self.configs, self.rule, self.gate_rule = configs, rule or SamplingRule(), gate_rule
        self.stages = fresh_stages(configs, self.rule, gate_rule)
        self.target = target
        self.prompt = tuple(prompt)
        self.path: list[int] = list(prompt)  # prompt and what the cascade said is committed
        self.events: list[m.Message] = []
        self.log: list[LogEntry] = []
        self.released: m.Released | None = None
        self.audited: list[m.JudgedSpan] = []
        self._lanes = {name: Lanes() for name in (*w.STAGES, w.TARGET_WORKER, w.DRAFTER_WORKER)}
        self._routes = {name: w.routes(name) for name in w.STAGES}
        self._order = order
        names = [*self._lanes, TIME]
        self._weights = {name: 1.0 if order is None else order.choice([0.02, 1.0, 1.0, 5.0]) for name in names}
        self._target_service = TargetService(target)
        self._draft_service = DraftService(drafter, LongestMatchSegmenter(target.vocabulary))
        self._target_lease = Lease(1, lambda message: self._lanes[w.VERIFIER].put(w.TARGET_WORKER, message, False))
        self._drafter_lease = Lease(
            1, lambda message: self._lanes[w.DRAFTER].put(w.DRAFTER_WORKER, message, False)
        )
        self.on_pass: Callable[[m.PassRequested], None] = lambda request: None
        self.on_verdict: Callable[[m.Verdict], None] = lambda verdict: None

    def run(self, cancel_after: int | None = None, certified: dict[int, float | None] | None = None) -> m.Done:
        """Deliver until nothing is left. Fails if that takes too long, or if anyone is still waiting.

        `certified`: step -> what the engine tells the gate then.
        """
        started = m.Started(self.prompt, self.target.vocabulary.join(self.prompt))
        for edge in w.routes(w.ENGINE)[m.Started]:
            self._lanes[edge.receiver].put(w.ENGINE, started, False)
        for step in range(STEPS):
            if step == cancel_after:
                self._lanes[w.CASCADE].put(w.ENGINE, m.CancelRequested(), False)
            if certified and step in certified:
                self._lanes[w.GATE].put(w.ENGINE, m.Certified(certified[step]), False)
            ready = self._ready()
            if not ready:
                break
            self._step(self._pick(ready))
        else:
            raise AssertionError("no end in sight")
        assert all(stage.done for stage in self.stages.values()), "a stage still waits, for nothing"
        done = self.events[-1]
        assert isinstance(done, m.Done)
        return done

    @property
    def streamed(self) -> bytes:
        """The chunks' bytes; each begins where the one before ended."""
        data = b""
        for event in self.events:
            if isinstance(event, m.Chunk):
                assert event.offset == len(data) and event.data
                data += event.data
        return data

    def replayed(self) -> bool:
        """Whether fresh stages answer the log's inputs as logged."""
        stages = fresh_stages(self.configs, self.rule, self.gate_rule)
        return all(tuple(stages[entry.stage].receive(entry.message)) == entry.answers for entry in self.log)

    # ------------------------------------------------------------ one delivery

    def _ready(self) -> list[str]:
        names = [name for name, lanes in self._lanes.items() if lanes]
        verifier = self.stages[w.VERIFIER]
        if not verifier.done and verifier.patience is not None and not self._lanes[w.VERIFIER]:
            names.append(TIME)
        return names

    def _pick(self, ready: list[str]) -> str:
        if self._order is None:
            return ready[0]
        return self._order.choices(ready, [self._weights[name] for name in ready])[0]

    def _step(self, name: str) -> None:
        if name == w.TARGET_WORKER:
            self._work_target()
        elif name == w.DRAFTER_WORKER:
            self._answer(self._draft_service, [Job(self._drafter_lease, self._lanes[name].take())])
        elif name == TIME:
            self._deliver(w.VERIFIER, m.Elapsed())
        else:
            message = self._lanes[name].take()
            if not self.stages[name].done:  # the mailbox of an ended actor is closed and drops
                self._deliver(name, message)

    def _work_target(self) -> None:
        lanes = self._lanes[w.TARGET_WORKER]
        jobs = []
        while lanes:  # everything that waits is one batch
            request = lanes.take()
            if isinstance(request, m.PassRequested):
                self.on_pass(request)
            jobs.append(Job(self._target_lease, request))
        self._answer(self._target_service, jobs)

    def _answer(self, service: TargetService | DraftService, jobs: list[Job]) -> None:
        for lease, answer in service.handle(jobs):
            if isinstance(answer, m.Released):
                self.released = answer
            lease.deliver(answer)

    def _deliver(self, name: str, message: m.Message) -> None:
        answers = self.stages[name].receive(message)
        self.log.append(LogEntry(name, message, tuple(answers)))
        for answer in answers:
            if isinstance(answer, m.Verdict):
                self.on_verdict(answer)
            if name == w.CASCADE and isinstance(answer, m.Committed):
                self.path.extend(token.id for token in answer.tokens)
            for edge in self._routes[name][type(answer)]:
                if edge.receiver == w.CLIENT:
                    self.events.append(answer)
                elif edge.receiver == w.ENGINE:
                    self.audited.extend(answer.spans)
                else:
                    self._lanes[edge.receiver].put(name, answer, edge.blocks)
