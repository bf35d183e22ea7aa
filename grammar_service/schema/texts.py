"""The set of strings that match some patterns, match none of others, and have a length between bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from grammar_service.keyed import keyed
from grammar_service.regex_language import is_empty, matches
from grammar_service.regex_tree import ANY_TEXT, Tree, both, negate
from grammar_service.schema.pattern import Pattern, length_pattern

NO_PATTERNS: frozenset[Pattern] = frozenset()


@keyed
@dataclass(frozen=True)
class Texts:
    require: frozenset[Pattern] = NO_PATTERNS
    forbid: frozenset[Pattern] = NO_PATTERNS
    low: int = 0
    high: int | None = None
    origin: str = field(default="", compare=False)

    def meet(self, other: Texts) -> Texts:
        highs = [high for high in (self.high, other.high) if high is not None]
        return Texts(
            self.require | other.require, self.forbid | other.forbid, max(self.low, other.low),
            min(highs) if highs else None, self.origin or other.origin,
        )  # fmt: skip

    def complement(self) -> list[Texts]:
        """Too short, too long, off a required pattern, or on a forbidden one (De Morgan)."""
        out = [Texts(forbid=frozenset({pattern}), origin=self.origin) for pattern in sorted(self.require, key=_order)]
        out += [Texts(require=frozenset({pattern}), origin=self.origin) for pattern in sorted(self.forbid, key=_order)]
        if self.low > 0:
            out.append(Texts(high=self.low - 1, origin=self.origin))
        if self.high is not None:
            out.append(Texts(low=self.high + 1, origin=self.origin))
        return out

    def patterns(self) -> tuple[frozenset[Pattern], frozenset[Pattern]]:
        """Required and forbidden patterns, the length among the former."""
        bounded = self.low > 0 or self.high is not None
        return self.require | ({length_pattern(self.low, self.high)} if bounded else set()), self.forbid

    def holds(self, value: str) -> bool:
        if not self.low <= len(value) <= (len(value) if self.high is None else self.high):
            return False
        return all(matches(p.narrow, value) for p in self.require) and not any(matches(p.wide, value) for p in self.forbid)

    def is_empty(self) -> bool:
        """Proved empty; False also where the proof would take too many states."""
        if self.high is not None and self.low > self.high:
            return True
        if not self.require and all(pattern.kind == "text" for pattern in self.forbid):
            return self.high == 0 and Pattern("text", "") in self.forbid
        return is_empty(language(*self.patterns())) is True


def _order(pattern: Pattern) -> tuple[str, str]:
    return pattern.kind, pattern.text


@lru_cache(maxsize=16384)
def language(require: frozenset[Pattern], forbid: frozenset[Pattern]) -> Tree:
    """The texts that match all of ``require`` and none of ``forbid``."""
    wanted = [pattern.narrow for pattern in sorted(require, key=_order)]
    return both(ANY_TEXT, *wanted, *(negate(pattern.wide) for pattern in sorted(forbid, key=_order)))
