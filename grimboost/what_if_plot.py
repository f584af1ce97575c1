"""Coverage against slips, drawn: what-if's answers as points, the spans that the target judged as a curve.

matplotlib is an extra; without it, and for files that it shall not write, there is an error before any work.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grimboost.errors import MisuseError
from grimboost.log import reason
from grimboost.what_if_figures import JudgedShare

if TYPE_CHECKING:
    from grimboost.what_if import WhatIf

ENDINGS = (".png", ".svg")


def check_plot(path: Path) -> None:
    """Raise `MisuseError` where nothing can be drawn to that file."""
    if path.suffix.lower() not in ENDINGS:
        raise MisuseError(f"cannot draw to {path}: the file has to end with {' or '.join(ENDINGS)}")
    if not path.parent.is_dir() or path.is_dir():
        raise MisuseError(f"cannot draw to {path}: its folder does not exist, or it is one")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MisuseError("--plot needs matplotlib: install grimboost[plot]") from error


def draw(path: Path, answers: Sequence["WhatIf"], judged: Sequence[JudgedShare]) -> None:
    """Write the picture. Raises `MisuseError` where the file cannot be written."""
    import matplotlib
    from matplotlib.figure import Figure

    picture = Figure(figsize=(7, 4.5), layout="constrained")
    axes = picture.subplots()
    _draw_judged(axes, judged)
    _draw_answers(axes, answers)
    axes.set(xlabel="slips, % of what is shown unchecked", ylabel="coverage, % of the output", ylim=(-3, 103))
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")
    svg = path.suffix.lower() == ".svg"
    with matplotlib.rc_context({"svg.hashsalt": "grimboost"}):
        try:
            picture.savefig(path, dpi=150, metadata={"Date": None} if svg else None)
        except OSError as error:
            raise MisuseError(f"cannot draw to {path}: {reason(error)}") from error


def _draw_judged(axes: Any, judged: Sequence[JudgedShare]) -> None:
    known = [(100 * one.slip_rate, 100 * one.share) for one in judged if one.slip_rate is not None]
    if known:
        label = "fact: judged spans at or above each confidence"
        axes.plot(*zip(*known, strict=True), color="tab:gray", lw=1, label=label)


def _draw_answers(axes: Any, answers: Sequence["WhatIf"]) -> None:
    """A point for each answer, the fainter the less of the output it is about; the number is that share."""
    label: str | None = "what if (and the share of the output that it is about)"
    for one in answers:
        rate = one.what_if.slip_rate
        if rate is None:
            continue
        at = 100 * rate, 100 * one.what_if.coverage
        axes.scatter(*at, color="tab:blue", alpha=0.3 + 0.7 * one.share, label=label, zorder=3)
        named = ", ".join(f"{value:g}" for value in one.changes.given().values()) or "as recorded"
        axes.annotate(f"{named} ({one.share:.0%})", at, (4, 4), textcoords="offset points", fontsize="x-small")
        label = None
    recorded = max(answers, key=lambda one: one.recorded.new_bytes, default=None)
    if recorded is not None and recorded.recorded.slip_rate is not None:
        at = 100 * recorded.recorded.slip_rate, 100 * recorded.recorded.coverage
        axes.scatter(*at, color="tab:red", marker="x", label="recorded", zorder=4)
