"""Versions of what a result depends on, for log headers and reports."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("grimboost", "torch", "transformers", "tokenizers", "numpy", "numba")


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    found = []
    for package in PACKAGES:
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            found.append((package, "absent"))
    return tuple(found)


def versions() -> dict[str, str]:
    """Package -> installed version."""
    return dict(_versions())
