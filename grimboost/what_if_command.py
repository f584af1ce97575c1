"""`grimboost what-if`: a recorded generation under other configurations, side by side with what happened.

One configuration gives two columns, several give a line each. What is estimated is marked with `~`. It knows
nothing of click.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from grimboost import messages as m
from grimboost.columns import aligned
from grimboost.errors import LogError
from grimboost.log_output import emit_json, emit_lines, located, note_torn, open_log
from grimboost.plugins import load_plugin
from grimboost.stages.configuration import StageConfigs
from grimboost.what_if import Changes, WhatIf, WhatIfs, changed
from grimboost.what_if_figures import Figures, JudgedShare
from grimboost.what_if_plot import check_plot, draw

MOST_SLIPS = 6
"""Slips that are named one by one."""
FACTS_AT = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Thresholds of the facts about judged spans where no other is asked for."""


class WhatIfOptions(Struct, frozen=True):
    """The options of the command. `values`: the changes of each configuration to try; one may be empty."""

    path: Path
    values: tuple[dict[str, float], ...]
    gate: str | None
    plot: Path | None
    as_json: bool


def run_what_if(options: WhatIfOptions) -> int:
    """Returns the exit status."""
    if options.plot is not None:
        check_plot(options.plot)
    rule = load_plugin("gate", options.gate) if options.gate is not None else None
    log = open_log(options.path)
    changes = [Changes(**values) for values in options.values]  # type: ignore[arg-type]
    for one in changes:
        changed(log, one)  # what cannot be is said before any work
    note_torn(options.path, log)
    try:
        known = WhatIfs(log, rule)
    except LogError as error:
        raise located(options.path, error) from error
    answers = [known.ask(one) for one in changes]
    thresholds = [one.threshold for one in changes if one.threshold is not None]
    facts = known.judged_spans(sorted(set(thresholds)) or FACTS_AT)
    if options.plot is not None:
        draw(options.plot, known.ask().recorded, answers, known.judged_spans())
    if options.as_json:
        emit_json(_as_object(answers, facts))
    elif len(answers) == 1:
        emit_lines(_side_by_side(answers[0], log.header.stages))
        emit_lines(_facts(facts, known.judged_spans([0.0])[0].spans))
    else:
        emit_lines(_table_of(answers))
        emit_lines(_facts(facts, known.judged_spans([0.0])[0].spans))
    return 0


# ---------------------------------------------------------------- for machines


def _as_object(answers: Sequence[WhatIf], facts: Sequence[JudgedShare]) -> dict[str, Any]:
    return {
        "answers": [_answer(one) for one in answers],
        "judged_spans": [{**msgspec.structs.asdict(one), "slip_rate": one.slip_rate} for one in facts],
    }


def _answer(one: WhatIf) -> dict[str, Any]:
    rates = {name: _with_rate(getattr(one, name)) for name in ("recorded", "what_if")}
    return {**msgspec.structs.asdict(one), "changes": one.changes.given(), "share": one.share, **rates}


def _with_rate(figures: Figures) -> dict[str, Any]:
    return {**msgspec.structs.asdict(figures), "slip_rate": figures.slip_rate}


# ---------------------------------------------------------------- one configuration


def _side_by_side(one: WhatIf, recorded: StageConfigs) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "recorded", "what if")]
    for name, value in one.changes.given().items():
        rows.append((name, _recorded_value(recorded, name), f"{value:g}"))
    about = _about(one)
    columns = _column(one.recorded, False), _column(one.what_if, not one.as_recorded)
    rows += [(name, *both) for name, *both in zip(_NAMES, *columns, strict=True)]
    return [*aligned(rows), "", *about, *_slips(one)]


def _recorded_value(configs: StageConfigs, name: str) -> str:
    for part in (configs.gate, configs.cascade.trust):
        if hasattr(part, name):
            return f"{getattr(part, name):g}"
    return "-"


_NAMES = (
    "output bytes",
    "output tokens",
    "coverage",
    "released tokens",
    "released bytes",
    "slips",
    "slip rate",
    "bytes taken back",
    "tokens in doubt",
    "takeovers",
    "takeover tokens",
    "target passes",
    "target rows",
    "passes per 1,000 tokens",
    "seconds",
    "seconds to first byte",
    "shown to checked, mean ms",
    "shown to checked, p50 ms",
)


