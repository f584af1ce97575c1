"""What a person sees on standard error: progress while something long happens, and one line at the end.

Nothing is drawn where standard error is no terminal. While generated text goes to the same terminal, it is
itself the progress, and no live line is drawn into it. It knows nothing of engines.
"""

import sys
from types import TracebackType

from rich.console import Console
from rich.status import Status

_STEPS = {
    "fetching": "fetching the model",
    "checking": "checking the model",
    "converting": "converting the model, once",
    "waiting": "waiting for another process that prepares the model",
    "loading": "loading the model",
    "measuring": "measuring what a pass costs, once",
}


class Terminal:
    """Progress on standard error. Also usable from the thread that loads the model."""

    def __init__(self, quiet: bool) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._drawing = not quiet and self._console.is_terminal
        self._quiet = quiet
        self._live_text = sys.stdout.isatty()
        self._status: Status | None = None

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def step(self, name: str, done: int, total: int) -> None:
        """One step of getting the target ready."""
        share = f" ({100 * done // total}%)" if total > 1 and done else ""
        self._show(f"{_STEPS.get(name, name)}{share}")

    def prefill(self, done: int, total: int) -> None:
        """Prompt tokens that are read."""
        self._show(f"reading the prompt ({done} of {total} tokens)")

    def decoding(self, size: int, seconds: float) -> None:
        """Bytes generated so far; not drawn where the text itself is on the screen."""
        if not self._live_text:
            self._show(f"{size} bytes, {size / max(seconds, 1e-3):.0f} bytes/s")

    def clear(self) -> None:
        """Remove the live line."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def line(self, text: str) -> None:
        """A line that stays; none when quiet."""
        self.clear()
        if not self._quiet:
            self._console.print(text, style="dim", markup=False, soft_wrap=True)

    def _show(self, text: str) -> None:
        if not self._drawing:
            return
        if self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        else:
            self._status.update(text)
