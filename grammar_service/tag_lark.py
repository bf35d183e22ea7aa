"""Structural tags for llguidance: one tag, or free text with triggered tags, as Lark text that means exactly what it says.

That engine's lexer takes the longest lexeme, so each part must end where it can only end. Free text up to a trigger is one lexeme
that ends with the trigger's first occurrence: no longer text is one. A regex, a constant and a grammar without recursion are one
lexeme with what stands around them, and refused where a text follows and the lexeme could go on. A schema is a grammar of its own
inside, whose last lexeme only a number can prolong. What does not fit is refused by name; xgrammar takes it.
"""

from __future__ import annotations

import json
from typing import Any

from grammar_service.ebnf import checked_ebnf, inlined, recursive_rules
from grammar_service.regex_language import is_empty
from grammar_service.regex_print import to_lark
from grammar_service.regex_resolve import whole_language
from grammar_service.regex_tree import ANY, ANY_TEXT, EMPTY, Tree, both, cat, literal, negate
from grammar_service.schema.front import compile_schema
from grammar_service.tag_format import format_of, guarded
from shared.errors import Unsatisfiable, UnsupportedSchema

Json = Any
NUMBER_GOES_ON = frozenset("0123456789.eE+-")


class TagLark:
    """Writes one structural tag; collects what the schemas in it had to say."""

    def __init__(self, *, max_whitespace: int, validate: bool, any_order: bool) -> None:
        self._max_whitespace, self._validate, self._any_order = max_whitespace, validate, any_order
        self.rewrites: list[str] = ["structural tag as Lark"]
        self.warnings: list[str] = []
        self.dropped: list[str] = []
        self._lines: list[str] = []
        self._names: dict[Tree, str] = {}

    def text(self, value: Json) -> str:
        """Raises BadRequest, UnsupportedSchema, Unsatisfiable, GrammarTooLarge, with a pointer."""
        form, pointer = format_of(value)
        if form["type"] == "tag":
            start = self._tag(form, pointer, skip=0, followed=False)
        elif form["type"] == "triggered_tags":
            start = self._triggered(form, pointer)
        else:
            raise UnsupportedSchema(f"llguidance: {form['type']} on its own: use xgrammar", pointer=pointer, keyword="type")
        terminals = [f"{name}: {to_lark(tree)}" for tree, name in self._names.items()]
        return "\n".join([f"start: {start}", *self._lines, *terminals]) + "\n"

    def _triggered(self, form: Json, pointer: str) -> str:
        """Free text without a trigger, then a trigger and one of its tags, and so on; the text behind the last tag is free too."""
        triggers, tags = form["triggers"], form["tags"]
        if form.get("excludes"):
            raise UnsupportedSchema("llguidance: excludes: use xgrammar", pointer=pointer, keyword="excludes")
        _check_apart(triggers, f"{pointer}/triggers", "triggers")
        _check_apart([tag["begin"] for tag in tags], f"{pointer}/tags", "begin")
        at_once, stop = bool(form.get("at_least_one")), bool(form.get("stop_after_first"))
        first: list[str] = []
        later: list[str] = []
        for at, trigger in enumerate(triggers):
            places = [place for place, tag in enumerate(tags) if tag["begin"].startswith(trigger)]
            if places:  # without one the trigger cannot be finished: free text never holds it
                bodies = [self._tag(tags[place], f"{pointer}/tags/{place}", len(trigger), not stop) for place in places]
                self._lines.append(f"tags_{at}: {' | '.join(bodies)}")
                first += [f"{self._terminal(literal(trigger))} tags_{at}"] if at_once else []
                later.append(f"{self._terminal(_up_to(trigger, triggers))} tags_{at}")
        free, any_first, any_later = self._terminal(_without(triggers)), f"({' | '.join(first)})", f"({' | '.join(later)})"
        if stop:
            return any_first if at_once else f"{free} | {any_later}"
        return f"{any_first if at_once else ''} {any_later}* {free}"

    def _tag(self, tag: Json, pointer: str, skip: int, followed: bool) -> str:
        """``skip``: how much of its begin is written already; ``followed``: text comes behind it."""
        for name in ("begin", "end"):
            if not isinstance(tag[name], str):
                raise UnsupportedSchema(f"llguidance: {name} as tokens or a list: use xgrammar", pointer=pointer, keyword=name)
        begin, end = tag["begin"][skip:], tag["end"]
        return guarded(lambda: self._content(tag["content"], begin, end, followed), f"{pointer}/content")

    def _content(self, form: Json, begin: str, end: str, followed: bool) -> str:
        if form["type"] == "json_schema":
            return self._schema(form, begin, end, followed)
        if form["type"] == "any_text" and set(form) == {"type"} and end:
            return self._lexeme(_up_to(end, [end]), begin, "", followed)
        if form["type"] == "grammar":
            if form.get("syntax", "ebnf") != "ebnf":
                raise UnsupportedSchema("a grammar inside a structural tag is EBNF", keyword="syntax")
            grammar = checked_ebnf(form["grammar"])
            if recursive_rules(grammar):
                raise UnsupportedSchema("llguidance: a recursive grammar inside a tag: use xgrammar", keyword="grammar")
            return self._lexeme(inlined(grammar), begin, end, followed)
        return self._lexeme(_tree_of(form), begin, end, followed)

    def _lexeme(self, tree: Tree | None, begin: str, end: str, followed: bool) -> str:
        if tree is None:
            raise UnsupportedSchema("llguidance: the grammar is too large for one lexeme: use xgrammar", keyword="grammar")
        whole = cat(literal(begin), tree, literal(end))
        if is_empty(whole) is True:
            raise Unsatisfiable("no text fits the tag's content")
        if followed and is_empty(both(cat(whole, ANY, ANY_TEXT), whole)) is not True:
            raise UnsupportedSchema("llguidance: it cannot be told where the content ends: use xgrammar", keyword="end")
        return '""' if whole == EMPTY else self._terminal(whole)

    def _schema(self, form: Json, begin: str, end: str, followed: bool) -> str:
        if form.get("style", "json") != "json":
            raise UnsupportedSchema(f"the style {form['style']!r} is not proved exact: use json", keyword="style")
        if end[:1] in NUMBER_GOES_ON or (followed and not end):
            raise UnsupportedSchema("llguidance: the end could be part of a number before it: use xgrammar", keyword="end")
        front = compile_schema(
            form["json_schema"], max_whitespace=self._max_whitespace, validate=self._validate, any_order=self._any_order
        )
        self.rewrites += front.rewrites
        self.warnings += front.warnings
        self.dropped += front.dropped
        name = f"schema_{len(self._lines)}"
        self._lines.append(f"{name}: %lark {{\n{front.text}}}")
        return f"{json.dumps(begin, ensure_ascii=False)} {name} {json.dumps(end, ensure_ascii=False)}"

    def _terminal(self, tree: Tree) -> str:
        return self._names.setdefault(tree, f"T{len(self._names)}")


