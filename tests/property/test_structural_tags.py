"""Structural tags mean the same on both engines: a small model of the language, random tags, random texts near the language."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from grammar_service.plan import plan_guide
from shared.errors import MaskstreamError, UnsupportedSchema
from tests.engine_probe import ByteMatcher, matcher_of, producible

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
# Contents, each with texts that are in it, and near it.
CONTENTS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"type": "json_schema", "json_schema": NUMBERS}, ['{"a":1}', '{ "a": -20 }'], ["{}", '{"a":1', ' {"a":1}', '{"a":1} ', "1"]),
    ({"type": "json_schema", "json_schema": {"type": "integer"}}, ["1", "-20"], ["", "1.5", " 1", "x"]),
    ({"type": "json_schema", "json_schema": {"enum": ["</f>", True]}}, ['"</f>"', "true"], ["</f>", "tru"]),
    ({"type": "regex", "pattern": "[ab]*"}, ["", "a", "abba"], ["c", "</"]),
    ({"type": "regex", "pattern": "a{2}|x>"}, ["aa", "x>"], ["a", "x"]),
    ({"type": "const_string", "value": "go"}, ["go"], ["g", ""]),
    ({"type": "grammar", "grammar": 'root ::= "(" [a-c]{1,2} ")"\n'}, ["(a)", "(bc)"], ["()", "(a"]),
    ({"type": "any_text"}, ["", "any <b>", "{"], []),
]
BEGINS = ["<f>", "<f=a>", "<g>", "<f", "<ff>"]
ENDS = ["</f>", ">", "\n</f>", "0", ")", "a"]
TRIGGERS = [["<f"], ["<g", "<f"], ["<f>", "<g>", "<f="], ["<"]]
FILLING = ["", " ", "ok", "<", "<f", "</f>", "é<", "\n", ">", "<f>", "0"]


def tag(begin: str, content: int, end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": CONTENTS[content][0], "end": end}


TAGS = st.builds(tag, st.sampled_from(BEGINS), st.integers(0, len(CONTENTS) - 1), st.sampled_from(ENDS))
FORMATS = st.one_of(
    TAGS,
    st.builds(
        lambda triggers, tags, at_least_one, stop: {
            "type": "triggered_tags", "triggers": triggers, "tags": tags, "at_least_one": at_least_one, "stop_after_first": stop,
        },
        st.sampled_from(TRIGGERS), st.lists(TAGS, min_size=1, max_size=3), st.booleans(), st.booleans(),
    ),
)  # fmt: skip


def planned(form: dict[str, Any], engine: str) -> Any:
    return plan_guide("structural_tag", {"type": "structural_tag", "format": form}, engine=engine, any_order=False)


@functools.lru_cache(maxsize=64)
def matchers(text: str) -> tuple[Any, Any] | None:
    form = json.loads(text)
    try:
        return ByteMatcher(planned(form, "xgrammar")), matcher_of(planned(form, "llguidance"))
    except MaskstreamError:
        return None


@st.composite
def texts(draw: st.DrawFn, form: dict[str, Any]) -> str:
    """Free text and tags, most of them right."""
    tags = form.get("tags", [form])
    free = st.just("") if "tags" not in form else st.sampled_from(FILLING)
    parts = [draw(free)]
    for chosen in draw(st.lists(st.sampled_from(tags), max_size=2 if "tags" in form else 1)):
        good, near = next((good, near) for content, good, near in CONTENTS if content == chosen["content"])
        inner = draw(st.sampled_from(good * 3 + near))
        parts += [chosen["begin"], inner, chosen["end"], draw(free)]
    return "".join(parts)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data(), form=FORMATS)
def test_both_engines_accept_the_same_texts(data: st.DataObject, form: dict[str, Any]) -> None:  # spec R1, R2, R3, 11, 12
    pair = matchers(json.dumps(form))
    event("refused by one" if pair is None else "enforced by both")
    if pair is None:
        return
    xgrammar, llguidance = pair
    for text in data.draw(st.lists(texts(form), min_size=3, max_size=6)):
        accepted = xgrammar.produces(text)
        event("in the language" if accepted else "not in the language")
        assert accepted == producible(llguidance, text), text


def language(triggers: list[str], begin: str, contents: list[str], end: str, text: str) -> bool:
    """Straight from the words of the documentation, for one tag without at_least_one or stop_after_first."""
    at = min((found for trigger in triggers if (found := text.find(trigger)) >= 0), default=-1)
    if at < 0:
        return True
    wholes = [begin + inner + end for inner in contents]
    return any(text.startswith(whole, at) and language(triggers, begin, contents, end, text[at + len(whole) :]) for whole in wholes)


@settings(max_examples=150, deadline=None)
@given(parts=st.lists(st.sampled_from(["<f>aa</f>", "<f>x></f>", "<f", "<f>", "aa", "x>", "</f>", "<", "f", "é"]), max_size=7))
@pytest.mark.parametrize("engine", ["xgrammar", "llguidance"])
def test_triggered_tags_are_what_they_are_said_to_be(engine: str, parts: list[str]) -> None:  # spec 11, R1
    form = {"type": "triggered_tags", "triggers": ["<f"], "tags": [tag("<f>", 4, "</f>")]}
    text = "".join(parts)
    pair = matchers(json.dumps(form))
    assert pair is not None
    accepted = pair[0].produces(text) if engine == "xgrammar" else producible(pair[1], text)
    assert accepted == language(["<f"], "<f>", ["aa", "x>"], "</f>", text)


def test_most_formats_are_enforced_by_both() -> None:  # spec R3
    """The comparison above compares something: what llguidance refuses is named."""
    both, refused = 0, set()
    for begin in BEGINS[:3]:
        for content in range(len(CONTENTS)):
            for end in ENDS:
                form = {"type": "triggered_tags", "triggers": [begin[:2]], "tags": [tag(begin, content, end)]}
                try:
                    planned(form, "llguidance")
                    both += 1
                except UnsupportedSchema as error:
                    assert error.pointer == "/format/tags/0/content" and error.keyword
                    refused.add((error.keyword, content, end))
    assert both >= 3 * 35
    # A number may go on with a digit, ab* with an a; nothing else is ambiguous here.
    assert refused == {("end", 0, "0"), ("end", 1, "0"), ("end", 2, "0"), ("end", 3, "a")}


@pytest.mark.parametrize(
    ("form", "pointer", "keyword"),
    [
        ({"type": "sequence", "elements": [tag("<f>", 3, ">")]}, "/format", "type"),
        (
            {"type": "triggered_tags", "triggers": ["<f"], "tags": [tag("<f>", 5, ">")], "excludes": ["x"]},
            "/format", "excludes",
        ),
        (
            {"type": "triggered_tags", "triggers": ["<f", "<"], "tags": [tag("<f>", 5, ">"), tag("<g", 5, ">")]},
            "/format/triggers", "triggers",
        ),
        ({"type": "triggered_tags", "triggers": ["<f"], "tags": [tag("<f", 5, ">"), tag("<f>", 5, ">")]}, "/format/tags", "begin"),
        (
            {"type": "triggered_tags", "triggers": ["<f"], "tags": [{**tag("<f>", 5, ">"), "end": ["a", "b"]}]},
            "/format/tags/0", "end",
        ),
    ],
)  # fmt: skip
def test_what_llguidance_cannot_say_goes_to_xgrammar(form: dict[str, Any], pointer: str, keyword: str) -> None:  # spec R1, R3
    with pytest.raises(UnsupportedSchema) as caught:
        planned(form, "llguidance")
    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)
    assert planned(form, "auto").engine == "xgrammar"


def test_the_engine_that_is_faster_is_chosen() -> None:  # spec R2
    assert planned(tag("<f>", 0, "</f>"), "auto").engine == "llguidance"
    assert planned(tag("<f>", 0, "</f>"), "xgrammar").engine == "xgrammar"
