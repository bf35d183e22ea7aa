"""How a guide is enforced: which engine, fed with what text, under which options; or the refusal, by name.

Pure: no engine is imported here. ``plan_guide`` is the one entry; everything else serves one kind of guide.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from grammar_service.ebnf import checked_ebnf, ebnf_for_llguidance, ebnf_for_xgrammar, recursive_rules
from grammar_service.lark_check import check_lark
from grammar_service.regex_language import is_empty
from grammar_service.regex_print import to_lark, to_rust
from grammar_service.regex_resolve import whole_language
from grammar_service.regex_syntax import RegexError
from grammar_service.regex_tree import Tree, alt, is_plain, literal
from grammar_service.schema.ebnf_text import EbnfText
from grammar_service.schema.front import compile_schema
from grammar_service.schema.grammar import Grammar, Terminal
from grammar_service.schema.reader import read_json
from grammar_service.structural_tag import TagWriter
from grammar_service.tag_lark import TagLark
from shared.errors import BadRequest, GrammarTooLarge, Unsatisfiable, UnsupportedSchema

Engine = Literal["xgrammar", "llguidance"]
Feed = Literal["json_schema", "lark", "regex", "ebnf", "structural_tag"]
MAX_CHOICES = 5_000


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """``kind`` says how the engine takes ``text``; ``options`` go with it (``max_whitespace``).

    ``warnings`` tell what is narrower than the guide; ``rewrites`` name the rewrites applied; ``dropped`` the keywords that
    only a check of the finished text enforces (then ``validate_after`` is true).
    """

    engine: Engine
    kind: Feed
    text: str
    options: dict[str, Any] = {}
    warnings: list[str] = []
    rewrites: list[str] = []
    dropped: list[str] = []
    validate_after: bool = False


def plan_guide(
    kind: str,
    guide_value: Any = None,
    *,
    engine: str = "auto",
    max_whitespace: int = 8,
    on_unsupported: str = "refuse",
    any_order: bool = True,
) -> Plan:
    """The plan for one guide. ``guide_value`` is text, or a JSON value where the kind takes JSON.
    ``any_order`` lets an object's properties come in any order; without it they come in the order of the schema.

    Raises BadRequest (malformed), UnsupportedSchema (no engine enforces it; pointer and keyword name the place),
    Unsatisfiable (no finite text fits) and GrammarTooLarge.
    """
    if engine not in ("auto", "xgrammar", "llguidance"):
        raise BadRequest(f"unknown engine {engine!r}: one of auto, xgrammar, llguidance", field="engine")
    if "\x00" in guide_value if isinstance(guide_value, str) else False:
        raise BadRequest("NUL is not allowed in a guide", field="guide")
    match kind:
        case "json" | "json_object":
            return _plan_schema({} if kind == "json" else {"type": "object"}, engine, max_whitespace, on_unsupported, any_order)
        case "json_schema":
            return _plan_schema(_json_value(guide_value), engine, max_whitespace, on_unsupported, any_order)
        case "regex":
            return _plan_regex(_text(guide_value, kind), engine)
        case "choice":
            return _plan_choice(_json_value(guide_value), engine)
        case "ebnf":
            return _plan_ebnf(_text(guide_value, kind), engine)
        case "lark":
            return _plan_lark(_text(guide_value, kind), engine)
        case "structural_tag":
            return _plan_tag(_json_value(guide_value), engine, max_whitespace, on_unsupported, any_order)
    raise BadRequest(f"unknown guide kind {kind!r}", field="kind")


def _json_value(guide_value: Any) -> Any:
    return read_json(guide_value if isinstance(guide_value, str) else json.dumps(guide_value))


def _text(guide_value: Any, kind: str) -> str:
    if not isinstance(guide_value, str):
        raise BadRequest(f"a {kind} guide is a text", field="guide")
    return guide_value


def _plan_lark(text: str, engine: str) -> Plan:
    if engine == "xgrammar":
        raise BadRequest("lark guides run on llguidance only", field="engine")
    check_lark(text)
    return Plan(engine="llguidance", kind="lark", text=text)


def _plan_ebnf(text: str, engine: str) -> Plan:
    grammar = checked_ebnf(text)
    if engine == "llguidance":
        return Plan(engine="llguidance", kind="lark", text=ebnf_for_llguidance(grammar), rewrites=["EBNF as Lark"])
    recursive_rules(grammar)  # refuses chains that crash the engine
    return Plan(engine="xgrammar", kind="ebnf", text=ebnf_for_xgrammar(grammar), rewrites=["root rule wrapped"])


def _plan_tag(value: Any, engine: str, max_whitespace: int, on_unsupported: str, any_order: bool) -> Plan:
    """llguidance where it can: its rows take 2 ms at most where xgrammar's take 50, and its free text holds no special token."""
    validate = on_unsupported == "validate"
    if engine != "xgrammar":
        lark = TagLark(max_whitespace=max_whitespace, validate=validate, any_order=any_order)
        try:
            return _tag_plan(Plan(engine="llguidance", kind="lark", text=lark.text(value)), lark)
        except UnsupportedSchema:
            if engine == "llguidance":
                raise
    writer = TagWriter(max_whitespace=max_whitespace, validate=validate)
    return _tag_plan(Plan(engine="xgrammar", kind="structural_tag", text=writer.text(value)), writer)


def _tag_plan(plan: Plan, writer: TagWriter | TagLark) -> Plan:
    return msgspec.structs.replace(
        plan, rewrites=writer.rewrites, warnings=writer.warnings, dropped=writer.dropped, validate_after=bool(writer.dropped)
    )


def _plan_schema(schema: Any, engine: str, max_whitespace: int, on_unsupported: str, any_order: bool) -> Plan:
    ebnf = engine == "xgrammar"
    front = compile_schema(
        schema, max_whitespace=max_whitespace, validate=on_unsupported == "validate", any_order=any_order, ebnf=ebnf
    )
    return Plan(
        engine="xgrammar" if ebnf else "llguidance", kind="ebnf" if ebnf else "lark", text=front.text,
        options={"max_whitespace": max_whitespace},
        warnings=front.warnings, rewrites=front.rewrites, dropped=front.dropped, validate_after=bool(front.dropped),
    )  # fmt: skip


def _plan_regex(text: str, engine: str) -> Plan:
    try:
        tree = whole_language(text)
    except RegexError as error:
        if error.construct:
            raise UnsupportedSchema(str(error), keyword=error.construct) from error
        raise BadRequest(str(error), field="regex") from error
    if is_empty(tree) is True:
        raise Unsatisfiable("no text fits the pattern", field="regex")
    return _plan_tree(tree, engine)


def _plan_tree(tree: Tree, engine: str) -> Plan:
    if engine == "xgrammar":
        grammar = Grammar("start", {"start": [(Terminal(tree),)]})
        return Plan(engine="xgrammar", kind="ebnf", text=EbnfText(grammar, 0).text())
    if is_plain(tree):
        return Plan(engine="llguidance", kind="regex", text=to_rust(tree))
    return Plan(engine="llguidance", kind="lark", text=f"start: TEXT\nTEXT: {to_lark(tree)}\n")


def _plan_choice(choices: Any, engine: str) -> Plan:
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise BadRequest("a choice guide is a list of strings", field="choice")
    if not choices:
        raise Unsatisfiable("the list of choices is empty", keyword="choice")
    if len(choices) > MAX_CHOICES:
        raise GrammarTooLarge(f"more than {MAX_CHOICES} choices", keyword="choice")
    return _plan_tree(alt(*(literal(choice) for choice in choices)), engine)
