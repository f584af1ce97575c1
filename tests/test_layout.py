"""The layout of the design: four source folders side by side install as one package, and nothing is forgotten."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SIDE_FOLDERS = ("stages", "adapters", "kernels")


def source_files() -> set[str]:
    """Python files of the four folders, as paths inside the installed package."""
    own = {f"grimboost/{path.name}" for path in (ROOT / "grimboost").glob("*.py")}
    side = {f"grimboost/{folder}/{path.name}" for folder in SIDE_FOLDERS for path in (ROOT / folder).glob("*.py")}
    return own | side


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    out, copy = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    for name in ("grimboost", *SIDE_FOLDERS):  # built from a copy: setuptools leaves a build/ that goes stale
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", str(out), str(copy)], check=True, capture_output=True)
    [wheel] = out.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_every_source_file_and_no_other_code(wheel_files: set[str]) -> None:
    assert {name for name in wheel_files if name.endswith(".py")} == source_files()


def test_the_wheel_is_typed_and_licensed(wheel_files: set[str]) -> None:
    assert "grimboost/py.typed" in wheel_files
    assert any(name.endswith("licenses/LICENSE") for name in wheel_files)


@pytest.mark.parametrize("folder", SIDE_FOLDERS)
def test_side_folders_are_linked_and_cannot_shadow_a_top_level_package(folder: str) -> None:
    link = ROOT / "grimboost" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder
    assert not (ROOT / folder / "__init__.py").exists()


def test_every_folder_with_code_is_a_package_of_the_project() -> None:
    packages = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    for top in ("grimboost", *SIDE_FOLDERS):
        for path in (ROOT / top).rglob("*.py"):
            folder = path.parent.relative_to(ROOT)
            inside = folder if folder.parts[0] == "grimboost" else Path("grimboost") / folder
            assert ".".join(inside.parts) in packages, f"{path} is in no package of pyproject.toml"


def test_the_stages_are_pure() -> None:
    """No await, clock, randomness without a key, torch or I/O below stages/."""
    forbidden = (
        "import time",
        "import random",
        "import torch",
        "import asyncio",
        "import anyio",
        "async def",
        "open(",
    )
    for path in (ROOT / "stages").glob("*.py"):
        text = path.read_text()
        assert not [word for word in forbidden if word in text], path.name


def test_no_path_of_a_machine_is_committed() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    needles = [b"/" + name + b"/" for name in (b"home", b"root", b"work")]
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and not path.is_symlink() and path != Path(__file__):
            data = path.read_bytes()
            assert not [needle for needle in needles if needle in data], f"{name} holds a path of a machine"


def test_modules_stay_small() -> None:
    """House style: about 300 lines; the messages stand in one file by design."""
    for name in source_files():
        lines = (ROOT / name).read_text().count("\n")
        assert lines <= (450 if name == "grimboost/messages.py" else 350), f"{name} has {lines} lines"
