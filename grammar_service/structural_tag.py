"""Structural tags for xgrammar, with every schema, regex and grammar inside rewritten to EBNF that means exactly what it says.

That engine's own readers of JSON Schema and regex drop what they do not know, so none of them is ever reached.
"""

from __future__ import annotations

import json
from typing import Any

from grammar_service.ebnf import checked_ebnf, ebnf_for_xgrammar, recursive_rules
from grammar_service.regex_language import is_empty
from grammar_service.regex_resolve import whole_language
from grammar_service.schema.document import child_pointer
from grammar_service.schema.ebnf_text import EbnfText
from grammar_service.schema.front import compile_schema
from grammar_service.schema.grammar import Grammar, Terminal
from grammar_service.tag_format import format_of, guarded
from shared.errors import Unsatisfiable, UnsupportedSchema

Json = Any


class TagWriter:
    """Rewrites one structural tag; collects what the schemas in it had to say."""

    def __init__(self, *, max_whitespace: int, validate: bool) -> None:
        self._max_whitespace = max_whitespace
        self._validate = validate
        self.rewrites: list[str] = []
        self.warnings: list[str] = []
        self.dropped: list[str] = []

    def text(self, value: Json) -> str:
        """The structural tag as JSON text. Raises BadRequest, UnsupportedSchema, Unsatisfiable, GrammarTooLarge."""
        form, pointer = format_of(value)
        return json.dumps({"type": "structural_tag", "format": self._format(form, pointer)}, ensure_ascii=False)

    def _format(self, form: Json, pointer: str) -> Json:
        writers = {"json_schema": self._schema, "regex": self._regex, "grammar": self._grammar}
        if (writer := writers.get(form["type"])) is not None:
            return {"type": "grammar", "grammar": guarded(lambda: writer(form), pointer)}
        if form["type"] == "triggered_tags":
            _check_triggers(form, pointer)
        out = dict(form)
        for name in ("elements", "tags"):
            if name in form:
                place = child_pointer(pointer, name)
                out[name] = [self._format(item, f"{place}/{index}") for index, item in enumerate(form[name])]
        if "content" in form:
            out["content"] = self._format(form["content"], child_pointer(pointer, "content"))
        return out

    def _schema(self, form: Json) -> str:
        if form.get("style", "json") != "json":
            raise UnsupportedSchema(f"the style {form['style']!r} is not proved exact: use json", keyword="style")
        front = compile_schema(form["json_schema"], max_whitespace=self._max_whitespace, validate=self._validate, ebnf=True)
        self.rewrites += front.rewrites
        self.warnings += front.warnings
        self.dropped += front.dropped
        return front.text

    def _regex(self, form: Json) -> str:
        tree = whole_language(form["pattern"])
        if is_empty(tree) is True:
            raise Unsatisfiable("no text fits the pattern", keyword="pattern")
        return EbnfText(Grammar("start", {"start": [(Terminal(tree),)]}), 0).text()

    def _grammar(self, form: Json) -> str:
        if form.get("syntax", "ebnf") != "ebnf":
            raise UnsupportedSchema("a grammar inside a structural tag is EBNF", keyword="syntax")
        grammar = checked_ebnf(form["grammar"])
        recursive_rules(grammar)
        return ebnf_for_xgrammar(grammar)


def _check_triggers(form: Json, pointer: str) -> None:
    for at, trigger in enumerate(form["triggers"]):
        if not any(tag["begin"].startswith(trigger) for tag in form["tags"]):
            text = f"xgrammar: no tag begins with the trigger {trigger!r}: leave it out, or use llguidance"
            raise UnsupportedSchema(text, pointer=f"{pointer}/triggers/{at}", keyword="triggers")
