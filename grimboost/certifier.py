"""Keeps certificates and calibrations up to date while generations run, and tells their gates.

Evidence of all generations of one domain meets here in the order of the audits, so that slips in one close the
gates of all. It goes to the store when a generation ends, and at once when a released span slipped: a process that
is killed must not lose what speaks against its drafter. There it meets the evidence of other processes. A store
that fails costs what was learned, with a warning, never a generation. It knows no target and computes nothing.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
from anyio.to_thread import run_sync

from grimboost import messages as m
from grimboost.certificate_store import AuditedSpan, CertificateKey, CertificateRecord, CertificateStore, Evidence
from grimboost.diagnostics import get_logger
from grimboost.errors import GrimboostError
from grimboost.resolution import Clearance
from grimboost.stages.calibration import Calibration
from grimboost.stages.certificate import Certificate, CertificateReport, CertificateState

log = get_logger(__name__)

StartSoon = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]


class Domain:
    """One key: its evidence as far as this process knows, and the generations that add to it."""

    def __init__(self, store: CertificateStore, record: CertificateRecord) -> None:
        self.accounts: list[Account] = []
        self.unkept: list[AuditedSpan] = []
        self._ends: list[Evidence] = []  # how generations ended that are not kept yet
        self._waiting = False  # somebody will keep what there is
        self._store, self._key = store, record.key
        self._keeping = anyio.Lock()
        self._renew(record)

    def observe(self, spans: list[AuditedSpan]) -> None:
        """Evidence of a generation that runs."""
        self.unkept += spans
        self._apply(spans)
        self._tell()

    def _apply(self, spans: list[AuditedSpan]) -> None:
        for span in spans:
            self.certificate.observe(span.confidence, span.slip, span.released)
            self.calibration.observe(span.raw, not span.slip, span.confidence)

    def keep_soon(self, start_soon: StartSoon) -> None:
        """Start `keep`, unless one is about to begin."""
        if not self._waiting:
            self._waiting = True
            start_soon(self.keep)

    async def keep(self) -> None:
        """Hand everything to the store, and take over what is there then. What it refuses is offered again."""
        with anyio.CancelScope(shield=True):
            async with self._keeping:
                self._waiting = False
                spans, ends = self.unkept, self._ends
                self.unkept, self._ends = [], []
                evidence = [Evidence(tuple(spans)), *ends]
                try:
                    record = await run_sync(lambda: self._store.update(self._key, *evidence))
                except (GrimboostError, OSError) as error:
                    log.warning("what was learned about a drafter is not kept", error=str(error))
                    self.unkept, self._ends = spans + self.unkept, ends + self._ends
                    return
                self._renew(record)
        self._tell()

    def ended(self, evidence: Evidence) -> None:
        """A generation is over."""
        self._ends.append(evidence)
        self._apply_end(evidence)

    def _apply_end(self, evidence: Evidence) -> None:
        if evidence.released_before:
            self.certificate.end_generation(evidence.slipped_before, evidence.whole)

    def _renew(self, record: CertificateRecord) -> None:
        self.certificate: Certificate = record.judge()
        self.calibration = Calibration(record.calibration)
        self._apply(self.unkept)  # found while the store was busy
        for evidence in self._ends:
            self._apply_end(evidence)

    def _tell(self) -> None:
        for account in self.accounts:
            account.refresh()


class Account:
    """What one generation finds out about its drafter. An outlet for the cascade."""

    def __init__(self, domain: Domain, start_soon: StartSoon) -> None:
        self._domain, self._start_soon = domain, start_soon
        self._curve = domain.calibration.curve()
        self.clearance = Clearance(domain.certificate.threshold, self._curve)
        self._tell: Callable[[m.Certified], None] = lambda message: None
        self._told = self.clearance.threshold
        self._released = self._slipped = False
        self._last: CertificateState | None = None  # when the generation ended
        self.calibration_error: float | None = None
        self._report: CertificateReport | None = None

    def begin(self, tell: Callable[[m.Certified], None]) -> None:
        """The generation runs; its gate is told through `tell` when the certificate changes."""
        self._tell = tell
        self._domain.accounts.append(self)
        self.refresh()

    def post_nowait(self, item: m.Audited) -> None:
        """Take in what the target said."""
        spans = [
            AuditedSpan(one.confidence, self._curve.of(one.confidence), one.slip, one.released)
            for one in item.spans
        ]
        slipped = any(span.slip and span.released for span in spans)
        self._released |= any(span.released for span in spans)
        self._slipped |= slipped
        self._domain.observe(spans)
        if slipped:
            self._domain.keep_soon(self._start_soon)

    async def send(self, item: m.Audited) -> None:
        """The same; it never blocks."""
        self.post_nowait(item)

    def refresh(self) -> None:
        """Tell the gate if the certificate is not what it was told."""
        threshold = self._domain.certificate.threshold
        if threshold != self._told:
            self._told = threshold
            self._tell(m.Certified(threshold))

    def end(self, whole: bool) -> None:
        """The generation is over; `whole`: all that it had shown was audited. `keep` has to follow."""
        if self in self._domain.accounts:
            self._domain.accounts.remove(self)
        self._domain.ended(Evidence((), True, whole, self._released, self._slipped))
        self._last = self._domain.certificate.state
        self.calibration_error = self._domain.calibration.error()

    async def keep(self) -> None:
        """Hand what was found to the store."""
        await self._domain.keep()

    @property
    def report(self) -> CertificateReport:
        """The certificate at the end of the generation, or now. About ten milliseconds, the first time."""
        if self._last is None:
            return self._domain.certificate.report()
        if self._report is None:
            self._report = Certificate(self._domain.certificate.terms, self._last).report()
        return self._report


class Certifier:
    """All domains of one target with one drafter."""

    def __init__(self, store: CertificateStore, target: str, drafter: str) -> None:
        self._store = store
        self._target, self._drafter = target, drafter
        self.domains: dict[CertificateKey, Domain] = {}

    def account(self, domain: str, epsilon: float, delta: float, start_soon: StartSoon) -> Account:
        """For a generation that is about to begin; what has to be kept at once is started with `start_soon`.

        Raises `CertificateError` for evidence that does not hold.
        """
        key = CertificateKey(self._target, self._drafter, domain, epsilon, delta)
        if key not in self.domains:
            self.domains[key] = Domain(self._store, self._store.read(key))
        return Account(self.domains[key], start_soon)
