"""Contenders as processes that take turns: one works, the others wait on their standard input."""

import json
import subprocess
import sys
from types import TracebackType
from typing import Any


class Contender:
    """A running contender. `ask` blocks until it has answered."""

    def __init__(self, name: str, kind: str, reference: str, precision: str, detail: str) -> None:
        self.name = name
        command = [sys.executable, "-m", "bench.contender", kind, reference, precision, detail]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

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
