"""The one small tree of errors. It knows nothing of how they are shown.

::

    GrimboostError
    ├── MisuseError             the caller asked for something that cannot be (also a ValueError)
    │   └── ModelReferenceError the target named does not exist, or is not supported
    │       ├── VocabularyError its vocabulary profile is not one whose ids are bytes
    │       └── FetchError      it is a fine name, but network, hub, disk or pip did not deliver
    ├── TargetError             the target or its device failed while working
    ├── StageError              our own fault: a stage got a message that its state does not allow
    ├── LogError                a message log is damaged, foreign or of another version
    └── CertificateError        kept evidence is damaged, foreign or cannot be written; it opens nothing
"""


class GrimboostError(Exception):
    """Base of every error that grimboost raises on purpose."""


class MisuseError(GrimboostError, ValueError):
    """The caller's input cannot be served. The message says what is wrong and where."""


class ModelReferenceError(MisuseError):
    """A model reference that cannot be resolved, or names a model that is not supported."""


class VocabularyError(ModelReferenceError):
    """A vocabulary profile that has no table id -> bytes. The message names what was found."""


class FetchError(ModelReferenceError):
    """The model could not be brought into the cache. The message says what failed and what else would do."""


class TargetError(GrimboostError):
    """The target adapter failed while working; the generation ends with what was committed."""


class StageError(GrimboostError):
    """A pure stage received a message that is undefined in its state: a defect of grimboost."""


class LogError(GrimboostError):
    """A message log cannot be read. The message says at which byte and why."""


class CertificateError(GrimboostError):
    """Evidence for a certificate cannot be read or kept. The message says which file and what to do."""
