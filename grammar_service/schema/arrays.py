"""The set of arrays given by item schemas, a length, counted items, and uniqueness."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from grammar_service.keyed import keyed
from grammar_service.schema.expr import FALSE, TRUE, Expr, conj, neg


@keyed
@dataclass(frozen=True)
class Counted:
    """Between ``low`` and ``high`` of the items from index ``start`` on are in ``item``."""

    start: int
    item: Expr
    low: int = 1
    high: int | None = None


@keyed
@dataclass(frozen=True)
class Arrays:
    """``prefix`` by index, ``items`` for the rest. ``unique`` True: no two items equal; False: some two are; None: any."""

    prefix: tuple[Expr, ...] = ()
    items: Expr = TRUE
    low: int = 0
    high: int | None = None
    counted: tuple[Counted, ...] = ()
    unique: bool | None = None
    origin: str = field(default="", compare=False)

    def item(self, index: int) -> Expr:
        return self.prefix[index] if index < len(self.prefix) else self.items

    def meet(self, other: Arrays) -> Arrays | None:
        if self.unique is not None and other.unique is not None and self.unique != other.unique:
            return None
        highs = [high for high in (self.high, other.high) if high is not None]
        length = max(len(self.prefix), len(other.prefix))
        prefix = tuple(conj(self.item(index), other.item(index)) for index in range(length))
        counted = tuple(dict.fromkeys(self.counted + other.counted))
        unique = self.unique if other.unique is None else other.unique
        return Arrays(
            prefix, conj(self.items, other.items), max(self.low, other.low), min(highs) if highs else None, counted,
            unique, self.origin or other.origin,
        )  # fmt: skip

    def complement(self) -> list[Arrays]:
        """A wrong length, a wrong item at some index or behind the prefix, a wrong count, or the other uniqueness."""
        out: list[Arrays] = []
        if self.low > 0:
            out.append(Arrays(high=self.low - 1))
        if self.high is not None:
            out.append(Arrays(low=self.high + 1))
        for index, item in enumerate(self.prefix):
            if item != TRUE:
                out.append(Arrays(prefix=(TRUE,) * index + (neg(item),), low=index + 1))
        if self.items == FALSE:
            out.append(Arrays(low=len(self.prefix) + 1))
        elif self.items != TRUE:
            out.append(Arrays(counted=(Counted(len(self.prefix), neg(self.items)),)))
        for count in self.counted:
            if count.low > 0:
                out.append(Arrays(counted=(replace(count, low=0, high=count.low - 1),)))
            if count.high is not None:
                out.append(Arrays(counted=(replace(count, low=count.high + 1, high=None),)))
        if self.unique is not None:
            out.append(Arrays(unique=not self.unique))
        return [replace(entry, origin=self.origin) for entry in out]

    def settled(self) -> Arrays | None:
        """The same set with the length cut where an item is impossible; None where the length bounds then cross."""
        high = self.high
        for index, item in enumerate(self.prefix):
            if item == FALSE:
                high = index if high is None else min(high, index)
                break
        if self.items == FALSE:
            high = len(self.prefix) if high is None else min(high, len(self.prefix))
        if high is not None and self.low > high:
            return None
        if any(count.high is not None and count.low > count.high for count in self.counted):
            return None
        unique = None if self.unique and high is not None and high < 2 else self.unique
        if unique is False and high is not None and high < 2:
            return None
        prefix = self.prefix if high is None else self.prefix[:high]
        return replace(self, high=high, prefix=prefix, unique=unique)
