"""The error tree: one root, codes on the wire and back, and a docstring that tells the truth."""

import pytest

from shared import errors
from shared.errors import BY_CODE, BadRequest, GuideError, MaskstreamError, StepError, TooLarge, UnsupportedSchema, from_wire
from shared.protocol import MAX_REASON_CHARS, WireError

CODES = {
    "bad_request", "unsupported_schema", "grammar_too_large", "compile_timeout", "compile_crashed", "step_timeout", "dead_end",
    "overloaded", "cancelled", "deadline", "worker_lost", "protocol_version", "too_large", "unauthorised", "internal",
    "unsatisfiable", "no_allowed_token", "config",
}  # fmt: skip
CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, MaskstreamError)]


def test_every_code_has_a_class():
    assert set(BY_CODE) == CODES


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_tree_in_the_docstring(cls):
    line = next(line for line in errors.__doc__.splitlines() if cls.__name__ in line.replace("─", " ").split())
    assert "(branch)" in line or cls.code in line.split()


@pytest.mark.parametrize("code", sorted(CODES))
def test_there_and_back(code):
    error = from_wire(code, "why", field="f", pointer="/a", keyword="k")
    wire = WireError.of(error)
    assert (wire.code, wire.message, wire.field, wire.pointer, wire.keyword) == (code, "why", "f", "/a", "k")
    assert type(wire.exception()) is type(error)
    assert isinstance(error, BY_CODE[code])


def test_branches_can_be_caught():
    assert issubclass(TooLarge, BadRequest)
    assert isinstance(from_wire("unsupported_schema", ""), GuideError)
    assert isinstance(from_wire("dead_end", ""), StepError)
    assert type(from_wire("bad_request", "")) is BadRequest
    assert type(from_wire("internal", "")) is MaskstreamError


def test_an_unknown_code_is_kept():
    error = from_wire("from_the_future", "why")
    assert type(error) is MaskstreamError
    assert "from_the_future" in error.message


def test_text_says_where():
    error = UnsupportedSchema("neither engine enforces it", field="response_format", pointer="/not", keyword="not")
    assert str(error) == "unsupported_schema: response_format #/not not: neither engine enforces it"
    assert str(MaskstreamError("why")) == "internal: why"


def test_long_texts_are_cut_on_the_wire():
    wire = WireError.of(BadRequest("x" * 10_000, pointer="/a" * 10_000))
    assert len(wire.message) == len(wire.pointer) == MAX_REASON_CHARS
