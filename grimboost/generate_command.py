"""`grimboost generate`: one generation from the command line's options to bytes on standard output.

Writing happens in a thread, so that a reader that does not read blocks neither signals nor the target. Ctrl-C
ends the generation in order: what was generated stands. It knows nothing of options' names.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import anyio
import click
import msgspec
from msgspec import Struct

from grimboost.adapters.target import Precision, TargetFacts
from grimboost.engine import Engine
from grimboost.errors import GrimboostError, MisuseError
from grimboost.generation import Generation, Result
from grimboost.loading import Kernels
from grimboost.measures import Measures, check_file, check_trace
from grimboost.messages import Chunk, ClientEvent, Done, FinishReason, Progress, Provisional, Retracted
from grimboost.parameters import Options, Parameters, parameters
from grimboost.profile import Profile
from grimboost.profile_report import report
from grimboost.recording import Recording
from grimboost.statistics import Statistics
from grimboost.terminal import Terminal
from grimboost.text_output import TextOutput, text_output, write
from grimboost.versions import versions


class GenerateOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The options of the command, as given; `params` are those of the generation."""

    prompt: str
    target: str
    precision: Literal["auto"] | Precision
    kernels: Kernels | None
    threads: int
    drafter: str
    datastore: str
    instrument: tuple[str, ...]
    gate: str | None
    params: Options
    record: Path | None
    as_json: bool
    quiet: bool
    record_dir: Path | None = None
    record_keep_bytes: int = Recording().keep_bytes
    record_keep_days: float = Recording().keep_days
    redact: bool = False
    profile: bool = False
    profile_only: bool = False
    """Show the profile in place of the text."""
    trace: Path | None = None

    @property
    def recording(self) -> Recording:
        """Raises `MisuseError` for options that do not go together."""
        if self.record is not None and self.record_dir is not None:
            raise MisuseError("give --record or --record-dir, and only one of them")
        if self.redact and self.record is None and self.record_dir is None:
            raise MisuseError("--redact says how to record; it needs --record or --record-dir")
        recording = Recording(self.record_dir, self.redact, self.record_keep_bytes, self.record_keep_days)
        if self.record_dir is None and recording != Recording(redact=self.redact):
            raise MisuseError("--record-keep-bytes and --record-keep-days need --record-dir")
        recording.check()
        return recording


def run_generate(options: GenerateOptions) -> int:
    """Run to the end; returns the exit status."""
    params, _ = parameters(None, options.params), options.recording
    if options.gate is not None and params.mode == "strict":
        raise MisuseError("gate has no meaning in mode 'strict'; choose mode 'streaming'")
    if options.record is not None:
        check_file(options.record, "record")
    check_trace(options.trace, options.record)
    if sys.stdout is None:
        raise MisuseError("standard output is closed; there is nowhere to write to")
    _quiet_libraries()
    with Terminal(options.quiet) as terminal:
        return anyio.run(_generate, options, params, terminal)


async def _generate(options: GenerateOptions, params: Parameters, terminal: Terminal) -> int:
    stop = _Interrupt()
    outcome: int | GrimboostError | KeyboardInterrupt = 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop.watch)
        try:
            outcome = await _answer(options, params, terminal, stop)
        except (GrimboostError, KeyboardInterrupt) as error:
            outcome = error  # raised below, outside the group, which would wrap it
        tasks.cancel_scope.cancel()
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


async def _answer(options: GenerateOptions, params: Parameters, terminal: Terminal, stop: "_Interrupt") -> int:
    with anyio.CancelScope() as loading:
        stop.call = loading.cancel
        engine = await Engine.load(
            options.target,
            precision=options.precision,
            kernels=options.kernels,
            threads=options.threads,
            drafter=options.drafter,
            datastore=options.datastore,
            gate=options.gate,
            instruments=options.instrument,
            recording=options.recording,
            progress=terminal.step,
        )
    if loading.cancel_called:
        raise KeyboardInterrupt
    profiles = options.profile or options.profile_only
    with Measures(engine.instruments, profiles, options.trace) as measures:
        async with engine:
            generation = engine.generate(options.prompt, params, record=options.record)
            stop.call = generation.cancel
            as_json = options.as_json or options.profile_only
            output = text_output(as_json=as_json, streaming=params.mode == "streaming")
            try:
                async with generation:
                    await _show(generation, terminal, output)
            finally:
                await output.close()
    terminal.clear()
    result, profile = generation.result, measures.profile
    if profile is not None and options.profile_only:
        await write((msgspec.json.encode(profile) if options.as_json else report(profile).encode()) + b"\n")
    elif options.as_json:
        await write(_report(options, generation, engine.loaded.target.facts, profile) + b"\n")
    elif sys.stdout.isatty() and not result.data.endswith(b"\n"):
        await write(b"\n")  # on a terminal only: a pipe gets the generated bytes and nothing else
    terminal.line(summary(result, generation.request.parameters, engine.loaded.target.facts.precision))
    if profile is not None and options.profile and not options.as_json:
        click.echo(report(profile), err=True)  # also when quiet: it was asked for
    if result.finish_reason is FinishReason.ERROR:
        raise GrimboostError(f"{result.error}; what had been generated until then was printed")
    return 0


