"""How the CPU kernels are compiled: by numba, without the GIL, kept on disk until any kernel's source changes.

numba looks only at the file of a function to decide whether its kept code is stale, so the kept code of all
kernels lies in a folder named after all their sources, below the model cache. LLVM comes inside numba's
wheel; no compiler has to be on the machine. It knows no kernel.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import config, njit

from grimboost.model_cache import cache_root

Function = TypeVar("Function", bound=Callable[..., Any])

REORDER = {"reassoc", "nsz"}
"""Fast-math flags for sums and maxima over one row: their order may be chosen by the compiler, once, for a
given length. It never depends on other rows."""


def kernel(reorder: bool = False) -> Callable[[Function], Function]:
    """Compile a function of numbers and arrays. It cannot raise; the caller checks shapes before.

    Without `reorder` every operation is rounded as written.
    """

    def decorate(function: Function) -> Function:
        kept, config.CACHE_DIR = config.CACHE_DIR, str(_FOLDER)
        try:
            return njit(nogil=True, cache=True, error_model="numpy", fastmath=REORDER if reorder else False)(
                function
            )
        finally:
            config.CACHE_DIR = kept

    return decorate


def is_kept() -> bool:
    """Whether these kernels have been compiled on this machine before; if not, the first pass takes a while."""
    return _FOLDER.is_dir()


def drop_others() -> None:
    """Delete what was kept of kernels with other sources."""
    for folder in _FOLDER.parent.glob("*"):
        if folder != _FOLDER:
            shutil.rmtree(folder, ignore_errors=True)


def _sources() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


_FOLDER = Path(os.environ.get("GRIMBOOST_COMPILED") or cache_root() / "compiled") / _sources()
"""Below the model cache, unless `GRIMBOOST_COMPILED` names another place."""
