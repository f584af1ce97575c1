"""One span per generation, under what was current where it was entered, in the GenAI conventions' names."""

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from scripted import Target, assert_clean, both_loops, collect, make_engine, oracle, prompt, run

from grimboost.telemetry import Telemetry, telemetry


class Traces:
    """A tracer, and the spans that ended."""

    def __init__(self) -> None:
        self.memory = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.memory))
        self.tracer = provider.get_tracer("test")

    @property
    def ended(self) -> tuple[ReadableSpan, ...]:
        return self.memory.get_finished_spans()


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@both_loops
def test_a_span_says_what_was_asked_and_what_it_came_to_under_the_callers_own(backend: str) -> None:
    traces = Traces()

    async def main() -> tuple[Any, int]:
        async with make_engine(drafter=oracle(broken_at=7), instruments=[Telemetry(traces.tracer)]) as engine:
            with traces.tracer.start_as_current_span("caller") as caller:
                generation = engine.generate(prompt(), stop=["\x00", "never"], max_new_tokens=50)
                await collect(generation)
                return generation, caller.get_span_context().span_id

    generation, caller = run(main, backend)
    [span] = [span for span in traces.ended if span.name != "caller"]
    assert span.name == "chat scripted"
    assert span.kind is SpanKind.INTERNAL
    assert span.parent is not None
    assert span.parent.span_id == caller
    assert span.status.status_code is StatusCode.UNSET
    said = facts(span)
    assert said.pop("gen_ai.response.time_to_first_chunk") == pytest.approx(
        generation.result.statistics.time_to_first_byte_seconds
    )
    counts = generation.counts
    assert said == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "grimboost",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.stop_sequences": ("\x00", "never"),
        "gen_ai.response.model": "scripted",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": counts.prompt_tokens,
        "gen_ai.usage.output_tokens": counts.new_tokens,
        "grimboost.mode": "strict",
        "grimboost.target_passes": counts.target_passes,
        "grimboost.drafted_tokens": counts.drafted_tokens,
        "grimboost.accepted_tokens": counts.accepted_tokens,
        "grimboost.released_tokens": 0,
        "grimboost.slip_tokens": 0,
    }


def test_the_names_are_those_of_the_conventions() -> None:
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
    from opentelemetry.semconv.attributes import error_attributes

    known = {
        value
        for module in (gen_ai_attributes, error_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    traces = Traces()

    async def main() -> None:
        async with make_engine(instruments=[Telemetry(traces.tracer)]) as engine:
            await collect(engine.generate(prompt(), stop=["x"], max_new_tokens=2))

    run(main)
    [span] = traces.ended
    assert {name for name in facts(span) if not name.startswith("grimboost.")} <= known


def test_errors_and_cancels_are_told_apart() -> None:
    traces, target = Traces(), Target()

    async def main() -> None:
        async with make_engine(target, instruments=[Telemetry(traces.tracer)]) as engine:
            async with engine.generate(prompt(), chat_template="none") as generation:
                generation.cancel()
            target.on_step = lambda batch: 1 // 0
            await collect(engine.generate(prompt()))

    run(main)
    cancelled, failed = traces.ended
    assert cancelled.name == "text_completion scripted"
    assert cancelled.status.status_code is StatusCode.UNSET
    assert facts(cancelled)["gen_ai.response.finish_reasons"] == ("cancelled",)
    assert "gen_ai.response.time_to_first_chunk" not in facts(cancelled)
    assert "error.type" not in facts(cancelled)
    assert failed.status.status_code is StatusCode.ERROR
    assert "ZeroDivisionError" in str(failed.status.description)
    assert facts(failed)["error.type"] == "TargetError"
    assert facts(failed)["gen_ai.response.finish_reasons"] == ("error",)
    assert_clean(target)


def test_side_by_side_each_has_its_own() -> None:
    import anyio

    traces, instrument = Traces(), None
    instrument = Telemetry(traces.tracer)

    async def call(engine: Any, which: int) -> None:
        with traces.tracer.start_as_current_span(f"caller {which}"):
            await collect(engine.generate(prompt(which)))

    async def main() -> None:
        async with make_engine(instruments=[instrument]) as engine, anyio.create_task_group() as tasks:
            for which in range(4):
                tasks.start_soon(call, engine, which)

    run(main)
    callers = {span.context.span_id: span.name for span in traces.ended if span.name.startswith("caller")}
    parents = [span.parent.span_id for span in traces.ended if not span.name.startswith("caller") and span.parent]
    assert sorted(callers[one] for one in parents) == [f"caller {which}" for which in range(4)]
    assert not instrument._spans


def test_sampling_is_told_with_its_seed() -> None:
    from grimboost.telemetry import _requested

    async def main() -> None:
        async with make_engine() as engine:
            said = _requested(engine.generate(prompt(), temperature=0.5, top_k=7, seed=3))
            assert said["gen_ai.request.seed"] == 3
            assert said["gen_ai.request.top_k"] == 7
            assert said["gen_ai.request.temperature"] == 0.5

    run(main)


def test_an_engine_adds_it_by_itself() -> None:
    assert isinstance(telemetry(), Telemetry)
    engine = make_engine()
    assert any(isinstance(hook.owner, Telemetry) for hook in engine.instruments.generation_started)
    assert engine.instruments.turn == engine.instruments.batch == ()


def test_without_the_package_there_is_none() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from grimboost.telemetry import telemetry\n"
        "assert telemetry() is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
