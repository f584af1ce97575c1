"""For every test: OpenMP threads must not spin against each other (before torch is imported)."""

from grimboost.openmp import limit_spinning

limit_spinning()
