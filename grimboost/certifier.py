"""Keeps certificates and calibrations up to date while generations run, and tells their gates.

Evidence of all generations of one domain meets here at once, so that a slip in one closes the gates of all. When
a generation ends its evidence goes to the store, where it meets that of other processes. A store that fails costs
what was learned, with a warning, never a generation. It knows no target and computes no statistics.
"""

from collections.abc import Callable

from anyio.to_thread import run_sync

from grimboost import messages as m
from grimboost.certificate_store import AuditedSpan, CertificateKey, CertificateRecord, CertificateStore, Evidence
from grimboost.diagnostics import get_logger
from grimboost.errors import GrimboostError
from grimboost.resolution import Clearance
from grimboost.stages.calibration import Calibration, CalibrationCurve
from grimboost.stages.certificate import Certificate, CertificateReport

log = get_logger(__name__)


class _Domain:
    """One key: its evidence as far as this process knows, and the generations that add to it."""

    def __init__(self, record: CertificateRecord) -> None:
        self.accounts: list[Account] = []
        self.renew(record)

    def renew(self, record: CertificateRecord) -> None:
        """The store's present record, and what running generations have found beyond it."""
        self.record = record
        self.certificate: Certificate = record.judge()
        self.curve: CalibrationCurve = Calibration(record.calibration).curve()
        for account in self.accounts:
            for span in account.found:
                self.certificate.observe(span.confidence, span.slip, span.released)


class Account:
    """What one generation finds out about its drafter. An outlet for the cascade."""

    def __init__(self, certifier: "Certifier", domain: _Domain) -> None:
        self._certifier, self._domain = certifier, domain
        self._curve = domain.curve
        self.clearance = Clearance(domain.certificate.threshold, domain.curve)
        self.found: list[AuditedSpan] = []
        self.tell: Callable[[m.Certified], None] = lambda message: None
        self._told = self.clearance.threshold
        self._closed = False
        self._report: CertificateReport | None = None

    def begin(self, tell: Callable[[m.Certified], None]) -> None:
        """The generation runs; its gate is told through `tell` when the certificate changes."""
        self.tell = tell
        self._domain.accounts.append(self)
        self.refresh()

    def post_nowait(self, item: m.Audited) -> None:
        """Take in what the target said."""
        certificate = self._domain.certificate
        for judged in item.spans:
            confidence = self._curve.of(judged.confidence)
            self.found.append(AuditedSpan(judged.confidence, confidence, judged.slip, judged.released))
            certificate.observe(confidence, judged.slip, judged.released)
        self._certifier.refresh(self._domain)

    async def send(self, item: m.Audited) -> None:
        """The same; it never blocks."""
        self.post_nowait(item)

    def refresh(self) -> None:
        """Tell the gate if the certificate is not what it was told."""
        threshold = self._domain.certificate.threshold
        if threshold != self._told:
            self._told = threshold
            self.tell(m.Certified(threshold))

    async def end(self, whole: bool) -> None:
        """The generation is over; `whole`: all that it had shown was audited."""
        if self._closed:
            return
        self._closed = True
        if self in self._domain.accounts:
            self._domain.accounts.remove(self)
        await self._certifier.keep(self._domain, Evidence(tuple(self.found), ended=True, whole=whole))
        self._report = self._domain.certificate.report()

    @property
    def calibration_error(self) -> float:
        """Expected calibration error of what the drafter's confidences are read as."""
        return Calibration(self._domain.record.calibration).error()

    @property
    def report(self) -> CertificateReport:
        """The certificate at the end of the generation, or now."""
        return self._report or self._domain.certificate.report()


class Certifier:
    """All domains of one target with one drafter."""

    def __init__(self, store: CertificateStore, target: str, drafter: str) -> None:
        self._store = store
        self._target, self._drafter = target, drafter
        self._domains: dict[CertificateKey, _Domain] = {}

    def account(self, domain: str, epsilon: float, delta: float) -> Account:
        """For a generation that is about to begin. Raises `CertificateError` for evidence that does not hold."""
        key = CertificateKey(self._target, self._drafter, domain, epsilon, delta)
        if key not in self._domains:
            self._domains[key] = _Domain(self._store.read(key))
        return Account(self, self._domains[key])

    def refresh(self, domain: _Domain) -> None:
        """Tell every running gate of the domain what has changed."""
        for account in domain.accounts:
            account.refresh()

    async def keep(self, domain: _Domain, evidence: Evidence) -> None:
        """Add evidence to the store, and take over what is there now."""
        try:
            domain.renew(await run_sync(self._store.update, domain.record.key, evidence))
        except (GrimboostError, OSError) as error:
            log.warning("what a generation showed about its drafter is not kept", error=str(error))
        self.refresh(domain)
