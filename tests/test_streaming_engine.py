"""Streaming mode in the engine: what a client gets, what is learned about a drafter, and when gates close.

The target goes on from whatever was shown, so its own slips can be counted by asking it about each token.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from client_view import Client
from msgspec.structs import fields
from scripted import END, TEXTS, VOCABULARY, assert_clean, both_loops, forgiving, make_engine, oracle, prompt, run

from grimboost import messages as m
from grimboost.adapters.scripted_target import ScriptedTarget
from grimboost.certificate_store import CertificateStore
from grimboost.engine import Engine
from grimboost.errors import CertificateError, MisuseError
from grimboost.generation import Generation
from grimboost.log import Log
from grimboost.parameters import STREAMING_ONLY, Parameters
from grimboost.replaying import replay

ALWAYS: dict[str, Any] = {"mode": "streaming", "release": "always", "threshold": 0.5, "max_new_tokens": 60}
LOOSE: dict[str, Any] = {"mode": "streaming", "epsilon": 0.5, "delta": 0.5, "max_new_tokens": 60}
"""A certificate that a handful of right spans opens, and a few wrong ones close."""


def target() -> ScriptedTarget:
    return ScriptedTarget(VOCABULARY, forgiving())


async def followed(generation: Generation) -> Client:
    """Read to the end, as a client does."""
    client = Client()
    async with generation:
        async for event in generation:
            client.read(event)
    return client


def slips_asked(generation: Generation) -> list[int]:
    """An audit by itself: the target's choice after each prefix of the output, compared with what stands there."""
    ids, start = generation.result.token_ids, list(generation.request.prompt.prompt_ids)
    return [place for place, id in enumerate(ids) if forgiving()([*start, *ids[:place]]) != id]


# ---------------------------------------------------------------- what the client gets


@both_loops
@pytest.mark.parametrize("broken_at", [None, 4, 13, 19])
def test_shown_bytes_stand_and_every_slip_is_counted(backend: str, broken_at: int | None) -> None:
    used = target()

    async def main() -> None:
        async with make_engine(used, oracle(broken_at=broken_at, longest=12)) as engine:
            generation = engine.generate(prompt(), **ALWAYS)
            client = await followed(generation)
            result, figures = generation.result, generation.result.statistics
            assert client.text == result.data == VOCABULARY.join(result.token_ids)
            assert list(figures.slip_positions) == slips_asked(generation)
            assert figures.slip_tokens == len(client.slips)
            assert bool(figures.slip_tokens) == (broken_at is not None)
            assert figures.audited_tokens > 0
            assert 0 < figures.coverage <= 1
            if broken_at is None:
                assert result.data == TEXTS[0]
            totals = engine.statistics().totals
            assert (totals.generations, totals.slip_tokens) in {(0, 0), (1, figures.slip_tokens)}
            assert figures.audited_tokens == figures.released_tokens
            assert figures.certificate is not None
            assert figures.certificate.answers == 1
            assert figures.certificate.released > 0  # drafted spans; output tokens may join several of them
        after = engine.statistics()
        assert after.totals.generations == 1
        for name in ("new_tokens", "new_bytes", "target_rows", "released_bytes", "slip_bytes", "doubt_tokens"):
            assert getattr(after.totals, name) == getattr(figures, name), name
        assert after.totals.coverage == figures.coverage
        assert (after.gap_seconds, after.audit_lag_bytes) == (figures.gap_seconds, figures.audit_lag_bytes)
        assert after.commit_seconds == figures.commit_seconds
        assert after.time_to_first_byte_seconds is not None
        assert after.time_to_first_byte_seconds.max == figures.time_to_first_byte_seconds

    run(main, backend)
    assert_clean(used)


