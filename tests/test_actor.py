"""The shell around a stage: whatever way it ends, its mailbox is closed and nobody waits for it."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from scripted import both_loops, run

from grimboost import messages as m
from grimboost.actor import BATCH, Actor
from grimboost.mailbox import Mailbox, MailboxClosed
from grimboost.wiring import CASCADE, CLIENT, DRAFTER, GATE, REVEALER, VERIFIER, routes

DRAFT = m.Draft(0, 0, 0, ())
SPANS = m.Spans(0, 0, 0, ())
FINISHED = m.Finished(1, m.FinishReason.STOP)


class Stage:
    """Answers by a function; ends after `FINISHED`."""

    def __init__(
        self, answer: Callable[[m.Message], list[m.Message]] = lambda _: [], patience: float | None = None
    ) -> None:
        self.answer, self.patience, self.done = answer, patience, False
        self.got: list[m.Message] = []

    def receive(self, message: m.Message) -> list[m.Message]:
        self.got.append(message)
        self.done = message == FINISHED
        return self.answer(message)


class Shell:
    """One actor named `name` with real mailboxes around it and a note of what was recorded."""

    def __init__(self, stage: Any, name: str = GATE, capacity: int = 4) -> None:
        self.mailbox: Mailbox[Any] = Mailbox(capacity)
        receivers = {edge.receiver for edges in routes(name).values() for edge in edges}
        self.outlets: dict[str, Mailbox[Any]] = {receiver: Mailbox(capacity) for receiver in receivers}
        self.recorded: list[tuple[str, m.Message, list[m.Message]]] = []
        self.actor = Actor(name, stage, self.mailbox, self.outlets, self.record)

    def record(self, name: str, message: m.Message, answers: list[m.Message]) -> None:
        self.recorded.append((name, message, list(answers)))

    async def assert_closed(self) -> None:
        with pytest.raises(MailboxClosed):
            await self.mailbox.send(DRAFT)


def failing_on(trigger: m.Message) -> Callable[[m.Message], list[m.Message]]:
    def answer(message: m.Message) -> list[m.Message]:
        if message == trigger:
            raise RuntimeError("broken stage")
        return [SPANS]

    return answer


@both_loops
@pytest.mark.parametrize(
    ("script", "trigger", "recorded"),
    [
        ([DRAFT], DRAFT, 0),  # at its first message
        ([m.Committed(0, 0, (), 1), DRAFT, DRAFT], DRAFT, 1),  # in the middle
        ([DRAFT, FINISHED], FINISHED, 1),  # while stopping
    ],
)
def test_a_stage_that_fails_ends_its_actor_and_closes_the_mailbox(
    backend: str, script: list[m.Message], trigger: m.Message, recorded: int
) -> None:
    async def main() -> None:
        shell = Shell(Stage(failing_on(trigger)))
        for message in script:
            shell.mailbox.post_nowait(message)
        with pytest.raises(RuntimeError, match="broken stage"):
            await shell.actor.run()
        await shell.assert_closed()
        assert len(shell.recorded) == recorded + 1
        assert shell.recorded[-1] == ("gate", trigger, [])  # what broke the stage can be replayed

    run(main, backend)


@both_loops
@pytest.mark.parametrize("attribute", ["done", "patience"])
def test_a_stage_that_fails_before_any_message_closes_the_mailbox(backend: str, attribute: str) -> None:
    class Broken(Stage):
        def __getattribute__(self, name: str) -> Any:
            if name == attribute:
                raise RuntimeError("broken at start")
            return super().__getattribute__(name)

    async def main() -> None:
        shell = Shell(Broken())
        with pytest.raises(RuntimeError, match="broken at start"):
            await shell.actor.run()
        await shell.assert_closed()

    run(main, backend)


@both_loops
def test_a_record_callback_that_fails_ends_the_actor_and_closes_the_mailbox(backend: str) -> None:
    async def main() -> None:
        shell = Shell(Stage(lambda _: [SPANS]))

        def record(*_: object) -> None:
            raise RuntimeError("no record")

        actor = Actor(GATE, Stage(lambda _: [SPANS]), shell.mailbox, shell.outlets, record)
        shell.mailbox.post_nowait(DRAFT)
        with pytest.raises(RuntimeError, match="no record"):
            await actor.run()
        await shell.assert_closed()
        assert shell.outlets[VERIFIER].receive_nowait() is None  # what is not recorded is not sent

    run(main, backend)


@both_loops
def test_a_stage_that_is_done_closes_the_mailbox(backend: str) -> None:
    async def main() -> None:
        shell = Shell(Stage())
        shell.mailbox.post_nowait(FINISHED)
        await shell.actor.run()
        await shell.assert_closed()

    run(main, backend)


@both_loops
@pytest.mark.parametrize("blocked", ["receiving", "sending"])
def test_a_cancelled_actor_closes_the_mailbox(backend: str, blocked: str) -> None:
    async def main() -> None:
        shell = Shell(Stage(lambda _: [SPANS]), capacity=1)
        if blocked == "sending":
            shell.mailbox.post_nowait(DRAFT)
            shell.mailbox.post_nowait(DRAFT)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shell.actor.run)
            await anyio.wait_all_tasks_blocked()
            assert shell.outlets[VERIFIER].statistics().senders_waiting == (blocked == "sending")
            tasks.cancel_scope.cancel()
        await shell.assert_closed()

    run(main, backend)


@both_loops
def test_elapsed_comes_once_patience_is_over_and_only_then(backend: str) -> None:
    async def main() -> None:
        stage = Stage(patience=0.002)
        shell = Shell(stage, VERIFIER)

        def answer(message: m.Message) -> list[m.Message]:
            if message == m.Elapsed():
                stage.patience = None  # from now on it waits for ever
            return []

        stage.answer = answer
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shell.actor.run)
            while not stage.got:
                await anyio.lowlevel.checkpoint()
            assert stage.got == [m.Elapsed()]
            await anyio.wait_all_tasks_blocked()
            shell.mailbox.post_nowait(m.Opened())
            shell.mailbox.post_nowait(FINISHED)
        assert stage.got == [m.Elapsed(), m.Opened(), FINISHED]

    run(main, backend)


def test_a_message_that_waits_is_no_elapsed_even_with_no_patience_at_all() -> None:
    async def main() -> None:
        stage = Stage(patience=0.0)
        shell = Shell(stage, VERIFIER)
        shell.mailbox.post_nowait(m.Opened())
        shell.mailbox.post_nowait(FINISHED)
        await shell.actor.run()
        assert stage.got == [m.Opened(), FINISHED]

    run(main)


@both_loops
def test_each_input_is_recorded_once_with_its_answers_before_they_are_sent(backend: str) -> None:
    async def main() -> None:
        answers: dict[int, list[m.Message]] = {
            place: [m.Spans(0, 0, place, ())] * (place % 3) for place in range(40)
        }
        shell = Shell(Stage(lambda message: answers[message.offset] if isinstance(message, m.Draft) else []))
        sent = [m.Draft(0, 0, place, ()) for place in range(40)]
        received = []

        async def send() -> None:
            for draft in sent:
                await shell.mailbox.send(draft)
            while shell.mailbox.statistics().data_waiting:
                await anyio.lowlevel.checkpoint()
            shell.mailbox.post_nowait(FINISHED)

        async def receive() -> None:
            for _ in range(sum(map(len, answers.values()))):
                received.append(await shell.outlets[VERIFIER].receive())
                assert any(received[-1] in entry[2] for entry in shell.recorded)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shell.actor.run)
            tasks.start_soon(send)
            tasks.start_soon(receive)
        assert shell.recorded == [
            *((GATE, draft, answers[place]) for place, draft in enumerate(sent)),
            (GATE, FINISHED, []),
        ]
        assert received == [answer for place in range(40) for answer in answers[place]]
        statistics = shell.actor.statistics()
        assert (statistics.received, statistics.sent) == (41, len(received))

    run(main, backend)


def test_control_goes_on_the_control_lane_and_to_every_receiver() -> None:
    async def main() -> None:
        committed = m.Committed(0, 0, (), 1)
        shell = Shell(Stage(lambda _: [committed]), CASCADE, capacity=0)
        shell.mailbox.post_nowait(FINISHED)
        await shell.actor.run()  # capacity 0 and no receiver: it would hang on a data lane
        for receiver in (DRAFTER, GATE, VERIFIER):
            assert shell.outlets[receiver].receive_nowait() == committed
        assert shell.outlets[REVEALER].receive_nowait() is None

    run(main)


def test_a_receiver_that_has_ended_does_not_stop_the_actor() -> None:
    async def main() -> None:
        shell = Shell(Stage(lambda _: [SPANS, SPANS]), capacity=1)
        shell.outlets[VERIFIER].close()
        for message in (DRAFT, DRAFT, FINISHED):
            shell.mailbox.post_nowait(message)
        await shell.actor.run()
        assert shell.actor.statistics().received == 3

    run(main)


def test_a_full_mailbox_does_not_keep_other_tasks_from_their_turn() -> None:
    async def main() -> None:
        stage = Stage()
        shell = Shell(stage)
        turns: list[int] = []

        async def other() -> None:
            while not stage.done:
                turns.append(len(stage.got))
                await anyio.lowlevel.checkpoint()

        for _ in range(10 * BATCH):
            shell.mailbox.post_nowait(DRAFT)
        shell.mailbox.post_nowait(FINISHED)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            tasks.start_soon(shell.actor.run)
        assert max(later - earlier for earlier, later in pairwise(turns)) <= BATCH
        assert len(turns) >= 10

    run(main)


def test_an_answer_without_a_route_is_a_failure_not_silence() -> None:
    async def main() -> None:
        shell = Shell(Stage(lambda _: [m.Opened()]))
        shell.mailbox.post_nowait(DRAFT)
        with pytest.raises(KeyError):
            await shell.actor.run()

    run(main)


def test_the_client_is_an_outlet_of_the_revealer_like_any_other() -> None:
    assert [edge.receiver for edge in routes(REVEALER)[m.Chunk]] == [CLIENT]
