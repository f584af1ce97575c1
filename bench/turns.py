"""Contenders as processes that take turns: one works, the others wait on their standard input."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parent.parent


class Unavailable(Exception):
    """A contender that cannot take part here, and why."""


class Interval:
    """From its making on: the share of all processors that others than one process took, the hypervisor included.

    An engine whose threads wait for each other by spinning becomes ten times slower beside one busy process, so a
    time says little without this. Linux only; elsewhere it is None.
    """

    def __init__(self, process: int) -> None:
        self._process = process
        self._before = self._now()

    def disturbed(self) -> float | None:
        """A share from 0 to 1."""
        now = self._now()
        if now is None or self._before is None:
            return None
        total, busy, own = (after - before for after, before in zip(now, self._before, strict=True))
        return round(max(0, busy - own) / max(1, total), 3)

    def _now(self) -> tuple[int, int, int] | None:
        """Ticks of all processors: all, those not idle, those of the process with its threads."""
        try:
            ticks = [int(part) for part in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
            parts = Path(f"/proc/{self._process}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return None
        return sum(ticks), sum(ticks) - ticks[3] - ticks[4], int(parts[11]) + int(parts[12])


class Contender:
    """A running contender. `ask` blocks until it has answered.

    `module` is run by `python` with `arguments`. `threads`, where given, bounds OpenMP's; contenders whose
    threads are others get it as an argument.
    """

    def __init__(
        self,
        name: str,
        *arguments: str,
        module: str = "bench.contender",
        python: str = sys.executable,
        threads: int | None = None,
    ) -> None:
        self.name = name
        command = [python, "-m", module, *arguments]
        environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )
        if reason := self._read().get("unavailable"):
            self._process.wait()
            raise Unavailable(reason)

    def ask(self, ids: list[int], count: int, **options: Any) -> dict[str, Any]:
        """Have it generate `count` tokens behind `ids`. The answer's `disturbed`: see `Interval`."""
        assert self._process.stdin is not None
        interval = Interval(self._process.pid)
        self._process.stdin.write(json.dumps({"ids": ids, "count": count, "options": options}) + "\n")
        self._process.stdin.flush()
        return self._read() | {"disturbed": interval.disturbed()}

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"contender {self.name} ended with status {self._process.wait()}")
        return dict(json.loads(line))

    def __enter__(self) -> "Contender":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def prompt_ids(reference: str, prompt: str) -> list[int]:
    """Ids of a user's prompt in the target's chat template."""
    from grimboost.adapters.target_tokenizer import load_tokenizer
    from grimboost.model_references import resolve

    return list(load_tokenizer(resolve(reference).directory).prompt_ids(prompt))