async def _show(generation: Generation, terminal: Terminal, output: TextOutput) -> None:
    begin = time.monotonic()
    size = 0
    async for event in generation:
        match event:
            case Progress(done=done, total=total) if done < total:
                terminal.prefill(done, total)
            case Progress():
                terminal.clear()
            case Done():
                return
            case _:
                if not await output.show(event):
                    return  # nobody reads any more: leaving the generation cancels it
                size = _shown(event, size)
                terminal.decoding(size, time.monotonic() - begin)


def _shown(event: ClientEvent, size: int) -> int:
    """Bytes that are shown behind an event."""
    match event:
        case Chunk(offset=offset, data=data) | Provisional(offset=offset, data=data):
            return offset + len(data)
        case Retracted(offset=offset):
            return offset
    return size


def summary(result: Result, params: Parameters, precision: str) -> str:
    """One line of statistics for a person."""
    s = result.statistics
    first = f", first byte after {s.time_to_first_byte_seconds:.2f} s" if s.time_to_first_byte_seconds else ""
    seed = f"; seed {params.seed}" if params.temperature > 0 else ""
    ties = f", {s.ties_rechecked} near-ties re-checked" if s.ties_rechecked else ""
    return (
        f"{s.new_tokens} tokens, {s.new_bytes} bytes in {s.prefill_seconds + s.decode_seconds:.2f} s "
        f"({s.tokens_per_second:.1f} tokens/s{first}); {s.target_passes} target passes in {precision}, "
        f"{s.accepted_bytes} of {s.drafted_bytes} drafted bytes accepted{ties}{seed}; {result.finish_reason}"
        f"{_streaming_summary(s, params) if params.mode == 'streaming' else ''}"
    )


def _streaming_summary(s: Statistics, params: Parameters) -> str:
    """What was shown unchecked, what of it slipped, and why it could be."""
    shown = f"{s.released_tokens} tokens shown unchecked ({100 * s.coverage:.0f}% of the output)"
    slips = (
        f", {s.slip_tokens} of them slipped" if s.slip_tokens else ", none slipped" if s.released_tokens else ""
    )
    back = f", {s.retracted_bytes} bytes taken back" if s.retracted_bytes else ""
    unchecked = s.released_tokens - s.audited_tokens if params.on_slip == "continue" else 0
    left = f", {unchecked} never checked" if unchecked > 0 else ""
    return f"\n{shown}{slips}{back}{left}; {s.release_reason}"


def _report(
    options: GenerateOptions, generation: Generation, facts: TargetFacts, profile: Profile | None
) -> bytes:
    """The object of `--json`."""
    result, request = generation.result, generation.request
    said = {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "error": result.error,
        "config": {
            "target": options.target,
            "precision": facts.precision,
            "kernels": facts.kernels,
            "row_invariant": facts.row_invariant,
            "drafter": options.drafter,
            "gate": options.gate,
            "instruments": options.instrument,
            "parameters": msgspec.structs.asdict(request.parameters),
            "stages": msgspec.to_builtins(request.configs),
            "versions": versions(),
        },
        "stats": result.statistics,
    }
    return msgspec.json.encode(said if profile is None else {**said, "profile": profile})


def _quiet_libraries() -> None:
    """Standard error is for us: no progress bars and advice of the libraries below."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


class _Interrupt:
    """First Ctrl-C (or SIGTERM): end in order. Second: end now."""

    def __init__(self) -> None:
        self.call: Callable[[], None] = lambda: None

    async def watch(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                self.call()
                break
            async for _ in signals:
                os._exit(130)
