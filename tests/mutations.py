"""Mutants of the sources, one changed line each, and the tests that have to notice them.

A copy of the sources and of `tests/stages` is made in a temporary folder, one text in it is replaced, and pytest
runs there in a process of its own whose import path begins with the copy. Knows no test framework of its own.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("grimboost", "stages", "adapters", "kernels", "tests/stages")
FILES = tuple(
    f"tests/{name}.py"
    for name in ("client_view", "stage_driver", "stage_messages", "stage_profile", "stage_world")
)
CONFIGURATION = "[pytest]\naddopts = --import-mode=importlib\nfilterwarnings = error\n"
SECONDS = 120
PARALLEL = 2


class Mutation(Struct, frozen=True):
    """In `path`, `old` (found exactly once) becomes `new`; `tests` are run, and one of them has to fail."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


class Run(Struct, frozen=True):
    """Exit status of pytest (0 passed, 1 a test failed, more: it did not run properly) and what it said."""

    status: int
    output: str


ALIGNMENT, VERIFIER = "tests/stages/test_alignment.py", "tests/stages/test_verifier.py"
DRAFTER, CASCADE = "tests/stages/test_drafter.py", "tests/stages/test_cascade.py"
STOP_RULES, KEYED_RANDOM = "tests/stages/test_stop_rules.py", "tests/stages/test_keyed_random.py"
GENERATIONS, STREAMING = "tests/stages/test_generation_laws.py", "tests/stages/test_streaming_laws.py"
AUDIT, GATE = "tests/stages/test_audit.py", "tests/stages/test_gate.py"

MUTATIONS = (
    Mutation(
        "the first drafted token is not compared",
        "stages/alignment.py",
        "    accepted = 0\n    while",
        "    accepted = min(1, checked)\n    while",
        (ALIGNMENT,),
    ),
    Mutation(
        "rollback in the plan keeps one token too many",
        "stages/verifier.py",
        "        keep = len(self._path) - 1\n",
        "        keep = len(self._path)\n",
        (VERIFIER,),
    ),
    Mutation(
        "rollback in the plan keeps one token too few",
        "stages/verifier.py",
        "        keep = len(self._path) - 1\n",
        "        keep = max(0, len(self._path) - 2)\n",
        (VERIFIER,),
    ),
    Mutation(
        "the slot table cuts one token too few",
        "adapters/slots.py",
        "        del tokens[length:]\n",
        "        del tokens[length + 1 :]\n",
        (GENERATIONS,),
    ),
    Mutation(
        "the slot is given back with a rejected token",
        "stages/verifier.py",
        "min(message.length, self._on_path)",
        "message.length",
        (VERIFIER,),
    ),
    Mutation(
        "the cascade takes verdicts of any epoch",
        "stages/cascade.py",
        "return [] if message.epoch != self._epoch else self._commit(message)",
        "return self._commit(message)",
        (CASCADE,),
    ),
    Mutation(
        "the verifier takes spans of any epoch",
        "stages/verifier.py",
        "        if message.epoch == self._epoch:\n            self._waiting.join",
        "        if True:\n            self._waiting.join",
        (VERIFIER,),
    ),
    Mutation(
        "the drafter takes answers of any epoch",
        "stages/drafter.py",
        "current = message.epoch == self._epoch and not",
        "current = not",
        (DRAFTER,),
    ),
    Mutation(
        "one byte too little is held back",
        "stages/stop_rules.py",
        "return Taken(kept, data, self.length - self._held(), self.finish)",
        "return Taken(kept, data, self.length - max(0, self._held() - 1), self.finish)",
        (STOP_RULES,),
    ),
    Mutation(
        "the window of the stop rules is one byte too short",
        "stages/stop_rules.py",
        "default=1) - 1\n",
        "default=2) - 2\n",
        (STOP_RULES,),
    ),
    Mutation(
        "random numbers ignore the position",
        "stages/keyed_random.py",
        "counter=[0, position, 0, 0]",
        "counter=[0, 0, 0, 0]",
        (KEYED_RANDOM,),
    ),
    Mutation(
        "random numbers ignore the seed",
        "stages/keyed_random.py",
        "np.array([seed, purpose]",
        "np.array([0, purpose]",
        (KEYED_RANDOM,),
    ),
    Mutation(
        "the cascade shows releases of any epoch",
        "stages/cascade.py",
        "return [] if message.epoch != self._epoch else self._release(message)",
        "return self._release(message)",
        (STREAMING,),
    ),
    Mutation(
        "choices behind a token that was not fed are used",
        "stages/audit.py",
        "or fed is None or fed.id != walk.tokens[-1].id:",
        "or fed is None:",
        (AUDIT,),
    ),
    Mutation(
        "shown bytes behind a slip are forgotten",
        "stages/cascade.py",
        "released=self._released if stands and not agreed else ()",
        "released=()",
        (CASCADE,),
    ),
    Mutation(
        "released bytes alone let a possible stop string be shown",
        "stages/stop_rules.py",
        "while reveal_to > sure and (held",
        "while False and (held",
        (STREAMING,),
    ),
    Mutation(
        "the cap on unverified bytes is one too high",
        "stages/gate.py",
        "end - self._frontier > config.max_unverified_bytes",
        "end - self._frontier > config.max_unverified_bytes + 1",
        (STREAMING,),
    ),
    Mutation(
        "spans are released in a doubt interval",
        "stages/gate.py",
        "self._frontier < self._doubt_until or self._alone",
        "self._alone",
        (GATE,),
    ),
    Mutation(
        "what was shown and is void stays on the screen",
        "stages/revealer.py",
        "return self._retract(commit.offset + (same if differs else end))",
        "return self._retract(commit.offset + end)",
        (STREAMING,),
    ),
)


