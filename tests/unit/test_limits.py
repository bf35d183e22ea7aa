"""Limits before any engine: each refuses what is over it and lets through what is not."""

from __future__ import annotations

import json
import time
from typing import get_args, get_type_hints

import pytest

from grammar_service.config import PREFIX, GrammarSettings, guide_limits
from grammar_service.limits import DEFAULTS, GuideLimits, check, is_trivially_safe
from shared.config import load
from shared.errors import GrammarTooLarge
from shared.guide import Guide

SMALL = GuideLimits(
    schema_bytes=400, regex_bytes=100, grammar_bytes=200, json_depth=5, json_nodes=20, members=6, entries=19, string_bytes=350,
    rules=3, nesting=3, repeat=100,
    repeat_product=1_000, choices=3, choice_bytes=100,
)  # fmt: skip


def refused(kind: str, text: str, limits: GuideLimits = SMALL) -> bool:
    try:
        check(Guide(kind=kind, text=text), limits)  # type: ignore[arg-type]
    except GrammarTooLarge:
        return True
    return False


@pytest.mark.parametrize(
    ("kind", "inside", "over"),
    [
        ("json_schema", json.dumps({"a": "x" * 300}), json.dumps({"a": "x" * 500})),
        ("json_schema", "[" * 5 + "]" * 5, "[" * 6 + "]" * 6),
        ("json_schema", json.dumps({"a": "[[[[[[[[{{{{{{"}), '{"a":{"a":{"a":{"a":{"a":{}}}}}}'),
        ("json_schema", json.dumps(list(range(18))), json.dumps(list(range(30)))),
        ("json_schema", json.dumps(["," * 50]), "[" + "1," * 30 + "1]"),
        ("structural_tag", "{}", "[" * 6),
        ("json_schema", json.dumps(dict.fromkeys("abcdef", 1)), json.dumps(dict.fromkeys("abcdefg", 1))),
        ("json_schema", '[{"a":[1,2],"b":[1,2],"c":{},"d":1}]', json.dumps([{"x": dict.fromkeys("abcdefg")}])),
        ("json_schema", "[[],[],[1,2],{}]", json.dumps(list(range(20)))),
        ("json_schema", json.dumps("x" * 340), json.dumps("x" * 360)),
        ("regex", "a" * 100, "a" * 101),
        ("regex", "a{100}", "a{101}"),
        ("regex", "a{2,100}", "a{2,999999999999999999}"),
        ("regex", "(a{10}b){100}", "(a{10}b{11}){100}"),
        ("regex", "((a{10}){10}){10}", "((a{10}){10}){11}"),
        ("regex", "[{}(){101}]{2}", "[a]{101}"),
        ("regex", r"\{101\}(\((a))", "((((a))))"),
        ("ebnf", 'root ::= (("a"))', 'root ::= (((("a"))))'),
        ("ebnf", 'root ::= "((((" [((((]', 'root ::= (((( "a" ))))'),
        ("ebnf", "a ::= b\nb ::= c\nc ::= d", "a ::= b\nb ::= c\nc ::= d\nd ::= e"),
        ("lark", "a: b\nb: c\nc: d", "a: b\nb: c\nc: d\nd: e"),
        ("ebnf", "#" + "x" * 199, "#" + "x" * 200),
        ("choice", '["a","b","c"]', '["a","b","c","d"]'),
        ("choice", json.dumps(["x" * 90]), json.dumps(["x" * 120])),
    ],
)
def test_each_limit(kind: str, inside: str, over: str) -> None:
    assert not refused(kind, inside)
    assert refused(kind, over)


def test_the_defaults_let_ordinary_guides_through() -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string", "maxLength": 100_000} for n in range(400)}}
    for kind, text in (
        ("json_schema", json.dumps(schema)),
        ("regex", r"\w{1,64}@\w{1,63}\.com"),
        ("regex", ".{1,100000}"),
        ("choice", json.dumps([f"k{n}" for n in range(5_000)])),
        ("ebnf", "\n".join(f'r{n} ::= "a" r{n + 1}' for n in range(1_999))),
        ("json", ""),
        ("json_object", ""),
    ):
        assert not refused(kind, text, DEFAULTS), (kind, text[:40])


@pytest.mark.parametrize("kind", ["json_schema", "regex", "ebnf", "choice"])
@pytest.mark.parametrize("pattern", ["[", "(", '"', "\\", "{", "a", '"\\', "(a{2}", "::="])
def test_the_scan_is_linear(kind: str, pattern: str) -> None:
    text = pattern * (200_000 // len(pattern))
    started = time.monotonic()
    refused(kind, text, DEFAULTS._replace(regex_bytes=1 << 20, grammar_bytes=1 << 20))
    assert time.monotonic() - started < 5  # 0.1 s alone


def test_each_limit_is_a_setting_that_says_what_it_costs() -> None:
    hints = get_type_hints(GrammarSettings, include_extras=True)
    for name in GuideLimits._fields:
        (meta,) = get_args(hints[f"guide_{name}"])[1:]
        assert ";" in meta.description or "," in meta.description, name
    assert guide_limits(GrammarSettings()) == DEFAULTS
    settings = load(GrammarSettings, PREFIX, ["--guide-rules", "7"], environment={"MASKSTREAM_GRAMMAR_GUIDE_JSON_DEPTH": "9"})
    assert guide_limits(settings) == DEFAULTS._replace(rules=7, json_depth=9)


def test_only_fixed_guides_and_short_lists_need_no_child() -> None:
    assert is_trivially_safe(Guide(kind="json"))
    assert is_trivially_safe(Guide(kind="json_object"))
    assert is_trivially_safe(Guide(kind="choice", text='["a"]'))
    assert not is_trivially_safe(Guide(kind="choice", text=json.dumps(["a" * 5_000])))
    assert not is_trivially_safe(Guide(kind="regex", text="a"))
    assert not is_trivially_safe(Guide(kind="json_schema", text="{}"))
