"""Draws a piece of a trace as a picture: `.venv/bin/python tests/draw_trace.py trace.json`.

It writes `docs/trace.svg`: the tracks of the first generation and the workers' over `WINDOW` milliseconds,
those with the most arrows in them; counters below. What Perfetto shows of the same file, for a page.
"""

import json
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

Event = dict[str, Any]

PICTURE = Path(__file__).parent.parent / "docs" / "trace.svg"
WINDOW = 60.0
"""Milliseconds."""
TRACKS = ("client", "revealer", "cascade", "verifier", "gate", "drafter", "drafter worker", "target worker")
COLOURS = ("#7a7a7a", "#2f7f5f", "#7d4fa0", "#b3541e", "#a08a1c", "#3c6ea5", "#5b9bd5", "#d9822b")
LEFT, WIDTH, ROW, TOP, GRAPH = 120, 1060, 34, 30, 56


def milliseconds(event: Event) -> float:
    return float(event["ts"]) / 1000.0


def rows_of(events: list[Event]) -> dict[int, int]:
    """Track -> row, of the tracks that are drawn."""
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    return {tid: TRACKS.index(name.removeprefix("generation 1: ")) for tid, name in names.items() if own(name)}


def own(name: str) -> bool:
    return name.removeprefix("generation 1: ") in TRACKS


def flows_of(events: list[Event]) -> list[list[Event]]:
    flows: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in {"s", "t", "f"}:
            flows[event["id"]].append(event)
    return list(flows.values())


def busiest(flows: list[list[Event]]) -> float:
    """Where the window with the most whole arrows begins."""
    starts = [milliseconds(flow[0]) - 1.0 for flow in flows]
    return max(starts, key=lambda at: len(inside(flows, at)), default=0.0)


def inside(flows: list[list[Event]], at: float) -> list[list[Event]]:
    return [flow for flow in flows if at <= milliseconds(flow[0]) and milliseconds(flow[-1]) <= at + WINDOW]


class Picture:
    """A window of time on a sheet."""

    def __init__(self, at: float) -> None:
        self.at = at
        self.parts: list[str] = []

    def x(self, moment: float) -> float:
        share = min(max((moment - self.at) / WINDOW, 0.0), 1.0)
        return LEFT + share * WIDTH

    def text(self, x: float, y: float, words: str, style: str = "") -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>')

    def line(self, x: float, y: float, to_x: float, to_y: float, colour: str) -> None:
        self.parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}"/>')

    def frame(self) -> None:
        for row, name in enumerate(TRACKS):
            y = TOP + row * ROW
            self.line(LEFT, y + ROW - 4, LEFT + WIDTH, y + ROW - 4, "#e4e4e4")
            self.text(LEFT - 8, y + 19, name, 'text-anchor="end"')
        for step in range(int(WINDOW) // 10 + 1):
            x = self.x(self.at + 10 * step)
            self.line(x, TOP - 6, x, TOP + len(TRACKS) * ROW + GRAPH, "#eeeeee")
            self.text(x, TOP - 12, f"{10 * step} ms", 'text-anchor="middle" fill="#777"')

    def block(self, event: Event, row: int) -> None:
        begin, end = self.x(milliseconds(event)), self.x(milliseconds(event) + event["dur"] / 1000.0)
        y, width = TOP + row * ROW + 4, max(end - begin, 1.2)
        colour = COLOURS[row]
        title = f"{event['name']}, {event['dur'] / 1000.0:.2f} ms"
        self.parts.append(
            f'<rect x="{begin:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 10}" fill="{colour}" rx="1.5">'
            f"<title>{escape(title)}</title></rect>"
        )
        if width > 7 * len(event["name"]):
            self.text(begin + 5, y + 16, event["name"], 'fill="#fff"')

    def arrow(self, flow: list[Event], rows: dict[int, int]) -> None:
        points = [(self.x(milliseconds(one)), TOP + rows[one["tid"]] * ROW + ROW / 2 - 1) for one in flow]
        way = f"M {points[0][0]:.1f} {points[0][1]:.1f}"
        for (x, y), (to_x, to_y) in pairwise(points):
            bend = max(6.0, (to_x - x) / 2)
            way += f" C {x + bend:.1f} {y:.1f} {to_x - bend:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
        self.parts.append(
            f'<path d="{way}" fill="none" stroke="#c2185b" stroke-opacity="0.75" marker-end="url(#tip)"/>'
        )

    def counter(self, events: list[Event]) -> None:
        """Unverified bytes as a filled step curve."""
        level, points = 0, list[tuple[float, int]]()
        for event in events:
            if event["name"] == "generation 1: unverified bytes" and milliseconds(event) <= self.at + WINDOW:
                level, before = event["args"]["bytes"], level
                if milliseconds(event) >= self.at:
                    points += ([] if points else [(self.at, before)]) + [(milliseconds(event), level)]
        top = max([height for _, height in points], default=0) or 1
        base = TOP + len(TRACKS) * ROW + GRAPH
        self.text(LEFT - 8, base - 4, "unverified bytes", 'text-anchor="end"')
        way, height = f"M {LEFT} {base}", 0.0
        for moment, value in [*points, (self.at + WINDOW, 0)]:
            x, lifted = self.x(moment), (GRAPH - 10) * value / top
            way += f" L {x:.1f} {base - height:.1f} L {x:.1f} {base - lifted:.1f}"
            height = lifted
        self.parts.append(f'<path d="{way} Z" fill="#f0c4a4" stroke="#d9822b"/>')
        self.text(LEFT + WIDTH + 6, base - GRAPH + 20, f"{top}")

    def svg(self) -> str:
        width, height = LEFT + WIDTH + 50, TOP + len(TRACKS) * ROW + GRAPH + 14
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="sans-serif" font-size="12" fill="#222">'
        )
        tip = (
            '<defs><marker id="tip" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M 0 0 L 6 3 L 0 6 z" fill="#c2185b"/></marker></defs>'
        )
        return "\n".join([head, tip, '<rect width="100%" height="100%" fill="#fff"/>', *self.parts, "</svg>", ""])


def picture(events: list[Event]) -> str:
    """Of the busiest window."""
    rows, flows = rows_of(events), flows_of(events)
    flows = [flow for flow in flows if all(event["tid"] in rows for event in flow)]
    drawing = Picture(busiest(flows))
    drawing.frame()
    for event in events:
        if event["ph"] == "X" and event["tid"] in rows:
            begin, end = milliseconds(event), milliseconds(event) + event["dur"] / 1000.0
            if begin < drawing.at + WINDOW and end > drawing.at:
                drawing.block(event, rows[event["tid"]])
    for flow in inside(flows, drawing.at):
        drawing.arrow(flow, rows)
    drawing.counter(events)
    return drawing.svg()


if __name__ == "__main__":
    PICTURE.write_text(picture(json.loads(Path(sys.argv[1]).read_bytes())))
