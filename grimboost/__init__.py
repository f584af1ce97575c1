"""grimboost: a local language model answers sooner, with its own bytes, or with drafts that it checks at once.

The public names are here; everything else may change. Heavy parts (torch, transformers) are imported when
they are first needed.
"""

from typing import TYPE_CHECKING, Any

from grimboost.errors import (
    CertificateError,
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
    from grimboost.explanation import explain
    from grimboost.generation import Generation, Result
    from grimboost.log import Log
    from grimboost.messages import (
        Chunk,
        CommittedTo,
        Done,
        FinishReason,
        Progress,
        Provisional,
        Retracted,
        Slipped,
    )
    from grimboost.parameters import Parameters
    from grimboost.replaying import replay
    from grimboost.statistics import Statistics

_HOMES = {
    "Engine": "grimboost.engine",
    "Generation": "grimboost.generation",
    "Result": "grimboost.generation",
    "Statistics": "grimboost.statistics",
    "Log": "grimboost.log",
    "Chunk": "grimboost.messages",
    "Done": "grimboost.messages",
    "FinishReason": "grimboost.messages",
    "Progress": "grimboost.messages",
    "Provisional": "grimboost.messages",
    "CommittedTo": "grimboost.messages",
    "Retracted": "grimboost.messages",
    "Slipped": "grimboost.messages",
    "Parameters": "grimboost.parameters",
    "explain": "grimboost.explanation",
    "replay": "grimboost.replaying",
}

__all__ = [
    "CertificateError",
    "Chunk",
    "CommittedTo",
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
    "Provisional",
    "Result",
    "Retracted",
    "Slipped",
    "StageError",
    "Statistics",
    "TargetError",
    "VocabularyError",
    "explain",
    "replay",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'grimboost' has no attribute {name!r}")