def _column(f: Figures, estimated: bool) -> tuple[str, ...]:
    about = "~" if estimated else ""
    wait = f.commit_seconds
    first = f.time_to_first_byte_seconds
    return (
        f"{f.new_bytes:,}",
        f"{f.new_tokens:,}",
        f"{f.coverage:.1%}",
        f"{f.released_tokens:,}",
        f"{f.released_bytes:,}",
        f"{f.slip_tokens:,}",
        _percent(f.slip_rate),
        f"{f.retracted_bytes:,}",
        f"{f.doubt_tokens:,}",
        f"{f.takeovers:,}",
        f"{f.takeover_tokens:,}",
        f"{f.target_passes:,}",
        f"{f.target_rows:,}",
        f"{f.passes_per_1000_tokens:.0f}",
        f"{about}{f.seconds:.3f}",
        "-" if first is None else f"{about}{first:.3f}",
        "-" if wait is None else f"{about}{1000 * wait.mean:.1f}",
        "-" if wait is None else f"{about}{1000 * wait.p50:.1f}",
    )


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1%}"


def _about(one: WhatIf) -> list[str]:
    """How far the answer goes, and on what it rests."""
    if one.as_recorded and one.end is None:
        return ["as recorded: every stage gives every answer that it gave"]
    lines = [
        f"answered: {one.answerable_bytes:,} of {one.recorded_bytes:,} recorded output bytes ({one.share:.0%})"
    ]
    if one.as_recorded:
        lines.append("as recorded, so far")
    elif one.differs_at is not None and one.answerable_bytes:
        lines.append(f"as recorded until {one.differs_at:,} bytes are committed; times behind that are estimates")
    if one.reused:
        lines.append(
            f"certain to byte {one.certain_bytes:,}; from there on if the drafter, asked the same at another "
            f"moment, drafts the same ({one.reused:,} drafts)"
        )
    if one.end is not None:
        lines.append(f"the log tells no more {one.end}")
    return lines


def _slips(one: WhatIf) -> list[str]:
    if one.recorded.slips == one.what_if.slips:
        return _named("slips", one.what_if.slips)
    return _named("recorded slips", one.recorded.slips) + _named("slips, what if", one.what_if.slips)


def _named(title: str, slips: Sequence[m.Slip]) -> list[str]:
    if not slips:
        return [f"{title}: none"]
    shown = ", ".join(f"{slip.offset} {_text(slip.data)} for {_text(slip.chosen)}" for slip in slips[:MOST_SLIPS])
    more = f", and {len(slips) - MOST_SLIPS:,} more" if len(slips) > MOST_SLIPS else ""
    return [f"{title}, at byte: {shown}{more}"]


def _text(data: bytes) -> str:
    return repr(data.decode(errors="replace")) if data else "a control token"


# ---------------------------------------------------------------- several

_HEADINGS = ("answered", "certain", "coverage", "slips", "slip rate", "passes/1,000", "taken back", "checked, ms")


def _table_of(answers: Sequence[WhatIf]) -> list[str]:
    names = list(answers[0].changes.given())
    rows = [(*names, *_HEADINGS)]
    for one in answers:
        values = [f"{value:g}" for value in one.changes.given().values()]
        rows.append((*values, *_line(one)))
    told = [
        f"{', '.join(f'{value:g}' for value in one.changes.given().values())}: the log tells no more {one.end}"
        for one in answers
        if one.end is not None
    ]
    return [*aligned(rows), "in brackets: recorded, over the same bytes", "", *told]


def _line(one: WhatIf) -> tuple[str, ...]:
    new, old = one.what_if, one.recorded
    about = "" if one.as_recorded else "~"
    wait = "-" if new.commit_seconds is None else f"{about}{1000 * new.commit_seconds.mean:.1f}"
    return (
        f"{one.answerable_bytes:,} ({one.share:.0%})",
        f"{one.certain_bytes:,}",
        f"{new.coverage:.1%} ({old.coverage:.1%})",
        f"{new.slip_tokens:,} ({old.slip_tokens:,})",
        f"{_percent(new.slip_rate)} ({_percent(old.slip_rate)})",
        f"{new.passes_per_1000_tokens:.0f} ({old.passes_per_1000_tokens:.0f})",
        f"{new.retracted_bytes:,} ({old.retracted_bytes:,})",
        wait,
    )


def _facts(facts: Sequence[JudgedShare], judged: int) -> list[str]:
    """What needs no other run; `judged` spans in all."""
    if not judged:
        return []
    rows = [("at least so sure", "spans", "of all", "wrong", "rate")]
    for one in facts:
        rate = _percent(one.slip_rate)
        rows.append((f"{one.threshold:g}", f"{one.spans:,}", f"{one.share:.1%}", f"{one.slips:,}", rate))
    title = f"facts about the {judged:,} spans that the target judged in the recorded run, shown or not:"
    return ["", title, *aligned(rows)]
