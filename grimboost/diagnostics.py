"""The logger that modules use: structlog in front, the standard library's logging behind.

A library must not print by itself: where the application configures nothing, only warnings appear, on standard
error. It knows nothing of message logs (`grimboost.log`).
"""

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog


def get_logger(name: str) -> Any:
    """A structlog logger whose events go to `logging.getLogger(name)` as `event key=value`."""
    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            _rendered,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _rendered(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    details = ", ".join(f"{key}={value}" for key, value in event.items() if key != "event")
    return f"grimboost: {event['event']}" + (f" ({details})" if details else "")
