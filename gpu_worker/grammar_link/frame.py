"""A received frame, as the link's parts see it."""

from __future__ import annotations

from typing import Protocol


class Frame(Protocol):
    """Its bytes without a copy."""

    @property
    def buffer(self) -> memoryview: ...
