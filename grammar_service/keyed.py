"""Frozen dataclasses that keep their hash: trees and expressions are looked up far more often than they are made."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

C = TypeVar("C", bound=type)


def keyed(cls: C) -> C:
    """Replaces the hash of a frozen dataclass by one that is computed once per object. Not for classes with slots."""
    names = [entry.name for entry in fields(cls) if entry.compare]
    generated_eq: Any = cls.__eq__

    def cached_hash(self: Any) -> int:
        known = self.__dict__.get("_hash")
        if known is None:
            known = hash((cls.__name__, *(getattr(self, name) for name in names)))
            self.__dict__["_hash"] = known
        return int(known)

    def quick_eq(self: Any, other: object) -> bool:
        if self is other:
            return True
        if self.__class__ is not other.__class__ or cached_hash(self) != hash(other):
            return False
        return bool(generated_eq(self, other))

    cls.__hash__ = cached_hash  # type: ignore[assignment]
    cls.__eq__ = quick_eq  # type: ignore[assignment]
    return cls
