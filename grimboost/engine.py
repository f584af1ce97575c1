"""The engine: a target and a drafter in their workers, and the task group in which generations live.

It resolves what a caller asks for into configurations, starts generations and ends them all when it is left.
It knows the stages only as a wiring and the models only as services.
"""

import itertools
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Unpack

import anyio
import anyio.abc
from anyio.to_thread import run_sync

from grimboost import messages as m
from grimboost.adapters.drafter import Drafter, Remembering
from grimboost.adapters.target import Precision
from grimboost.certificate_store import CertificateKey, CertificateStore, default_root
from grimboost.certifier import Account, Certifier
from grimboost.diagnostics import get_logger
from grimboost.draft_service import DraftService, Ended
from grimboost.errors import MisuseError
from grimboost.figures import FigureKeeper
from grimboost.gate_rules import digest_with, make_rule
from grimboost.generation import Generation
from grimboost.instruments import Instruments
from grimboost.loading import (
    Kernels,
    LoadedTarget,
    check_choices,
    load_target,
    make_drafter,
)
from grimboost.model_references import Progress
from grimboost.own_instruments import own_instruments
from grimboost.parameters import Options, Parameters, parameters
from grimboost.plugins import load_all
from grimboost.prompts import prompt_ids
from grimboost.recorder import Recorders, keep_flights, write_flights
from grimboost.recording import Recording
from grimboost.request import header_of, make_request
from grimboost.stages.gate_rule import GateRule
from grimboost.statistics import EngineStatistics
from grimboost.target_service import TargetService
from grimboost.worker import Job, Lease, Worker

log = get_logger(__name__)

CAPACITY = 8
"""Messages that may wait in each mailbox's data lane, and events that may wait for a client."""

CLOSE_SECONDS = 10.0


