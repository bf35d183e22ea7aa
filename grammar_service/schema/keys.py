"""A set of property names: all that match some patterns and none of others, or a finite set, or all but a finite set.

Patterns have a narrow and a wide reading (see ``regex_classes``). A rule for all names of a set is safe with the wide
reading of the set, "some name of the set" with the narrow one; so every question says which.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from grammar_service.keyed import keyed
from grammar_service.regex_language import matches
from grammar_service.regex_tree import ANY_TEXT, Tree, alt, both, literal, negate
from grammar_service.schema.pattern import Pattern
from grammar_service.schema.texts import NO_PATTERNS

NO_NAMES: frozenset[str] = frozenset()


@keyed
@dataclass(frozen=True)
class Keys:
    """Texts that match every pattern of ``require`` and none of ``forbid`` and are not in ``without``; where ``only`` is
    given, just those of its names."""

    require: frozenset[Pattern] = NO_PATTERNS
    forbid: frozenset[Pattern] = NO_PATTERNS
    without: frozenset[str] = NO_NAMES
    only: frozenset[str] | None = None

    def holds(self, name: str, wide: bool) -> bool:
        if name in self.without or (self.only is not None and name not in self.only):
            return False
        required = all(matches(p.wide if wide else p.narrow, name) for p in self.require)
        return required and not any(matches(p.narrow if wide else p.wide, name) for p in self.forbid)

    def meet(self, other: Keys) -> Keys:
        only = self.only if other.only is None else other.only if self.only is None else self.only & other.only
        found = Keys(self.require | other.require, self.forbid | other.forbid, self.without | other.without, only)
        return found if only is None else finite(name for name in only if found.holds(name, False))

    def complement(self) -> list[Keys]:
        """De Morgan; the names that ``only`` leaves out are all but those."""
        out = [Keys(forbid=frozenset({pattern})) for pattern in self.require]
        out += [Keys(require=frozenset({pattern})) for pattern in self.forbid]
        if self.without:
            out.append(finite(self.without))
        if self.only is not None:
            out.append(Keys(without=self.only))
        return out

    def language(self, wide: bool) -> Tree:
        if self.only is not None:
            return alt(*(literal(name) for name in sorted(self.only)))
        wanted = [pattern.wide if wide else pattern.narrow for pattern in sorted(self.require, key=_order)]
        banned = [negate(pattern.narrow if wide else pattern.wide) for pattern in sorted(self.forbid, key=_order)]
        return both(ANY_TEXT, *wanted, *banned, *(negate(literal(name)) for name in sorted(self.without)))


def _order(pattern: Pattern) -> tuple[str, str]:
    return pattern.kind, pattern.text


def finite(names: Iterable[str]) -> Keys:
    return Keys(only=frozenset(names))


ALL_KEYS = Keys()
