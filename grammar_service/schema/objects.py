"""The set of objects given by property schemas, rules for sets of names, required names, a count, and "some property"."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from grammar_service.keyed import keyed
from grammar_service.schema.expr import FALSE, TRUE, Expr, conj, neg
from grammar_service.schema.keys import Keys


@keyed
@dataclass(frozen=True)
class Objects:
    """``props``: name to schema, in the order in which properties are written. ``rest``: every property whose name is in
    the keys has a value in the schema. ``exists``: at least one such property has one."""

    props: tuple[tuple[str, Expr], ...] = ()
    rest: tuple[tuple[Keys, Expr], ...] = ()
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    exists: tuple[tuple[Keys, Expr], ...] = ()
    origin: str = field(default="", compare=False)

    def meet(self, other: Objects) -> Objects:
        props = dict(self.props)
        for name, item in other.props:
            props[name] = conj(props[name], item) if name in props else item
        highs = [high for high in (self.high, other.high) if high is not None]
        return Objects(
            tuple(props.items()), tuple(dict.fromkeys(self.rest + other.rest)),
            tuple(dict.fromkeys(self.required + other.required)), max(self.low, other.low),
            min(highs) if highs else None, tuple(dict.fromkeys(self.exists + other.exists)), self.origin or other.origin,
        )  # fmt: skip

    def complement(self) -> list[Objects]:
        """A required name missing, a property present with a wrong value, a wrong count, or (for "some") all wrong."""
        out = [Objects(props=((name, FALSE),)) for name in self.required]
        out += [Objects(props=((name, neg(item)),), required=(name,)) for name, item in self.props if item != TRUE]
        out += [Objects(exists=((keys, neg(item)),)) for keys, item in self.rest if item != TRUE]
        out += [Objects(rest=((keys, neg(item)),)) for keys, item in self.exists]
        if self.low > 0:
            out.append(Objects(high=self.low - 1))
        if self.high is not None:
            out.append(Objects(low=self.high + 1))
        return [replace(entry, origin=self.origin) for entry in out]

    def value_of(self, name: str) -> Expr:
        """What the value of property ``name`` must be in: its own schema and every rule whose names include it."""
        own = dict(self.props).get(name, TRUE)
        return conj(own, *(item for keys, item in self.rest if keys.holds(name, True)))

    def names(self) -> list[str]:
        """Declared names in order, then required ones that are not declared."""
        return list(dict.fromkeys([*(name for name, _ in self.props), *self.required]))

    def settled(self) -> Objects | None:
        """None where it is plainly empty: a required name without a value, or bounds that cross."""
        high = self.high
        if high is not None and (self.low > high or len(self.required) > high):
            return None
        if any(item == FALSE for name, item in self.props if name in self.required):
            return None
        if self.rest and any(self.value_of(name) == FALSE for name in self.required):
            return None
        low = max(self.low, len(self.required))
        return replace(self, low=0 if low == len(self.required) else low)
