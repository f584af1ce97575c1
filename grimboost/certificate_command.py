"""`grimboost certificate`: what evidence there is, what it allows, and beginning anew.

Tables are plain text of as many columns as fit any terminal, with the free text (the domain) last; digests are
shown by their first digits, and a selection may give as few. `--json` prints everything in full. Files that
do not hold are named on standard error, and the exit status is 1.
"""

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from grimboost.certificate_store import (
    CertificateKey,
    CertificateRecord,
    CertificateStore,
    default_root,
)
from grimboost.errors import CertificateError, MisuseError
from grimboost.stages.calibration import Calibration
from grimboost.stages.certificate import CertificateReport, ThresholdReport

DIGITS = 12
HEADINGS = ("target", "drafter", "epsilon", "state", "threshold", "spans", "slips", "domain")
THRESHOLDS = ("threshold", "spans", "slips", "e-value", "rate below", "state")


class Selection(Struct, frozen=True):
    """Which certificates: beginnings of digests, a whole domain, an epsilon; what is None selects all."""

    target: str | None = None
    drafter: str | None = None
    domain: str | None = None
    epsilon: float | None = None

    def holds(self, key: CertificateKey) -> bool:
        """Whether this certificate is meant."""
        return (
            key.target.startswith(self.target or "")
            and key.drafter.startswith(self.drafter or "")
            and self.domain in (None, key.domain)
            and self.epsilon in (None, key.epsilon)
        )


class Shown(Struct, frozen=True):
    """One certificate as `--json` prints it."""

    key: CertificateKey
    certificate: CertificateReport
    calibration_error: float
    drafter_error: float
    calibration_spans: float


def list_certificates(as_json: bool) -> int:
    """Print one line for each certificate. Returns the exit status."""
    store = CertificateStore(default_root())
    shown = [_shown(record) for record in _sorted(store.records())]
    if as_json:
        _print_json(shown)
    elif shown:
        _print_table([HEADINGS, *map(_line, shown)])
    else:
        click.echo(f"no evidence yet in {store.root}; streaming mode gathers it")
    return _report_damaged(store)


def show_certificates(selection: Selection, as_json: bool) -> int:
    """Print all that is known about the selected certificates. Returns the exit status."""
    store = CertificateStore(default_root())
    shown = [_shown(record) for record in _selected(store, selection)]
    if as_json:
        _print_json(shown)
    else:
        for place, one in enumerate(shown):
            _print_whole(one, first=not place)
    return _report_damaged(store)


def reset_certificates(
    selection: Selection, every: bool, damaged: bool, calibration: bool, without_asking: bool
) -> None:
    """Drop evidence, after a question. Calibrations stay unless asked otherwise."""
    narrowed = selection != Selection()
    if narrowed + every + damaged != 1:
        raise click.UsageError("say which: --target, --drafter, --domain or --epsilon, or --all, or --damaged")
    store = CertificateStore(default_root())
    keys = [] if damaged else [record.key for record in _selected(store, selection, or_none=every)]
    files = list(store.damaged()) if damaged or every else []
    if not keys and not files:
        click.echo("nothing to reset")
        return
    if not without_asking:
        click.confirm(_question(keys, files, calibration), abort=True, err=True)
    for key in keys:
        store.reset(key, calibration)
    for file in files:
        store.discard(file)
    click.echo(f"reset: {len(keys) + len(files)}")


def _selected(store: CertificateStore, selection: Selection, or_none: bool = False) -> list[CertificateRecord]:
    found = [record for record in _sorted(store.records()) if selection.holds(record.key)]
    if not found and not or_none:
        raise MisuseError(f"no such certificate in {store.root}; 'grimboost certificate list' shows what there is")
    return found


def _sorted(records: list[CertificateRecord]) -> list[CertificateRecord]:
    return sorted(records, key=lambda record: msgspec.structs.astuple(record.key))


