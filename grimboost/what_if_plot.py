"""Coverage against slips, drawn: what-if's answers as points, the spans that the target judged as a curve.

matplotlib is an extra; without it, and for files that it shall not write, there is an error before any work.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grimboost.errors import MisuseError
from grimboost.log import reason
from grimboost.what_if_figures import Figures, JudgedShare

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


def draw(path: Path, recorded: Figures, answers: Sequence["WhatIf"], judged: Sequence[JudgedShare]) -> None:
    """Write the picture; `recorded` are the figures of all that happened.

    Raises `MisuseError` where the file cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    picture = Figure(figsize=(7, 4.5), layout="constrained")
    axes = picture.subplots()
    _draw_judged(axes, judged)
    _draw_answers(axes, recorded, answers)
    axes.set(xlabel="slips, % of what is shown unchecked", ylabel="coverage, % of the output", ylim=(-3, 103))
    axes.margins(x=0.15)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
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
        label = "fact: of all judged spans, those at least so sure"
        axes.plot(*zip(*known, strict=True), color="tab:gray", lw=1, label=label)


def _draw_answers(axes: Any, recorded: Figures, answers: Sequence["WhatIf"]) -> None:
    """A point for all answers that come out the same, the fainter the less of the output they are about."""
    points: dict[tuple[float, float, float], list[str]] = {}
    for one in answers:
        rate = one.what_if.slip_rate
        if rate is not None:
            values = "/".join(f"{value:g}" for value in one.changes.given().values())
            points.setdefault((100 * rate, 100 * one.what_if.coverage, one.share), []).append(values)
    label: str | None = "what if, and the share of the output that it is about"
    for (x, y, share), named in points.items():
        axes.scatter(x, y, color="tab:blue", alpha=0.3 + 0.7 * share, label=label, zorder=3)
        names = named[0] if len(named) == 1 else f"{named[0]} to {named[-1]}"
        axes.annotate(f"{names} ({share:.0%})", (x, y), (4, 4), textcoords="offset points", fontsize="x-small")
        label = None
    if recorded.slip_rate is not None:
        at = 100 * recorded.slip_rate, 100 * recorded.coverage
        axes.scatter(*at, color="tab:red", marker="x", label="recorded", zorder=4)
