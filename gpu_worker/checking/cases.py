"""A file of cases: one guide a line, with texts that must and must not be producible under it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from shared.errors import ConfigError
from shared.guide import Guide, make_guide

_JSON_TEXT = ("json_schema", "structural_tag")


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``guide`` is the value as a request carries it (its JSON text is kept as written). ``must_refuse``: admission must answer
    with a clear error; ``may_refuse``: enforce exactly or refuse by name. ``generate`` builds a guide too large to write down."""

    id: str
    kind: str
    guide: msgspec.Raw = msgspec.Raw(b"null")
    accept: list[str] = []
    reject: list[str] = []
    must_refuse: bool = False
    may_refuse: bool = False
    note: str = ""
    generate: str = ""
    engine: str = "auto"

    def make_guide(self) -> Guide:
        """Raises BadRequest where the guide is malformed: that is a refusal at admission."""
        raw = bytes(self.guide).decode()
        value: Any = generated(self.generate) if self.generate else raw if self.kind in _JSON_TEXT else json.loads(raw)
        return make_guide(self.kind, value, engine=self.engine)


def read_cases(file: Path) -> list[Case]:
    """Raises ConfigError naming the file and the line."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}", field="file") from error
    return [_case(line, f"{file}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def _case(line: bytes, where: str) -> Case:
    try:
        case = msgspec.json.decode(line, type=Case)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where}: {error}", field="file") from error
    if case.generate and case.generate.rpartition(":")[0] not in _GENERATORS:
        raise ConfigError(f"{where}: generate has value {case.generate!r}; one of {', '.join(_GENERATORS)}", field="file")
    return case


def generated(spec: str) -> str:
    """JSON text of a schema too large to write down, for example ``nest:array:800``."""
    name, _, number = spec.rpartition(":")
    return _GENERATORS[name](int(number))


def _nested(before: str, after: str) -> Callable[[int], str]:
    return lambda depth: before * depth + '{"type":"integer"}' + after * depth


def _optional(count: int) -> str:
    return json.dumps({"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(count)}})


_GENERATORS: dict[str, Callable[[int], str]] = {
    "nest:array": _nested('{"type":"array","items":', "}"),
    "nest:object": _nested('{"type":"object","properties":{"a":', "}}"),
    "const": lambda length: json.dumps({"const": "a" * length}),
    "optional": _optional,
    "enum": lambda count: json.dumps({"enum": [f"k{i}" for i in range(count)]}),
}