def copy_sources(to: Path) -> None:
    """The sources and the tests that mutants are run against, links kept as links."""
    ignore = shutil.ignore_patterns("__pycache__", ".hypothesis")
    for folder in COPIED:
        shutil.copytree(ROOT / folder, to / folder, symlinks=True, ignore=ignore)
    for file in FILES:
        shutil.copy(ROOT / file, to / file)
    (to / "pytest.ini").write_text(CONFIGURATION)


def mutate(copy: Path, mutation: Mutation) -> None:
    """Replace the text. Raises `ValueError` if it is not there exactly once: then the mutation is out of date."""
    path = copy / mutation.path
    source = path.read_text()
    found = source.count(mutation.old)
    if found != 1:
        raise ValueError(f"{mutation.name}: {mutation.old!r} stands {found} times in {path.name}")
    path.write_text(source.replace(mutation.old, mutation.new))


def python_in(copy: Path, *arguments: str) -> Run:
    """Run this Python in the copy, whose packages come before the installed ones."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(copy), str(copy / "tests")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # none is needed, and they take longer to import than the tests run
        "PYTEST_ADDOPTS": "",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return Run(done.returncode, done.stdout)


def run_tests(copy: Path, tests: tuple[str, ...]) -> Run:
    """Run tests in the copy; the first failure ends it, and a failing example is not made smaller."""
    return python_in(copy, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "stage_profile", *tests)


def run_mutant(folder: Path, mutation: Mutation) -> Run:
    """A fresh copy with that mutation, and its tests."""
    copy_sources(folder)
    mutate(folder, mutation)
    return run_tests(folder, mutation.tests)


def run_all(folder: Path) -> dict[str, Run]:
    """All mutants, two at a time, by name; the sources as they are under `unchanged`."""
    tests = tuple(sorted({test for mutation in MUTATIONS for test in mutation.tests}))
    with ThreadPoolExecutor(PARALLEL) as pool:
        unchanged = folder / "unchanged"
        copy_sources(unchanged)
        jobs = {"unchanged": pool.submit(run_tests, unchanged, tests)}
        for place, mutation in enumerate(MUTATIONS):
            jobs[mutation.name] = pool.submit(run_mutant, folder / str(place), mutation)
        return {name: job.result() for name, job in jobs.items()}
