"""The validator's process: the same verdicts as the validator, and a schema that would take years is given up."""

from __future__ import annotations

import pytest

from gpu_worker.validator_process import ValidatorLost, ValidatorProcess
from shared.guide import Guide, make_guide


def explosive(levels: int) -> Guide:
    """Each level asks twice for the next: a validator that does not remember takes 2 ** levels."""
    definitions: dict[str, object] = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(levels)}
    definitions[f"d{levels}"] = {"type": "integer"}
    return make_guide("json_schema", {"$ref": "#/$defs/d0", "$defs": definitions})


# spec R26
def test_verdicts_and_a_question_that_is_given_up() -> None:
    process = ValidatorProcess(patience_s=10.0)
    schema = make_guide("json_schema", {"type": "integer", "minimum": 3})
    try:
        assert process.is_valid(schema, "4") is True
        assert process.is_valid(schema, "2") is False
        assert process.is_valid(make_guide("regex", "a+"), "aaa") is True
        assert process.is_valid(make_guide("ebnf", 'root ::= "a"'), "a") is None
        with pytest.raises(ValidatorLost):
            process.is_valid(make_guide("json_schema", {"$ref": "http://example.com/x.json"}), "1")
        process._patience_s = 1.0
        with pytest.raises(ValidatorLost, match="more than 1 s"):
            process.is_valid(explosive(60), "4")
        process._patience_s = 10.0
        assert process.is_valid(schema, "4") is True, "a new child answers the next question"
    finally:
        process.close()
