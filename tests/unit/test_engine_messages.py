"""What an engine says becomes an error in our words; its own text stays with the error as a note, for the log."""

from __future__ import annotations

import pytest

from grammar_service.engines.messages import broken, cause_of, refusal
from shared.errors import BadRequest, GrammarTooLarge, StepError, StepTimeout, Unsatisfiable, UnsupportedSchema

SAID = [
    ("NoExtensionBias <non-verbose/>", Unsatisfiable, "no text fits the grammar"),
    ("at 1(8): failed to compile JSON schema: Unsatisfiable schema: schema is false", Unsatisfiable, "(line 1, column 8)"),
    ('at 3(8): unknown name: "missing" 1 | start: missing ^', BadRequest, "missing is not defined (line 3, column 8)"),
    ("1(9): Expected token ')', found '\n'", BadRequest, "cannot read the grammar (line 1, column 9)"),
    ("parser error: Too many items (limit 200000; ff_tokens)", GrammarTooLarge, "limits"),
    ('at 1(8): invalid regex "(?=a)": look-ahead and look-behind, is not supported', UnsupportedSchema, "does not enforce"),
    ("[04:54:03] /project/cpp/x.cc:435: Check failed: (false): Repeat min must be <= max", BadRequest, "repetition ends before"),
    ("/project/cpp/y.cc:9: Token id 500000 in the grammar is out of the vocabulary range", BadRequest, "token 500000 is outside"),
    (
        "[04:54:03] /project/cpp/grammar_functor.cc:435: Internal check failed: (ids.size() >= 1) is false",
        BadRequest,
        "cannot read",
    ),
]


@pytest.mark.parametrize(("text", "kind", "part"), SAID)
def test_no_engines_words_reach_the_caller(text: str, kind: type[Exception], part: str) -> None:  # spec 9, R1
    error = refusal(text)
    assert type(error) is kind and part in error.message
    for leak in ("NoExtensionBias", "non-verbose", "/project", ".cc", "Check failed", "ff_tokens", "Unsatisfiable schema"):
        assert leak not in error.message
    assert error.__notes__ and error.__notes__[0] in " ".join(text.split())


def test_a_matcher_that_breaks_says_so_and_keeps_the_cause() -> None:  # spec 18
    error = broken("llguidance", "NoExtensionBias <non-verbose/>")
    assert type(error) is StepError and error.message == "llguidance broke: no text fits the grammar"
    assert isinstance(cause_of(error), Unsatisfiable)
    slow = broken("llguidance", "Too many items (limit 200000)", too_slow=True)
    assert type(slow) is StepTimeout and "limits" in slow.message
    assert isinstance(cause_of(slow), GrammarTooLarge)
    assert isinstance(cause_of(StepError("odd")), BadRequest)
