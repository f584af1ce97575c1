"""One OpenTelemetry span per generation, in the names of the GenAI semantic conventions.

Only where the API package is installed (`pip install grimboost[otel]`), and then by itself: what the
application sets up as its tracer provider gets the spans, and without one they cost next to nothing. A span's
parent is what was current where the generation was entered. No text of prompts or outputs is told, as the
conventions have it unless asked for.

Names: open-telemetry/semantic-conventions-genai on GitHub (docs/gen-ai/client-inference.md), where the
conventions have moved to; those with `grimboost.` are ours. It knows no stage.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from grimboost.instruments import Instrument
from grimboost.messages import FinishReason

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from grimboost.generation import Generation

PROVIDER = "grimboost"


def telemetry() -> "Telemetry | None":
    """The instrument; None where the API package cannot be imported."""
    if find_spec("opentelemetry") is None:
        return None
    try:
        from opentelemetry import trace
    except ImportError:  # a namespace package of somebody else's, or half an installation
        return None
    return Telemetry(trace.get_tracer("grimboost"))


class Telemetry(Instrument):
    """Holds the spans of generations that run."""

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer
        self._spans: dict[int, Span] = {}

    def generation_started(self, generation: "Generation") -> None:
        """On the task in which it runs, whose context is a copy of the caller's."""
        from opentelemetry.trace import SpanKind

        attributes = _requested(generation)
        name = f"{attributes['gen_ai.operation.name']} {attributes['gen_ai.request.model']}"
        span = self._tracer.start_span(name, kind=SpanKind.INTERNAL, attributes=attributes)
        self._spans[generation.request.run] = span

    def generation_ended(self, generation: "Generation") -> None:
        span = self._spans.pop(generation.request.run, None)
        if span is None:
            return
        try:
            if span.is_recording():
                span.set_attributes(_answered(generation))
                self._end_status(span, generation)
        finally:
            span.end()

    @staticmethod
    def _end_status(span: "Span", generation: "Generation") -> None:
        from opentelemetry.trace import Status, StatusCode

        if generation.reason is FinishReason.ERROR:
            span.set_attribute("error.type", generation.error_type or "_OTHER")
            span.set_status(Status(StatusCode.ERROR, generation.result.error))


def _requested(generation: "Generation") -> dict[str, Any]:
    """What was asked for. Absent is what was left to defaults that mean nothing."""
    params = generation.request.parameters
    said: dict[str, Any] = {
        "gen_ai.operation.name": "chat" if params.chat_template == "native" else "text_completion",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": generation.recorder.header.model,
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": float(params.temperature),
        "grimboost.mode": params.mode,
    }
    if params.max_new_tokens is not None:
        said["gen_ai.request.max_tokens"] = params.max_new_tokens
    if params.temperature > 0:
        said |= {"gen_ai.request.seed": params.seed or 0, "gen_ai.request.top_p": float(params.top_p)}
        said |= {"gen_ai.request.top_k": params.top_k} if params.top_k else {}
    if params.stop:
        stops = [stop if isinstance(stop, str) else stop.decode(errors="replace") for stop in params.stop]
        said["gen_ai.request.stop_sequences"] = stops
    return said


def _answered(generation: "Generation") -> dict[str, Any]:
    """What it came to."""
    lane, counts = generation.lane, generation.counts
    said: dict[str, Any] = {
        "gen_ai.response.finish_reasons": [generation.reason.value],
        "gen_ai.response.model": generation.recorder.header.model,
        "gen_ai.usage.input_tokens": counts.prompt_tokens,
        "gen_ai.usage.output_tokens": counts.new_tokens,
        "grimboost.target_passes": counts.target_passes,
        "grimboost.drafted_tokens": counts.drafted_tokens,
        "grimboost.accepted_tokens": counts.accepted_tokens,
        "grimboost.released_tokens": counts.released_tokens,
        "grimboost.slip_tokens": counts.slip_tokens,
    }
    if lane.first_byte is not None:
        said["gen_ai.response.time_to_first_chunk"] = lane.first_byte - lane.begun
    return said