def _shown(record: CertificateRecord) -> Shown:
    calibration = Calibration(record.calibration)
    return Shown(
        key=record.key,
        certificate=record.judge().report(),
        calibration_error=calibration.error(),
        drafter_error=calibration.raw_error(),
        calibration_spans=sum(record.calibration.seen),
    )


def _line(shown: Shown) -> tuple[str, ...]:
    key, report = shown.key, shown.certificate
    threshold = f"{report.threshold:g}" if report.threshold is not None else "-"
    numbers = (f"{key.epsilon:g}", _state(report), threshold, str(report.spans), str(report.slips))
    return (key.target[:DIGITS], key.drafter[:DIGITS], *numbers, _one_line(key.domain))


def _state(report: CertificateReport) -> str:
    return "open" if report.open else "closed"


def _print_whole(shown: Shown, first: bool) -> None:
    key, report = shown.key, shown.certificate
    if not first:
        click.echo()
    click.echo(f"{_one_line(key.domain)}: {report.reason}")
    confidence = f"{100 * (1 - report.delta):g}%"
    facts = (
        ("target", key.target),
        ("drafter", key.drafter),
        ("claim", f"slip rate below {report.epsilon:g}, with confidence {confidence} whenever one looks"),
        ("opened, closed", f"{report.openings}, {report.closings} times"),
        ("released spans", f"{report.released} audited, {report.released_slips} slips, over all openings"),
        (
            "answers",
            f"{report.answers} audited, {report.answers_with_slip} with a slip; {_answers(report, confidence)}",
        ),
        ("calibration", _calibration(shown)),
        ("Wilson bound", f"{report.wilson_upper:.3g}, for comparison; it holds for one look only"),
    )
    for name, text in facts:
        click.echo(f"  {name:<15} {text}")
    _print_table([THRESHOLDS, *_threshold_lines(report)], "  ")


def _answers(report: CertificateReport, confidence: str) -> str:
    if not report.answers:
        return "none audited yet that showed spans unchecked"
    return (
        f"{report.answers} audited, {report.answers_with_slip} with a slip; "
        f"at most {report.answers_upper:.3g} of all have one, with confidence {confidence}"
    )


def _calibration(shown: Shown) -> str:
    return (
        f"{shown.calibration_spans:.0f} spans, error {shown.calibration_error:.4f} "
        f"(the drafter's own confidence: {shown.drafter_error:.4f})"
    )


def _threshold_lines(report: CertificateReport) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    stricter = True
    for row in report.thresholds:
        e_value = f"{10**row.log10_e_value:.3g}" if row.log10_e_value < 300 else "1e300"
        numbers = (f"{row.threshold:g}", str(row.spans), str(row.slips), e_value, f"{row.upper:.3g}")
        lines.append((*numbers, _threshold_state(row, stricter)))
        stricter &= row.passed
    return lines


def _threshold_state(row: ThresholdReport, stricter: bool) -> str:
    if row.missing:
        return f"{row.missing} clean spans missing"
    if not stricter:
        return "waits for a stricter one"
    return f"{row.own_missing} spans of its own missing" if row.own_missing else "counts"


def _print_table(rows: Sequence[tuple[str, ...]], indent: str = "") -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(indent + "  ".join(cells).rstrip())


def _print_json(shown: list[Shown]) -> None:
    click.echo(msgspec.json.encode(shown))


def _one_line(domain: str) -> str:
    """A domain is the user's own text; control characters must not reach a terminal."""
    return "".join(char if char.isprintable() else "?" for char in domain) or "''"


def _question(keys: list[CertificateKey], files: list[Path], calibration: bool) -> str:
    parts = [f"the evidence of {_counted(len(keys), 'certificate')}"] if keys else []
    parts += ["what calibrates them"] if keys and calibration else []
    parts += [_counted(len(files), "damaged file")] if files else []
    return f"drop {' and '.join(parts)}?"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _report_damaged(store: CertificateStore) -> int:
    damaged: list[CertificateError] = list(store.damaged().values())
    for error in damaged:
        click.echo(f"grimboost: {error}", err=True)
    return 1 if damaged else 0
