"""What a pure stage is, and the one defined failure for a message that its state does not allow.

No await, clock, randomness, torch or I/O: the same messages in the same order give the same answers, which is
what makes a log replay. Time comes in as a message: a stage that wants to be woken sets `patience`, and the
shell sends `Elapsed` when nothing came for so many seconds.
"""

from typing import Protocol, TypeVar

from grimboost.errors import StageError
from grimboost.messages import Message

Input = TypeVar("Input", contravariant=True)


class Stage(Protocol[Input]):
    """The logic of one actor."""

    @property
    def done(self) -> bool:
        """Whether the stage expects nothing more."""
        ...

    @property
    def patience(self) -> float | None:
        """Seconds after which the stage wants `Elapsed` if no message came; None waits for ever."""
        ...

    def receive(self, message: Input) -> list[Message]:
        """Handle one message and say what to send, in order."""
        ...


def undefined(stage: str, state: str, message: object) -> StageError:
    """The failure of a (state, message) pair that the stage's table does not have."""
    return StageError(f"{stage}: {type(message).__name__} is not defined in state {state}")
