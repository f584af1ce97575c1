"""What a command measures beside a run: a profile, a trace, both or nothing. It knows no terminal."""

import os
from pathlib import Path
from types import TracebackType

from grimboost.errors import MisuseError
from grimboost.instruments import Instruments
from grimboost.profile import Profile
from grimboost.profiler import Profiler
from grimboost.trace import TraceWriter


def check_file(path: Path, doing: str) -> None:
    """Raise `MisuseError` for a path at which no file can be made."""
    if not path.parent.is_dir():
        raise MisuseError(f"cannot {doing} to {path}: its folder does not exist")
    if path.is_dir() or path.is_fifo():
        raise MisuseError(f"cannot {doing} to {path}: it is no file")


def check_trace(path: Path | None, record: Path | None) -> None:
    """Raise `MisuseError` for what no trace can be written to, as far as that shows before it is tried."""
    if path is None:
        return
    check_file(path, "trace")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise MisuseError(f"cannot trace to {path}: permission denied")
    if record is not None and path.resolve() == record.resolve():
        raise MisuseError(f"{path} cannot be both trace and log; give two files")


class Measures:
    """Use it as `with Measures(...) as measures` around the run. The trace is whole when it is left."""

    def __init__(self, instruments: Instruments, profile: bool, trace: Path | None) -> None:
        """Listens from now on."""
        self._profiler = Profiler() if profile else None
        self._trace = TraceWriter(trace) if trace is not None else None
        for instrument in (self._profiler, self._trace):
            if instrument is not None:
                instruments.add(instrument)

    def __enter__(self) -> "Measures":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._trace is not None:
            self._trace.close()

    @property
    def profile(self) -> Profile | None:
        """Of all that ran; None if it was not asked for."""
        return self._profiler.profile() if self._profiler is not None else None
