"""Lark guides before the engine reads them: what is certainly wrong is said, what this reader does not know passes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_service.lark_check import check_lark
from grammar_service.plan import plan_guide
from shared.errors import BadRequest, MaskstreamError, Unsatisfiable
from tests.engine_probe import matcher_of

GOOD = [
    'start: "a" | b\nb: "b" start',
    'start: A+ "x"~2..3 [B] (C | "c")?\nA: /[a-z]/\nB: "b"i\nC: "a".."z"',
    "%import common.INT\n%import common (WS, DIGIT)\nstart: INT WS DIGIT",
    'start[max_tokens=3]: /.*/ "}{" // a comment with words\n',
    'start: x::0\nx::_ : "a" x::incr(_) %if lt(_, 3) | "b"',
    'start: %json {"properties": {"a": {"const": "}"}}} end\nend: "e"',
    '%llguidance {"ignore_once": true}\n%ignore /[ \\t]{1,3}/\nstart: "a" -> alias\n',
    "start: <|im_start|> <[12]> @other",
    'start: a\na: b\nb: c "x"? | "y"\nc: "z" start | "w"',
    "start: A\nA: ~(/(?s:.*)/)",
    "this is no grammar at all {{{",
]


@pytest.mark.parametrize("text", GOOD)
def test_what_may_be_right_passes(text: str) -> None:  # spec R1
    if text.startswith("this"):
        check_lark('start: "a" {' + text)  # unreadable: the engine says where
        return
    check_lark(text)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no rule `start`"), ('strt: "a"', "no rule `start`"), ("start: missing", "'missing', used in 'start', is not defined"),
        ('start: a\na: "x" | A\n', "'A', used in 'a'"), ('start: "a"\n\nstart: "b"', "defined twice (line 3)"),
        ('start: A\nA: "x" B\nB: A?', "refers to itself"), ('start: "a"\nunused: gone', "'gone'"),
    ],
)  # fmt: skip
def test_names_are_checked(text: str, part: str) -> None:  # spec R1
    with pytest.raises(BadRequest) as caught:
        check_lark(text)
    assert part in caught.value.message
    assert caught.value.field == "lark"


@pytest.mark.parametrize(
    "text",
    [
        'start: "a" start',
        "start: b\nb: start",
        'start: (b | c)\nb: b "a"\nc: "x" b',
        "start: b+\nb: b",
        'start: b{2}\nb: "a" b | b',
    ],
)
def test_a_rule_that_never_ends_is_refused(text: str) -> None:  # spec R1
    with pytest.raises(Unsatisfiable) as caught:
        plan_guide("lark", text)
    assert (caught.value.field, caught.value.keyword) == ("lark", "start")


def test_a_long_chain_of_rules_takes_no_time() -> None:
    for order in (range(1999), reversed(range(1999))):
        check_lark("start: r0\n" + "\n".join(f'r{i}: "x" r{i + 1}' for i in order) + '\nr1999: "y"\n')


SYMBOLS = st.sampled_from(['"x"', "/[a-c]/", "start", "ra", "rb", "ra?", "rb*", "(ra | rb)", '("y" ra)+', "[rb]", "ra{0,2}"])
BODIES = st.lists(st.lists(SYMBOLS, min_size=1, max_size=3).map(" ".join), min_size=1, max_size=3).map(" | ".join)


def writable(bodies: dict[str, str]) -> set[str]:
    """The names that have a finite text, by trying: whatever is known is a letter, the rest nothing can match."""
    import re

    known: set[str] = set()
    for _ in range(len(bodies) + 1):
        for name, body in bodies.items():
            pattern = re.sub(r"\[(r\w|start)\]", r"(\1)?", body).replace("/[a-c]/", "x").replace('"', "").replace(" ", "")
            pattern = pattern.replace("start", "<start>").replace("ra", "<ra>").replace("rb", "<rb>")
            for other in bodies:
                pattern = pattern.replace(f"<{other}>", "x" if other in known else r"[^\s\S]")
            if any(re.fullmatch(pattern, text) for text in texts()):
                known.add(name)
    return known


def texts() -> list[str]:
    from itertools import product

    return ["".join(letters) for size in range(8) for letters in product("xy", repeat=size)]


@settings(max_examples=60, deadline=None)
@given(start=BODIES, ra=BODIES, rb=BODIES)
def test_the_reader_agrees_with_trying(start: str, ra: str, rb: str) -> None:  # spec R1
    bodies = {"start": start, "ra": ra, "rb": rb}
    text = "\n".join(f"{name}: {body}" for name, body in bodies.items())
    try:
        check_lark(text)
        refused = False
    except Unsatisfiable:
        refused = True
    assert refused == ("start" not in writable(bodies))


def test_what_passes_is_still_the_engines_to_judge() -> None:  # spec 9, R1
    with pytest.raises(AssertionError, match="refused"):
        matcher_of(plan_guide("lark", "start: /a(/"))


def test_lark_runs_on_one_engine() -> None:  # spec R2
    with pytest.raises(MaskstreamError) as caught:
        plan_guide("lark", 'start: "a"', engine="xgrammar")
    assert caught.value.field == "engine"
