"""For every test: OpenMP threads must not spin against each other (before torch is imported), kernels are
compiled once, also where a test gives its process a model cache of its own, and flights stay out of the user's
folder."""

import os
from collections.abc import Iterator

import pytest

from grimboost.model_cache import cache_root
from grimboost.openmp import limit_spinning

limit_spinning()
os.environ.setdefault("GRIMBOOST_COMPILED", str(cache_root() / "compiled"))


@pytest.fixture(scope="session", autouse=True)
def own_flights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Generations that fail, here and in the processes that tests start, leave their last messages there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRIMBOOST_FLIGHTS", str(tmp_path_factory.mktemp("flights")))
        yield
