"""How long OpenMP threads spin before they sleep: a pass has four hundred parallel regions.

libgomp spins for about a millisecond by default. Alone on two cores that is as good as anything; beside one
other busy process the spinning threads use up their share of time, and every barrier waits for a thread that does
not run: a pass took 2,900 ms instead of 43. Spinning for `SPIN_COUNT` rounds costs nothing measurable when alone,
and the same contended pass takes a tenth of that (`docs/performance.md`). It knows nothing of models.
"""

import os
import sys

SPIN_COUNT = "10000"
_SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def limit_spinning() -> None:
    """Set libgomp's spin count, unless somebody has chosen or torch is loaded: it is read once, at start."""
    if "torch" not in sys.modules and not any(name in os.environ for name in _SETTINGS):
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