@both_loops
@pytest.mark.parametrize("capacity", [1, 8])
@pytest.mark.parametrize("broken_at", [4, 19])
def test_a_client_that_takes_back_ends_with_the_targets_own_text(
    backend: str, capacity: int, broken_at: int
) -> None:
    used = target()

    async def main() -> None:
        async with make_engine(used, oracle(broken_at=broken_at, longest=12), capacity=capacity) as engine:
            generation = engine.generate(prompt(), on_slip="retract", **ALWAYS)
            client = await followed(generation)
        assert client.text == generation.result.data == TEXTS[0]
        assert generation.result.token_ids[-1] == END
        assert generation.result.statistics.retracted_bytes > 0
        assert generation.result.statistics.retracted_share > 0

    run(main, backend)
    assert_clean(used)


def test_release_never_is_strict_mode() -> None:
    async def main() -> None:
        async with make_engine(target(), oracle(broken_at=19)) as engine:
            generation = engine.generate(prompt(), mode="streaming", release="never", max_new_tokens=60)
            client = await followed(generation)
        assert client.text == TEXTS[0]
        figures = generation.result.statistics
        assert (figures.released_bytes, figures.coverage, figures.audit_lag_bytes) == (0, 0.0, None)

    run(main)


def test_nothing_is_released_where_the_target_samples() -> None:
    import numpy as np

    def logits(prefix: Any) -> Any:
        row = np.zeros(len(VOCABULARY), np.float32)
        row[forgiving()(prefix)] = 50.0
        return row

    async def main() -> None:
        async with make_engine(ScriptedTarget(VOCABULARY, logits=logits), oracle()) as engine:
            generation = engine.generate(prompt(), temperature=0.7, seed=1, **ALWAYS)
            await followed(generation)
        figures = generation.result.statistics
        assert (figures.released_tokens, figures.certificate) == (0, None)
        assert generation.result.data == TEXTS[0]

    run(main)


def test_a_stream_of_bytes_is_append_only_and_says_so() -> None:
    async def main() -> None:
        async with make_engine(target(), oracle(longest=12)) as engine:
            assert await engine.complete(prompt(), **ALWAYS) == TEXTS[0]
            with pytest.raises(MisuseError, match="a stream takes nothing back"):
                engine.stream(prompt(), on_slip="retract", **ALWAYS)

    run(main)


def test_an_open_end_does_not_wait_for_the_audit() -> None:
    async def main() -> None:
        async with make_engine(target(), oracle()) as engine:
            options = ALWAYS | {"max_new_tokens": 12, "max_unverified_tokens": 64}
            generation = engine.generate(prompt(), finish="open", **options)
            client = await followed(generation)
        result = generation.result
        assert (len(result.token_ids), result.finish_reason) == (12, "length")
        assert client.text == VOCABULARY.join(result.token_ids)
        assert result.statistics.audited_tokens < result.statistics.released_tokens
        assert client.committed < len(client.text)  # what was not checked is never called final
        assert len(generation.faithful) <= client.committed
        assert not result.statistics.certificate.answers  # type: ignore[union-attr]

    run(main)


@both_loops
def test_a_cancelled_client_keeps_what_it_saw(backend: str) -> None:
    used = target()

    async def main() -> None:
        async with make_engine(used, oracle(longest=12)) as engine:
            async with engine.generate(prompt(), **ALWAYS) as generation:
                text = b""
                async for event in generation:
                    if isinstance(event, m.Chunk):
                        text += event.data
                        generation.cancel()
            assert text == generation.result.data
            assert text.startswith(VOCABULARY.join(generation.result.token_ids))
            if not generation.result.statistics.audited_tokens:
                assert generation.faithful == b""
                assert generation.result.statistics.commit_seconds is None

    run(main, backend)
    assert_clean(used)


# ---------------------------------------------------------------- certificates


async def generated(engine: Engine, count: int, **options: Any) -> list[Generation]:
    made = []
    for place in range(count):
        made.append(engine.generate(prompt(place % 2), **(LOOSE | options)))
        await followed(made[-1])
    return made