class Engine:
    """Use it as `async with await Engine.load("smollm2-135m") as engine`; enter and leave it in one task."""

    def __init__(
        self,
        loaded: LoadedTarget,
        drafter: Drafter | str | None = "lookup",
        capacity: int = CAPACITY,
        worker: Worker | None = None,
        datastore: Path | str | None = "memory",
        certificates: CertificateStore | None = None,
        instruments: Sequence[object | str] = (),
        recording: Recording | None = None,
        gate: GateRule | str | None = None,
    ) -> None:
        """`worker`: the one that loaded the target, already started; without it one is made.

        `datastore`, `instruments`, `recording` and `gate` as for `load`. `certificates`: where evidence is kept;
        without it, in memory.
        """
        self._recorders = Recorders(recording or Recording(), self._keep_soon)
        self.loaded = loaded
        self.drafter = make_drafter(drafter, datastore)
        self.gate_rule = make_rule(gate)
        self._capacity = capacity
        self._target = worker or Worker("target", lambda: TargetService(loaded.target), gathers=True)
        self._workers = [self._target]
        self._drafter: Worker | None = None
        if self.drafter is not None:
            service = DraftService(self.drafter, loaded.segmenter)
            self._drafter = Worker("drafter", lambda: service)
            self._workers.append(self._drafter)
        facts = loaded.target.facts
        self.instruments = Instruments([*load_all("instrument", instruments), *own_instruments()])
        for worker_ in self._workers:
            worker_.instruments = self.instruments
        self._certifier = Certifier(
            certificates or CertificateStore(None),
            f"{facts.digest or facts.name} {facts.precision}",
            digest_with(self.drafter, self.gate_rule),
        )
        self._figures = FigureKeeper()
        self._runs = itertools.count(1)
        self._generations: set[Generation] = set()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._entered = False

    @classmethod
    async def load(
        cls,
        target: str = "smollm2-135m",
        *,
        precision: Precision | Literal["auto"] = "auto",
        drafter: Drafter | str | None = "lookup",
        datastore: Path | str | None = "memory",
        certificates: Path | Literal["default", "memory"] = "default",
        kernels: Kernels | None = None,
        threads: int = 0,
        gate: GateRule | str | None = None,
        instruments: Sequence[object | str] = (),
        recording: Recording | None = None,
        progress: Progress | None = None,
    ) -> "Engine":
        """Fetch, convert and load what is needed, in the thread that will run the target.

        `target` is an alias, a local directory, a plug-in or a hub id; `precision`, `kernels` and `threads` as for
        `grimboost.loading.load_target`. `drafter` is `"lookup"`, `"none"`, a plug-in or an object. Plug-ins are
        given by name or as `"package.module:name"` (docs/extending.md).

        `datastore` is where the drafter `lookup` keeps earlier answers, with the end of the prompt before each,
        to draft from them: `"memory"`, bounded and for this engine only; a file, which other runs use too and
        which holds them in the clear; None or `"none"`, nowhere. Outputs never depend on it; how fast one comes
        can tell that it was given before.

        `certificates` is where streaming mode keeps what it learned about the drafter: counts and no texts, in the
        user's folder for state, in another folder, or in memory.

        `gate` is a rule that may hold back what streaming mode would show (`grimboost.stages.gate_rule`).

        `instruments` are told what stages and workers do, and when (`grimboost.instruments`); more can be added
        and removed while the engine runs, through its attribute of that name.

        `recording` says what is written to disk: by default nothing but the last messages of a generation that
        failed, without their texts.

        Raises `ModelReferenceError` (what is wrong with the target, and what to do) or `MisuseError`.
        """
        check_choices(precision, kernels, threads)
        await run_sync((recording or Recording()).folder)  # so is a place where logs cannot lie
        made = await run_sync(make_drafter, drafter, datastore)  # refused before a model is loaded, if it is wrong
        rule = await run_sync(make_rule, gate)
        hooks = await run_sync(load_all, "instrument", instruments)
        loaded: list[LoadedTarget] = []

        def make() -> TargetService:
            loaded.append(load_target(target, precision, kernels, threads, progress))
            return TargetService(loaded[0].target)

        worker = Worker("target", make, gathers=True)
        await worker.start()
        root = default_root() if certificates == "default" else None if certificates == "memory" else certificates
        store = CertificateStore(root and Path(root))
        return cls(
            loaded[0],
            made,
            worker=worker,
            certificates=store,
            instruments=hooks,
            recording=recording,
            gate=rule,
        )

    # ------------------------------------------------------------ life

    async def __aenter__(self) -> "Engine":
        if self._entered:
            raise MisuseError("an engine can be entered once")
        self._entered = True
        try:
            for worker in self._workers:
                if worker.started:
                    worker.attach()
                else:
                    await worker.start()
        except BaseException:
            self._stop_workers()
            raise
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks, self._tasks = self._tasks, None
        if tasks is None:
            return
        deadline = anyio.current_time() + CLOSE_SECONDS
        try:
            with anyio.CancelScope(deadline=deadline, shield=True) as bound:
                await self._end_generations()
            if bound.cancelled_caught:
                log.warning("generations did not end in time and are abandoned", count=len(self._generations))
                await keep_flights([one.recorder for one in self._generations])
        finally:  # asyncio's own cancellation goes through a shield
            tasks.cancel_scope.cancel()
            self._stop_workers()
            # the caller's own error is not the group's: it goes on as it is, not inside an ExceptionGroup
            await tasks.__aexit__(None, None, None)
        with anyio.CancelScope(deadline=deadline, shield=True):
            await self._target.ended()
            if self._drafter is not None and isinstance(self.drafter, Remembering):
                await self._drafter.ended()  # it may still be writing; others may be anyone's code and hang

    async def _end_generations(self) -> None:
        for generation in tuple(self._generations):
            generation.leave()
        for generation in tuple(self._generations):
            await generation.finished.wait()

    def _stop_workers(self) -> None:
        for worker in self._workers:
            worker.stop()

    def statistics(self, spreads: bool = True) -> EngineStatistics:
        """A snapshot, safe at any time and in any thread. A few milliseconds; without `spreads`, microseconds."""
        return self._figures.statistics(self.loaded.target.open_slots, self._target, self._drafter, spreads)

    def certificates(self) -> dict[CertificateKey, bool]:
        """Which of those that were needed so far are open. Safe in any thread."""
        domains = self._certifier.domains.copy()
        return {key: domain.certificate.threshold is not None for key, domain in domains.items()}

    async def write_flights(self, folder: Path | str, redact: bool | None = None) -> list[Path]:
        """Write the last messages of all generations that run, each as a log in this folder.

        `redact` as for `Generation.write_flight`. Raises `MisuseError`.
        """
        return await write_flights([one.recorder for one in self._generations], Path(folder), redact)

    # ------------------------------------------------------------ generations

    def stream(
        self,
        prompt: str | Sequence[int],
        params: Parameters | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[bytes, None]:
        """Output bytes, append-only; a chunk may end inside a character.

        In strict mode each is final. In streaming mode some were not yet checked, and stand whatever the target
        says of them; the statistics tell what slipped. `prompt` is a user's text for the chat template, or token
        ids as they stand. Raises `MisuseError` at once for wrong input; while iterating, `TargetError` if the
        target fails.
        """
        generation = self.generate(prompt, params, **options)
        if generation.request.parameters.on_slip == "retract":
            raise MisuseError("a stream takes nothing back; on_slip 'retract' needs the events of generate()")
        return self._stream(generation)

    @staticmethod
    async def _stream(generation: Generation) -> AsyncGenerator[bytes, None]:
        async with generation:
            async for event in generation:
                if isinstance(event, m.Chunk):
                    yield event.data
        generation.raise_for_error()

    async def complete(
        self,
        prompt: str | Sequence[int],
        params: Parameters | None = None,
        **options: Unpack[Options],
    ) -> bytes:
        """All output bytes at once. Errors as in `stream`."""
        async with aclosing(self.stream(prompt, params, **options)) as chunks:
            return b"".join([chunk async for chunk in chunks])

    def generate(
        self,
        prompt: str | Sequence[int],
        params: Parameters | None = None,
        *,
        record: Path | str | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """A generation with typed events; it starts when it is entered.

        In strict mode they are `Progress`, `Chunk` and `Done`; in streaming mode also `CommittedTo` and `Slipped`,
        and with `on_slip="retract"` `Provisional` and `Retracted`.

        With `record`, its message log is written to that file, not to the folder of logs. Raises `MisuseError` for
        wrong input.
        """
        if self._tasks is None:
            raise MisuseError("the engine is not running; use it inside 'async with'")
        checked = parameters(params, options)
        ids = prompt_ids(self.loaded, prompt, checked)
        account = self._account(checked)
        drafter = self.drafter.name if self.drafter else None
        clearance = account.clearance if account else None
        run, rule = next(self._runs), self.gate_rule
        request = make_request(self.loaded, drafter, ids, checked, clearance, run, self._capacity, rule)
        recorder = self._recorders.make(header_of(request, self.loaded, drafter), record, run)
        figures = self._figures
        return Generation(
            request, self._target, self._drafter, self._start, recorder, account, self.instruments, figures.pace
        )

    def _account(self, params: Parameters) -> Account | None:
        """Of a sampled generation nothing is learned: what the target draws says little about its drafter."""
        if params.mode == "strict" or params.temperature > 0:
            return None
        return self._certifier.account(params.domain, params.epsilon, params.delta, self._keep_soon)

    def _keep_soon(self, keep: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(keep)

    def _start(self, generation: Generation) -> None:
        if self._tasks is None:
            raise MisuseError("the engine has been left")
        if generation in self._generations or generation.finished.is_set():
            raise MisuseError("a generation can be entered once")
        self._generations.add(generation)
        self._figures.began(generation)
        self._tasks.start_soon(self._run, generation)

    async def _run(self, generation: Generation) -> None:
        try:
            await generation.run()
        finally:
            self._generations.discard(generation)
            self._figures.ended(generation)
            self._remember(generation)
            await generation.keep_evidence()
            await generation.keep_flight()

    def _remember(self, generation: Generation) -> None:
        """Tell a drafter that wants to know what the generation came to, however it ended."""
        if self._drafter is not None and isinstance(self.drafter, Remembering):
            request = generation.request
            ended = Ended(request.prompt.prompt, generation.faithful)
            self._drafter.submit(Job(Lease(request.run, lambda _: None), ended, always=True))
