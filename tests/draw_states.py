"""Draws the cascade's state machine into `docs/streaming.md`: `.venv/bin/python tests/draw_states.py`.

The picture is made of the table in `stages/trust.py`; a test fails while the document shows another.
"""

from collections import defaultdict
from pathlib import Path

from grimboost.stages.trust import TRANSITIONS, Trust

DOCUMENT = Path(__file__).parent.parent / "docs" / "streaming.md"
BEGIN, END = "<!-- drawn by tests/draw_states.py from stages/trust.py -->", "<!-- end of the drawing -->"


def picture() -> str:
    """A Mermaid state diagram; events that lead the same way share an arrow."""
    arrows: dict[tuple[Trust, Trust], list[str]] = defaultdict(list)
    for (state, event), following in TRANSITIONS.items():
        arrows[state, following].append(event.value)
    lines = [f"    {one.value} --> {other.value}: {', '.join(events)}" for (one, other), events in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {Trust.VERIFIED.value}", *lines, "```"])


def drawn(text: str) -> str:
    """The document with the present picture between its two marks."""
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n\n{picture()}\n\n{END}{tail}"


if __name__ == "__main__":
    DOCUMENT.write_text(drawn(DOCUMENT.read_text()))
