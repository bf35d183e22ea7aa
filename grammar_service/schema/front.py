"""The whole way of a JSON Schema: document, solver, grammar, Lark text."""

from __future__ import annotations

from typing import Any

import msgspec

from grammar_service.schema.document import Document
from grammar_service.schema.ebnf_text import EbnfText
from grammar_service.schema.expr import Node
from grammar_service.schema.lark_text import LarkText
from grammar_service.schema.solver import Solver
from grammar_service.schema.writer import GrammarWriter
from shared.errors import GrammarTooLarge, Unsatisfiable


class Front(msgspec.Struct, frozen=True, kw_only=True):
    """The grammar's text and what is to be said about it."""

    text: str
    rewrites: list[str]
    warnings: list[str]
    dropped: list[str]


def compile_schema(
    schema: Any, *, max_whitespace: int = 8, validate: bool = False, any_order: bool = True, ebnf: bool = False
) -> Front:
    """Lark text for llguidance, or with ``ebnf`` EBNF for xgrammar. Raises BadRequest, UnsupportedSchema,
    Unsatisfiable, GrammarTooLarge."""
    solver = Solver(Document(schema), validate=validate)
    try:
        grammar = GrammarWriter(solver, any_order=any_order and not ebnf).write(Node("")).pruned()
    except RecursionError as error:
        raise GrammarTooLarge("the schema refers to itself too deeply in place", keyword="$ref") from error
    if grammar is None and solver.cut:
        raise GrammarTooLarge("nothing is left of the schema once it is cut to what can be written: write fewer alternatives of it")
    if grammar is None:
        raise Unsatisfiable("no finite JSON value fits the schema", pointer="", keyword="")
    text = (EbnfText if ebnf else LarkText)(grammar, max_whitespace).text()
    return Front(text=text, rewrites=list(solver.rewrites), warnings=list(solver.warnings), dropped=list(solver.dropped))
