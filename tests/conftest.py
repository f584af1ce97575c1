"""For every test: OpenMP threads must not spin against each other (before torch is imported), and kernels are
compiled once, also where a test gives its process a model cache of its own."""

import os

from grimboost.model_cache import cache_root
from grimboost.openmp import limit_spinning

limit_spinning()
os.environ.setdefault("GRIMBOOST_COMPILED", str(cache_root() / "compiled"))