def _tree_of(form: Json) -> Tree:
    match form["type"]:
        case "regex":
            return whole_language(form["pattern"])
        case "const_string":
            return literal(form["value"])
    raise UnsupportedSchema(f"llguidance: {form['type']} with these fields inside a tag: use xgrammar", keyword="type")


def _holds(text: str) -> Tree:
    return cat(ANY_TEXT, literal(text), ANY_TEXT)


def _without(triggers: list[str]) -> Tree:
    """Texts that hold none of the triggers."""
    return both(*(negate(_holds(trigger)) for trigger in triggers))


def _up_to(trigger: str, triggers: list[str]) -> Tree:
    """Texts that end with the trigger and hold none before; no trigger is part of another."""
    return both(
        cat(ANY_TEXT, literal(trigger)), *(negate(cat(ANY_TEXT, literal(other), ANY, ANY_TEXT)) for other in triggers)
    )  # fmt: skip


def _check_apart(texts: list[str], pointer: str, keyword: str) -> None:
    """Triggers: none is part of another. Begins: none starts another, so that they tell the tags apart."""
    for at, text in enumerate(texts):
        for other in texts[:at] + texts[at + 1 :]:
            if text in other if keyword == "triggers" else other.startswith(text):
                raise UnsupportedSchema(
                    f"llguidance: {text!r} and {other!r} are not told apart: use xgrammar", pointer=pointer, keyword=keyword
                )  # fmt: skip
