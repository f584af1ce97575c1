"""grimboost: a local language model answers sooner, with exactly its own bytes.

The public names are here; everything else may change. Heavy parts (torch, transformers) are imported when
they are first needed.
"""

from typing import TYPE_CHECKING, Any

from grimboost.errors import (
    GrimboostError,
    LogError,
    MisuseError,
    ModelReferenceError,
    StageError,
    TargetError,
    VocabularyError,
)

if TYPE_CHECKING:
    from grimboost.engine import Engine
    from grimboost.generation import Generation, Result, Statistics
    from grimboost.log import Log
    from grimboost.messages import Chunk, Done, FinishReason, Progress
    from grimboost.parameters import Parameters

_HOMES = {
    "Engine": "grimboost.engine",
    "Generation": "grimboost.generation",
    "Result": "grimboost.generation",
    "Statistics": "grimboost.generation",
    "Log": "grimboost.log",
    "Chunk": "grimboost.messages",
    "Done": "grimboost.messages",
    "FinishReason": "grimboost.messages",
    "Progress": "grimboost.messages",
    "Parameters": "grimboost.parameters",
}

__all__ = [
    "Chunk",
    "Done",
    "Engine",
    "FinishReason",
    "Generation",
    "GrimboostError",
    "Log",
    "LogError",
    "MisuseError",
    "ModelReferenceError",
    "Parameters",
    "Progress",
    "Result",
    "StageError",
    "Statistics",
    "TargetError",
    "VocabularyError",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'grimboost' has no attribute {name!r}")
