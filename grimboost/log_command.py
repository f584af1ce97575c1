"""`grimboost log`: what happened, one line for each entry, or only what belongs to each mismatch.

The header comes first. With `follow` lines appear as the log is written. It knows nothing of click.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from grimboost.cascades import Mismatch, mismatches
from grimboost.errors import LogError, MisuseError
from grimboost.log import LogEntry, LogHeader
from grimboost.log_following import follow
from grimboost.log_output import emit, emit_json, emit_lines, located, note, note_torn, open_log, terminal_width
from grimboost.message_text import Words, counted
from grimboost.provenance import Traced
from grimboost.timeline import Filter, Row, Timeline, as_object, check_names, fitting_lines


class LogOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The options of the command, as given."""

    path: Path
    selection: Filter
    cascades: bool
    follow: bool
    as_json: bool


def run_log(options: LogOptions) -> int:
    """Returns the exit status."""
    check_names(options.selection.stages, options.selection.kinds)
    if options.follow and options.cascades:
        raise MisuseError("--cascades needs the whole log; leave out --follow")
    if options.follow:
        _follow(options)
    elif options.cascades:
        _show_cascades(options)
    else:
        _show_all(options)
    return 0


def _show_all(options: LogOptions) -> None:
    log = open_log(options.path)
    shown = _Shown(options, log.header)
    for entry in log:
        shown.entry(entry)
    shown.end()
    note_torn(options.path, log)


def _follow(options: LogOptions) -> None:
    """Ctrl-C is a usual way to stop watching."""
    shown: _Shown | None = None
    try:
        for item in follow(options.path):
            if isinstance(item, LogHeader):
                shown = _Shown(options, item)
            elif shown is not None:
                shown.entry(item)
    except LogError as error:
        raise located(options.path, error) from error
    except KeyboardInterrupt:
        pass
    if shown is not None:
        shown.end()


class _Shown:
    """Prints the header, then entries that the filter lets through."""

    def __init__(self, options: LogOptions, header: LogHeader) -> None:
        self._options = options
        self._redacted = header.redacted
        self._width = terminal_width()
        self._timeline = Timeline(header)
        if options.as_json:
            emit_json({"header": msgspec.to_builtins(header)})
        else:
            emit_lines(header_lines(header))
            emit("")

    def entry(self, entry: LogEntry) -> None:
        """The next one."""
        row = self._timeline.row(entry)
        if self._options.selection.holds(row):
            _emit_row(row, self._options.as_json, self._redacted, self._width)

    def end(self) -> None:
        """No more follow."""
        _note_broken(self._timeline.lineage.broken)


def _emit_row(row: Row, as_json: bool, redacted: bool, width: int | None) -> None:
    if as_json:
        emit_json(as_object(row))
    else:
        emit_lines(fitting_lines(row, redacted, width))


def _note_broken(broken: str | None) -> None:
    if broken is not None:
        note(f"entries do not follow from each other, first at {broken}; 'grimboost replay' says more")


# ---------------------------------------------------------------- cascades


def _show_cascades(options: LogOptions) -> None:
    log = open_log(options.path)
    traced = Traced(log)
    timeline = Timeline(log.header)
    rows = [timeline.row(entry) for entry in log]
    words = Words(redacted=log.header.redacted)
    if not options.as_json:
        emit_lines(header_lines(log.header))
    shown = 0
    for one in mismatches(traced, words):
        own = [rows[sequence - log.header.first] for sequence in one.entries]
        own = [row for row in own if options.selection.holds(row)]
        if own:
            shown += 1
            _show_one(one, own, options.as_json, log.header.redacted)
    if not shown and not options.as_json:
        emit_lines(("", "no mismatch"))
    _note_broken(traced.lineage.broken)
    note_torn(options.path, log)


def _show_one(one: Mismatch, rows: Sequence[Row], as_json: bool, redacted: bool) -> None:
    if as_json:
        emit_json({"offset": one.offset, "heading": one.heading, "entries": [as_object(row) for row in rows]})
        return
    emit_lines(("", one.heading))
    width = terminal_width()
    for row in rows:
        emit_lines(fitting_lines(row, redacted, width))


# ---------------------------------------------------------------- header


def header_lines(header: LogHeader) -> Iterator[str]:
    """What the log was made with, for a person."""
    for name, text in _facts(header):
        yield f"{name:<9} {text}"


def _facts(header: LogHeader) -> Iterable[tuple[str, str]]:
    stages, rule = header.stages, header.rule
    yield "model", f"{header.model} in {header.precision}, drafter {header.drafter}"
    yield "mode", _mode(header)
    if stages.gate.mode == "streaming":
        trust = stages.cascade.trust
        yield (
            "trust",
            f"doubt for {trust.doubt_bytes} bytes, {counted(trust.max_repairs, 'repair')}, "
            f"takeover of {counted(trust.takeover_tokens, 'token')}",
        )
    yield "choice", f"temperature {rule.temperature:g}, seed {rule.seed}" if rule.temperature else "greedy"
    yield "limits", _limits(header)
    versions = ", ".join(f"{name} {version}" for name, version in header.versions.items())
    yield "started", f"{_moment(header.started)} with {versions}"
    if header.redacted:
        yield "redacted", "texts and token ids are replaced"
    if header.first:
        yield "partial", f"begins with entry {header.first}; names count from there"


def _mode(header: LogHeader) -> str:
    gate, cascade = header.stages.gate, header.stages.cascade
    if gate.mode != "streaming":
        return gate.mode
    rule = f", rule {header.gate_rule}" if header.gate_rule else ""
    certified = " (open)" if gate.certified else " (closed)" if gate.release == "certified" else ""
    stands = "shown bytes stand" if cascade.shown_stands else "shown bytes can be taken back"
    return (
        f"streaming, release {gate.release}{certified} from {gate.threshold:g}{rule}, at most "
        f"{gate.max_unverified_bytes} bytes or {gate.max_unverified_tokens} tokens unchecked, "
        f"anchor {gate.anchor_bytes} bytes; {stands}"
    )


def _limits(header: LogHeader) -> str:
    cascade = header.stages.cascade
    size = f", {cascade.max_new_bytes} bytes" if cascade.max_new_bytes is not None else ""
    words = Words(redacted=header.redacted)
    stop = f", stop at {', '.join(map(words.quote, cascade.stop))}" if cascade.stop else ""
    return f"{cascade.max_new_tokens} tokens{size}, context {cascade.context_limit}{stop}"


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"