def test_a_certificate_opens_with_what_was_audited_and_is_kept(tmp_path: Path) -> None:
    async def first() -> list[Generation]:
        async with make_engine(target(), oracle(longest=6), certificates=CertificateStore(tmp_path)) as engine:
            return await generated(engine, 2)

    async def later() -> Generation:
        async with make_engine(target(), oracle(longest=6), certificates=CertificateStore(tmp_path)) as engine:
            [generation] = await generated(engine, 1)
            return generation

    one, _ = run(first)
    assert one.result.statistics.certificate.open
    assert one.result.statistics.certificate.reason.startswith("open: ")
    kept = run(later)
    assert kept.request.configs.gate.certified
    assert kept.result.statistics.released_tokens > one.result.statistics.released_tokens
    assert kept.result.statistics.certificate.answers >= 2


def test_evidence_is_kept_apart_by_domain_and_terms(tmp_path: Path) -> None:
    store = CertificateStore(tmp_path)

    async def main() -> None:
        async with make_engine(target(), oracle(longest=6), certificates=store) as engine:
            await generated(engine, 2)
            assert not engine.generate(prompt(), **LOOSE, domain="other").request.configs.gate.certified
            assert not engine.generate(prompt(), **(LOOSE | {"epsilon": 0.4})).request.configs.gate.certified
            assert engine.generate(prompt(), **LOOSE).request.configs.gate.certified

    run(main)
    [record] = store.records()
    assert record.key.domain == "default"


def test_slips_in_one_generation_close_the_gates_of_all(tmp_path: Path) -> None:
    """One generation stands still, its gate certified; another one slips and slips; then the first is told."""

    async def main() -> None:
        log = tmp_path / "waiting.grimlog"
        async with make_engine(target(), oracle(longest=6), capacity=1) as engine:
            await generated(engine, 1)
            [domain] = engine._certifier.domains.values()
            assert domain.certificate.opened
            async with engine.generate(prompt(), record=log, **LOOSE) as waiting:
                await anyio.wait_all_tasks_blocked()  # its client does not read
                account = engine._certifier.account("default", 0.5, 0.5, engine._keep_soon)
                account.begin(lambda message: None)
                while domain.certificate.opened:
                    account.post_nowait(m.Audited((m.JudgedSpan(0.9, True, True),)))
                await anyio.wait_all_tasks_blocked()
                async for _ in waiting:
                    pass
                account.end(True)
        told = [entry.message for entry in Log.open(log) if isinstance(entry.message, m.Certified)]
        assert told[0].threshold is None
        assert replay(Log.open(log)) is None

    run(main)


def damage(folder: Path) -> None:
    [path] = folder.glob("*.json")
    path.write_bytes(path.read_bytes().replace(b'"spans"', b'"spanz"'))


def test_evidence_that_does_not_hold_is_refused_before_any_work(tmp_path: Path) -> None:
    async def main() -> None:
        used = target()
        async with make_engine(used, oracle(), certificates=CertificateStore(tmp_path)) as engine:
            await generated(engine, 1)
        damage(tmp_path)
        async with make_engine(used, oracle(), certificates=CertificateStore(tmp_path)) as engine:
            with pytest.raises(CertificateError, match="reset"):
                engine.generate(prompt(), **LOOSE)
            await engine.complete(prompt(), max_new_tokens=5)  # strict mode needs none

    run(main)


def full(*_: object) -> None:
    """What a store's write comes to."""
    raise OSError(28, "No space left on device")


def test_a_store_that_fails_costs_evidence_and_no_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = CertificateStore(tmp_path)

    async def main() -> None:
        async with make_engine(target(), oracle(), certificates=store) as engine:
            monkeypatch.setattr(store, "_write", full)
            [generation] = await generated(engine, 1)
        assert generation.result.data == TEXTS[0]

    run(main)
    assert "not kept" in caplog.text


