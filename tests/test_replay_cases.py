"""Cases of logs and replay: generations that take turns in another order, live and when they are replayed (H2)."""

import itertools
from pathlib import Path

import anyio
import pytest
from scripted import TEXTS, Gate, Target, both_loops, collect, make_engine, oracle, prompt, reached, run

from grimboost import messages as m
from grimboost.adapters.drafter import Drafter
from grimboost.lineage import Lineage
from grimboost.log import Log, LogEntry
from grimboost.replaying import fresh_stages, replay
from grimboost.wiring import CLIENT

A, B, CANCELLED = 0, 1, 2


async def live(order: tuple[int, int], folder: Path, drafter: Drafter | str | None = None) -> list[Log]:
    """Logs of A, B and one that is cancelled between them; a worker that is held serves them in `order`."""
    target, gate = Target(), Gate()
    target.on_step = gate
    paths = [folder / f"{which}.grimlog" for which in (A, B, CANCELLED)]
    async with make_engine(target, drafter) as engine, anyio.create_task_group() as tasks:
        first, second = (engine.generate(prompt(which), record=paths[which]) for which in order)
        tasks.start_soon(collect, first)
        await reached(gate.begun)  # its first pass is under way, and everything else waits behind it
        async with engine.generate(prompt(CANCELLED), record=paths[CANCELLED]) as between:
            await anyio.lowlevel.checkpoint()
            between.cancel()
            tasks.start_soon(collect, second)
            await anyio.lowlevel.checkpoint()
            gate.go.set()
    return [Log.open(path) for path in paths]


def by_name(log: Log) -> dict[str, m.Message]:
    """Each input under its name by lineage, without what may differ: times, and who shared a pass."""
    lineage, found = Lineage(), {}
    for entry in log:
        lineage.feed(entry)
        message = entry.message
        if isinstance(message, m.PassReturned):
            message = m.PassReturned(message.number, message.choices, message.length)
        found[lineage.names[entry.sequence]] = message
    return found


@both_loops
@pytest.mark.parametrize("drafting", [False, True])
def test_h2_logs_of_generations_that_ran_together_replay_in_any_order(
    backend: str, drafting: bool, tmp_path: Path
) -> None:
    for order in ((A, B), (B, A)):
        drafter = oracle(longest=12, broken_at=9) if drafting else None
        logs = run(lambda order=order, drafter=drafter: live(order, tmp_path, drafter), backend)
        for turn in itertools.permutations(logs):
            assert [replay(log) for log in turn] == [None, None, None]
        assert interleaved(logs) == interleaved(logs[::-1])


def interleaved(logs: list[Log]) -> set[tuple[int, str]]:
    """Replay all logs at once, an entry of each in turn; the wrong answers, which should be none."""
    stages = [fresh_stages(log.header.stages, log.header.rule) for log in logs]
    wrong = set()
    for entries in itertools.zip_longest(*logs):
        for own, entry in zip(stages, entries, strict=True):
            if isinstance(entry, LogEntry) and entry.stage != CLIENT:
                answers = tuple(own[entry.stage].receive(entry.message))
                wrong |= {(entry.sequence, entry.stage)} if answers != entry.answers else set()
    assert not wrong
    return wrong


def test_h2_names_derive_from_lineage_and_not_from_the_order_of_the_run(tmp_path: Path) -> None:
    """The worker serves A before B and then B before A; each message has the same name in both runs."""
    one = run(lambda: live((A, B), tmp_path))
    other = run(lambda: live((B, A), tmp_path))
    for which in (A, B):
        assert by_name(one[which]) == by_name(other[which])
        assert len(by_name(one[which])) == len(one[which].entries) > 50
    assert [log.entries[-1].seconds for log in one] != [log.entries[-1].seconds for log in other]


def test_h2_what_the_cancelled_one_committed_is_in_its_log_and_nothing_more(tmp_path: Path) -> None:
    log = run(lambda: live((A, B), tmp_path))[CANCELLED]
    assert replay(log) is None
    [done] = [answer for entry in log for answer in entry.answers if isinstance(answer, m.Done)]
    assert (done.reason, done.length) == ("cancelled", 0)
    assert TEXTS[CANCELLED] not in b"".join(
        answer.data for entry in log for answer in entry.answers if isinstance(answer, m.Chunk)
    )


def test_h2_two_deliveries_of_one_mailbox_in_the_wrong_order_are_found_at_their_place(tmp_path: Path) -> None:
    log = run(lambda: live((A, B), tmp_path, oracle(longest=12)))[A]
    swapped = 0
    for stage in ("drafter", "gate", "verifier", "cascade", "revealer"):
        places = [place for place, entry in enumerate(log.entries) if entry.stage == stage]
        for first, second in itertools.pairwise(places):
            entries = log.entries.copy()
            if entries[first].message == entries[second].message:
                continue
            entries[first], entries[second] = entries[second], entries[first]
            difference = replay(Log(log.header, entries, None))
            if difference is None:  # two lanes of one mailbox: which is looked into first is the shell's choice
                continue
            swapped += 1
            assert difference.entry.sequence >= log.entries[first].sequence
    assert swapped > 50
