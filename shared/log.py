"""Structured logs: JSON lines where stderr is no terminal, short coloured lines where it is. Never a prompt or a guide at info."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure(process: str, level: str = "info") -> None:
    """Sets up structlog for this process; ``process`` is on every line."""
    terminal = sys.stderr.isatty()
    renderer: Any = structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    structlog.contextvars.bind_contextvars(process=process)


def get(name: str) -> Any:
    """A logger; bind request_id, session, service, key on it as needed."""
    return structlog.get_logger(component=name)
