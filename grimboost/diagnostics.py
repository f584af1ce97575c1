"""The logger that modules use: structlog in front, the standard library's logging behind.

A library must not print by itself: where the application configures nothing, only warnings appear, on standard
error. It knows nothing of message logs (`grimboost.log`).
"""

import logging
from typing import Any

import structlog


def get_logger(name: str) -> Any:
    """A structlog logger whose events go to `logging.getLogger(name)` as `event key=value`."""
    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.KeyValueRenderer(key_order=["event"], drop_missing=True),
            _plain_event,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _plain_event(_logger: Any, _method: str, rendered: Any) -> str:
    return "grimboost: " + str(rendered).removeprefix("event=")
