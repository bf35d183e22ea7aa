"""Structural tags for xgrammar, with every schema, regex and grammar inside rewritten to EBNF that means exactly what it says.

That engine's own readers of JSON Schema and regex drop what they do not know, so none of them is ever reached.
"""

from __future__ import annotations

import json
from typing import Any

from grammar_service.ebnf import checked_ebnf, ebnf_for_xgrammar, recursive_rules
from grammar_service.regex_resolve import whole_language
from grammar_service.regex_syntax import RegexError
from grammar_service.schema.document import child_pointer
from grammar_service.schema.ebnf_text import EbnfText
from grammar_service.schema.front import compile_schema
from grammar_service.schema.grammar import Grammar, Terminal
from shared.errors import BadRequest, GuideError, UnsupportedSchema

Json = Any
# The fields of each format that hold another format, or a list of them.
_NESTED: dict[str, tuple[str, ...]] = {
    "sequence": ("elements",), "or": ("elements",), "tag": ("content",), "triggered_tags": ("tags",),
    "token_triggered_tags": ("tags",), "tags_with_separator": ("tags",), "optional": ("content",), "plus": ("content",),
    "star": ("content",), "repeat": ("content",), "const_string": (), "any_text": (), "token": (), "exclude_token": (),
    "any_tokens": (),
}  # fmt: skip
_REWRITTEN = ("json_schema", "regex", "grammar")


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
        form, pointer = _format_of(value)
        return json.dumps({"type": "structural_tag", "format": self._format(form, pointer)}, ensure_ascii=False)

    def _format(self, form: Json, pointer: str) -> Json:
        kind = form.get("type") if isinstance(form, dict) else None
        if kind in _REWRITTEN:
            return self._rewritten(form, kind, pointer)
        if kind not in _NESTED:
            known = ", ".join(sorted((*_NESTED, *_REWRITTEN)))
            raise BadRequest(f"unknown format {kind!r}; one of {known}", field="structural_tag", pointer=pointer)
        out = dict(form)
        for name in _NESTED[kind]:
            inner, place = form.get(name), child_pointer(pointer, name)
            if isinstance(inner, list):
                items = [_as_tag(item) if name == "tags" else item for item in inner]
                out[name] = [self._format(item, f"{place}/{index}") for index, item in enumerate(items)]
            else:
                out[name] = self._format(inner, place)
        return out

    def _rewritten(self, form: Json, kind: str, pointer: str) -> Json:
        try:
            ebnf = {"json_schema": self._schema, "regex": self._regex, "grammar": self._grammar}[kind](form)
        except GuideError as error:
            error.pointer = pointer + error.pointer
            raise
        except RegexError as error:
            raise BadRequest(str(error), field="structural_tag", pointer=pointer, keyword=error.construct) from error
        return {"type": "grammar", "grammar": ebnf}

    def _schema(self, form: Json) -> str:
        if form.get("style", "json") != "json":
            raise UnsupportedSchema(f"the style {form['style']!r} is not proved exact: use json", keyword="style")
        front = compile_schema(form.get("json_schema"), max_whitespace=self._max_whitespace, validate=self._validate, ebnf=True)
        self.rewrites += front.rewrites
        self.warnings += front.warnings
        self.dropped += front.dropped
        return front.text

    def _regex(self, form: Json) -> str:
        tree = whole_language(_text(form, "pattern"))
        return EbnfText(Grammar("start", {"start": [(Terminal(tree),)]}), 0).text()

    def _grammar(self, form: Json) -> str:
        if form.get("syntax", "ebnf") != "ebnf":
            raise UnsupportedSchema("a grammar inside a structural tag is EBNF", keyword="syntax")
        grammar = checked_ebnf(_text(form, "grammar"))
        recursive_rules(grammar)
        return ebnf_for_xgrammar(grammar)


def _text(form: Json, name: str) -> str:
    if not isinstance(form.get(name), str):
        raise BadRequest(f"{name} must be a string", field="structural_tag", keyword=name)
    return str(form[name])


def _format_of(value: Json) -> tuple[Json, str]:
    """The format in any spelling: wrapped, bare, or the older list of structures with triggers."""
    if not isinstance(value, dict):
        raise BadRequest("a structural tag is an object", field="structural_tag")
    if "structures" in value:
        return _from_structures(value), ""
    if value.get("type") == "structural_tag":
        return value.get("format"), "/format"
    return value, ""


def _from_structures(value: Json) -> Json:
    structures, triggers = value["structures"], value.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list) or not all(isinstance(s, dict) for s in structures):
        raise BadRequest("structures and triggers must be lists", field="structural_tag")
    tags = [
        {"type": "tag", "begin": entry.get("begin"), "end": entry.get("end"),
         "content": {"type": "json_schema", "json_schema": entry.get("schema", {})}}
        for entry in structures
    ]  # fmt: skip
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def _as_tag(item: Json) -> Json:
    """An entry of ``tags`` may leave its type out: it can only be a tag."""
    return {"type": "tag", **item} if isinstance(item, dict) and "type" not in item else item