def test_what_a_store_refused_is_offered_again_and_closes_what_it_had_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = CertificateStore(tmp_path)

    async def main() -> None:
        async with make_engine(target(), oracle(longest=6), certificates=store) as engine:
            await generated(engine, 1)
            [domain] = engine._certifier.domains.values()
            assert domain.certificate.opened
            with monkeypatch.context() as patched:
                patched.setattr(store, "_write", full)
                account = engine._certifier.account("default", 0.5, 0.5, engine._keep_soon)
                account.begin(lambda message: None)
                for _ in range(20):
                    account.post_nowait(m.Audited((m.JudgedSpan(0.9, True, True),)))
                account.end(True)
                await account.keep()
            assert not domain.certificate.opened
            await domain.keep()
            assert domain.certificate.report().closings == 1
            assert not domain.unkept

    run(main)
    [record] = store.records()
    assert record.certificate.closings == 1
    assert caplog.text.count("not kept") <= 3  # not once for each slip


def test_a_generation_cut_short_is_never_agreement() -> None:
    async def main() -> None:
        async with make_engine(target(), oracle(longest=12)) as engine:
            async with engine.generate(prompt(), **(ALWAYS | {"epsilon": 0.5, "delta": 0.5})) as generation:
                async for event in generation:
                    if isinstance(event, m.Chunk):
                        break
            report = generation.result.statistics.certificate
            assert report is not None
            assert report.answers == 0

    run(main)


def test_what_slipped_is_not_remembered_as_the_targets_words() -> None:
    class Keeping:
        name = "keeping"

        def __init__(self) -> None:
            self.begin = oracle(broken_at=19, longest=12).begin
            self.kept: list[bytes] = []

        def remember(self, prompt: bytes, output: bytes) -> None:
            self.kept.append(output)

        def settle(self) -> None:
            pass

    keeping = Keeping()

    async def main() -> None:
        async with make_engine(target(), keeping) as engine:
            generation = engine.generate(prompt(), **ALWAYS)
            await followed(generation)
            assert generation.result.statistics.slips[0].offset == 14

    run(main)
    assert keeping.kept == [TEXTS[0][:14]]


# ---------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"release": "sometimes"}, "release"),
        ({"threshold": 1.5}, "threshold is 1.5"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"anchor_bytes": 0}, "anchor_bytes is 0"),
        ({"max_unverified_bytes": 0}, "max_unverified_bytes is 0"),
        ({"doubt_bytes": -1}, "doubt_bytes is -1"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"domain": ""}, "domain"),
        ({"domain": "a\nb"}, "domain"),
        ({"domain": "x" * 101}, "domain"),
        ({"on_slip": "retract", "finish": "open"}, "finish 'open'"),
    ],
)
def test_what_cannot_be_is_said_before_any_work(options: dict[str, Any], says: str) -> None:
    async def main() -> None:
        async with make_engine(target()) as engine:
            with pytest.raises(MisuseError, match=says):
                engine.generate(prompt(), mode="streaming", **options)

    run(main)


@pytest.mark.parametrize("name", STREAMING_ONLY)
def test_strict_mode_refuses_what_has_no_meaning_in_it(name: str) -> None:
    other: dict[str, Any] = {
        "release": "always",
        "threshold": 0.5,
        "on_slip": "retract",
        "finish": "open",
        "epsilon": 0.01,
        "delta": 0.01,
        "domain": "code",
    }
    with pytest.raises(MisuseError, match=f"{name} has no meaning in mode 'strict'"):
        Parameters(**{name: other.get(name, 7)}).checked()


def test_defaults_of_the_command_are_those_of_the_library() -> None:
    import click

    from grimboost.command_line import generate

    defaults = {option.name: option.default for option in generate.params if isinstance(option, click.Option)}
    for field in fields(Parameters):
        given = defaults[field.name]
        known: Callable[[Any], Any] = tuple if field.name == "stop" else lambda value: value
        if not (given is None or repr(given) == "Sentinel.UNSET"):
            assert known(given) == field.default, field.name
        else:
            assert field.default in (None, (), False), field.name
