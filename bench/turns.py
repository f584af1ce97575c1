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
        """Have it generate `count` tokens behind `ids`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"ids": ids, "count": count, "options": options}) + "\n")
        self._process.stdin.flush()
        return self._read()

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
