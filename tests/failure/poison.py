"""Guides that slow, exhaust or kill an engine, as data: each was seen to do so with one of the two engines at 128k tokens."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Poison(NamedTuple):
    """``may_pass``: it is enforced where the engine is chosen well, and its rows are then within the step budget."""

    name: str
    kind: str
    text: str
    may_pass: bool = True


def _schema(name: str, value: Any, *, may_pass: bool = True) -> Poison:
    return Poison(name, "json_schema", json.dumps(value, separators=(",", ":")), may_pass)


def _one_of(depth: int) -> dict[str, Any]:
    if depth == 0:
        return {"type": "integer"}
    return {"oneOf": [
        {"type": "object", "properties": {side: _one_of(depth - 1)}, "required": [side], "additionalProperties": False}
        for side in ("l", "r")
    ]}  # fmt: skip


def _nested(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def _chain(first: str, link: str, last: str, length: int) -> str:
    return "\n".join([first, *(link.format(n=n, m=n + 1) for n in range(length)), last])


_ENUM = [f"value number {n}" for n in range(1_000)]
CORPUS = [
    Poison("bounded-any", "regex", ".{1,100}"),
    Poison("bounded-any-long", "regex", ".{1,1000}"),
    Poison("bounded-any-huge", "regex", ".{1,100000}"),
    Poison("stars", "regex", ".*(.*.*){5}x"),
    Poison("many-stars", "regex", ".*(.*.*){50}x"),
    Poison("nested-counts", "regex", "((a{1,20}){1,20}){1,20}"),
    Poison("nested-counts-huge", "regex", "((a{1,100}){1,100}){1,100}"),
    Poison("mail", "regex", r"\w{1,64}@\w{1,63}\.com"),
    Poison("long-count", "regex", "a{1000000}", may_pass=False),
    Poison("many-alternatives", "regex", "|".join(f".*{n}.*" for n in range(1_000))),
    Poison("deep-groups", "regex", "(" * 5_000 + "a" + ")" * 5_000, may_pass=False),
    Poison("unclosed-class", "regex", "[a", may_pass=False),
    Poison("look-ahead", "regex", "(?=a)ab"),
    Poison("back-reference", "regex", r"(a)\1", may_pass=False),
    Poison("open-brackets", "ebnf", "root ::= " + "(" * 30_000, may_pass=False),
    Poison("deep-brackets", "ebnf", "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000, may_pass=False),
    Poison("rule-chain", "ebnf", _chain("root ::= r0", "r{n} ::= r{m}", 'r3000 ::= "a"', 3_000), may_pass=False),
    Poison("rule-chain-lark", "lark", _chain("start: r0", "r{n}: r{m}", 'r3000: "a"', 3_000), may_pass=False),
    Poison("optional-rules", "ebnf", _chain("root ::= r0", 'r{n} ::= "x"? r{m}', 'r1000 ::= "a"', 1_000)),
    Poison("self-rule", "ebnf", "root ::= root", may_pass=False),
    Poison("nothing", "regex", r"[^\s\S]", may_pass=False),
    Poison("ambiguous", "ebnf", 'root ::= root root root | "a" | ""'),
    Poison("star-of-star", "ebnf", 'root ::= ("a"*)*'),
    _schema("optional-300", {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(300)}}),
    _schema("optional-3000", {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(3_000)}}),
    _schema("enum-refs", {
        "$defs": {"e": {"enum": _ENUM}}, "type": "object", "properties": {f"p{n}": {"$ref": "#/$defs/e"} for n in range(8)},
    }),
    _schema("const-100k", {"const": "a" * 100_000}),
    _schema("pattern-129", {"type": "string", "pattern": "^[^\\n\\r]{1,129}$"}),
    _schema("one-of-12", _one_of(8)),
    _schema("deep-200", _nested(200), may_pass=False),
    _schema("self-ref", {"$ref": "#"}, may_pass=False),
    _schema("ref-loop", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, may_pass=False),
    _schema("empty-enum", {"enum": []}, may_pass=False),
    _schema("false", False, may_pass=False),
    _schema("bogus-type", {"type": "not-a-type"}, may_pass=False),
    _schema("bad-pattern", {"type": "string", "pattern": "("}, may_pass=False),
    Poison("lone-surrogate", "json_schema", '{"const":"\\ud800"}'),
    Poison("not-json", "json_schema", "nope", may_pass=False),
]  # fmt: skip
