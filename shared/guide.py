"""A guide: what constrains one request. Kinds, options, request spellings, canonical form and key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal

import msgspec

from shared.decoding import refusal
from shared.errors import BadRequest, GuideError, MaskstreamError

GuideKind = Literal["json", "json_object", "json_schema", "regex", "choice", "ebnf", "lark", "structural_tag"]
KINDS: tuple[str, ...] = GuideKind.__args__  # type: ignore[attr-defined]
EngineChoice = Literal["auto", "xgrammar", "llguidance"]

MAX_GUIDE_BYTES = 256 * 1024
_JSON_KINDS = ("json_schema", "structural_tag", "choice")
_TEXTLESS = ("json", "json_object")


class Guide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``text`` is JSON text for json_schema, structural_tag and choice (a list of strings), the grammar's own text for regex,
    ebnf and lark, empty for json and json_object. The options are part of the key: they change the language.
    ``property_order``: whether an object's properties may come in any order, or only in the schema's."""

    kind: GuideKind
    text: Annotated[str, msgspec.Meta(max_length=MAX_GUIDE_BYTES)] = ""
    engine: EngineChoice = "auto"
    max_whitespace: Annotated[int, msgspec.Meta(ge=0, le=64)] = 8
    on_unsupported: Literal["refuse", "validate"] = "refuse"
    after_guide: Literal["stop", "free"] = "stop"
    property_order: Literal["any", "schema"] = "any"


_OPTION_FIELDS = ("engine", "max_whitespace", "on_unsupported", "after_guide", "property_order")
# vLLM's structured_outputs.json means a JSON schema; its grammar means EBNF.
_STRUCTURED_OUTPUTS: dict[str, str] = {
    "json": "json_schema", "json_object": "json_object", "regex": "regex", "choice": "choice", "grammar": "ebnf",
    "ebnf": "ebnf", "lark": "lark", "structural_tag": "structural_tag", "json_schema": "json_schema", "any_json": "json",
}  # fmt: skip
_SWITCHES = ("json_object", "any_json")  # false means "not asked for"; a json of false is the schema that nothing fits
_RESPONSE_FORMAT: dict[str, tuple[str, str]] = {
    "json_object": ("json_object", ""), "json": ("json", ""), "json_schema": ("json_schema", "json_schema"),
    "regex": ("regex", "pattern"), "ebnf": ("ebnf", "grammar"), "lark": ("lark", "grammar"), "choice": ("choice", "choice"),
    "structural_tag": ("structural_tag", "structural_tag"), "text": ("", ""),
}  # fmt: skip


def guide_from_request(response_format: Mapping[str, Any] | None, structured_outputs: Mapping[str, Any] | None) -> Guide | None:
    """The one guide of a request, or None. Raises BadRequest naming the field where there are several or one is malformed."""
    first = from_response_format(response_format) if response_format else None
    second = from_structured_outputs(structured_outputs) if structured_outputs else None
    if first is not None and second is not None:
        raise BadRequest("2 guides given (response_format and structured_outputs): exactly one is allowed", field="response_format")
    return first or second


def guide_field(response_format: Mapping[str, Any] | None, structured_outputs: Mapping[str, Any] | None) -> str:
    """Where a request has its guide, for what is found wrong with it later."""
    asked = from_response_format(response_format) if response_format else None
    given = [name for name, value in (structured_outputs or {}).items() if name in _STRUCTURED_OUTPUTS and value is not None]
    return f"structured_outputs.{given[0]}" if given and asked is None else "response_format"


def blamed(error: MaskstreamError, field: str) -> MaskstreamError:
    """An error about a guide, told about the request's ``field`` where it names no other."""
    if isinstance(error, BadRequest | GuideError) and (error.field in ("", "guide") or error.field in KINDS):
        error.field = field
    return error


def from_structured_outputs(spec: Mapping[str, Any]) -> Guide | None:
    """vLLM's spelling: one of json, json_object, regex, choice, ... beside options such as ``engine``. None if none is given."""
    options = {name: value for name, value in spec.items() if name in _OPTION_FIELDS}
    # A false json_object means "not asked for"; an empty choice list is asked for and wrong.
    given = [n for n in spec if n not in _OPTION_FIELDS and spec[n] is not None and not (spec[n] is False and n in _SWITCHES)]
    unknown = [name for name in given if name not in _STRUCTURED_OUTPUTS]
    if unknown:
        raise BadRequest(
            f"unknown guide {unknown[0]!r}; one of {', '.join(_STRUCTURED_OUTPUTS)}", field=f"structured_outputs.{unknown[0]}"
        )
    if not given:
        return None
    if len(given) > 1:
        raise BadRequest(f"{len(given)} guides given ({', '.join(given)}): exactly one is allowed", field="structured_outputs")
    return make_guide(_STRUCTURED_OUTPUTS[given[0]], spec[given[0]], field=f"structured_outputs.{given[0]}", **options)


def from_response_format(spec: Mapping[str, Any]) -> Guide | None:
    """OpenAI's spelling, ``{"type": ..., ...}``; ``text`` means no guide."""
    kind_name = spec.get("type")
    if not isinstance(kind_name, str) or kind_name not in _RESPONSE_FORMAT:
        raise BadRequest(f"unknown type {kind_name!r}; one of {', '.join(_RESPONSE_FORMAT)}", field="response_format.type")
    kind, value_name = _RESPONSE_FORMAT[kind_name]
    options = {name: value for name, value in spec.items() if name in _OPTION_FIELDS}
    known = {"type", value_name, *_OPTION_FIELDS}
    if kind == "structural_tag" and value_name not in spec:  # OpenAI-style servers take the tag's fields beside the type
        tag = {name: value for name, value in spec.items() if name not in options}
        return make_guide(kind, tag, field="response_format", **options)
    if extra := sorted(set(spec) - known - ({"schema"} if kind == "json_schema" else set())):
        raise BadRequest(f"unknown field {extra[0]!r}", field=f"response_format.{extra[0]}")
    if not kind:
        return None
    value = spec.get(value_name) if value_name else None
    if kind == "json_schema":
        value = _openai_schema(spec)
    return make_guide(kind, value, field=f"response_format.{value_name or 'type'}", **options)


def _openai_schema(spec: Mapping[str, Any]) -> Any:
    if "schema" in spec and "json_schema" in spec:
        raise BadRequest("schema and json_schema given: exactly one is allowed", field="response_format.schema")
    wrapper = spec["schema"] if "schema" in spec else spec.get("json_schema")
    if "schema" in spec or not isinstance(wrapper, Mapping):
        return wrapper
    # OpenAI wraps {"name", "strict", "schema"}; a bare schema is taken as it is.
    if "schema" in wrapper or set(wrapper) & {"name", "strict"}:
        return _unwrapped(wrapper)
    return wrapper


def _unwrapped(wrapper: Mapping[str, Any]) -> Any:
    field = "response_format.json_schema"
    if "schema" not in wrapper:
        raise BadRequest("holds no schema", field=f"{field}.schema")
    if extra := sorted(set(wrapper) - {"name", "description", "strict", "schema"}):
        raise BadRequest(f"unknown field {extra[0]!r}", field=f"{field}.{extra[0]}")
    return wrapper["schema"]


def make_guide(kind: str, value: Any, *, field: str = "guide", **options: Any) -> Guide:
    """A guide of ``kind`` from a request value (JSON text or a JSON value where the kind takes JSON)."""
    if kind not in KINDS:
        raise BadRequest(f"unknown guide kind {kind!r}; one of {', '.join(KINDS)}", field=field)
    text = _text_of(kind, value, field)
    if len(text.encode("utf-8", "surrogatepass")) > MAX_GUIDE_BYTES:
        raise BadRequest(f"the guide has more than {MAX_GUIDE_BYTES} bytes", field=field)
    try:
        return msgspec.convert({"kind": kind, "text": text, **options}, Guide)
    except msgspec.ValidationError as error:
        raise refusal(error, field=field) from error


def _text_of(kind: str, value: Any, field: str) -> str:
    if kind in _TEXTLESS:
        if value not in (None, True, {}, ""):
            raise BadRequest(f"{kind} takes no value", field=field)
        return ""
    if kind in _JSON_KINDS:
        return value if isinstance(value, str) and kind != "choice" else _dump(value, kind, field)
    if not isinstance(value, str):
        raise BadRequest(f"{kind} takes a string, not {type(value).__name__}", field=field)
    return value


def _dump(value: Any, kind: str, field: str) -> str:
    expected: tuple[type, ...] = (list, tuple) if kind == "choice" else (dict, bool)
    if not isinstance(value, expected):
        raise BadRequest(
            f"{kind} takes {'a list of strings' if kind == 'choice' else 'an object'}, not {type(value).__name__}", field=field
        )
    if isinstance(value, (list, tuple)) and not all(isinstance(entry, str) for entry in value):
        raise BadRequest("choice takes a list of strings", field=field)
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"not JSON: {error}", field=field) from error


def canonical(guide: Guide) -> Guide:
    """The same guide in one spelling: compact JSON; key order is kept, since it is the order of the properties. A text that JSON's
    own values cannot carry (a number that a float rounds, a lone surrogate, a key given twice) stays as it is."""
    if guide.kind not in _JSON_KINDS:
        return guide
    try:
        value = json.loads(guide.text, object_pairs_hook=_unique, parse_float=_exact, parse_constant=_no_constant)
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except (ValueError, RecursionError):
        return guide  # the schema front refuses what is wrong with a better message
    return msgspec.structs.replace(guide, text=text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("duplicate key")
    return value


def _exact(literal: str) -> float:
    value = float(literal)
    try:
        if Decimal(repr(value)) == Decimal(literal):
            return value
    except InvalidOperation as error:  # infinite
        raise ValueError(f"{literal} is no float") from error
    raise ValueError(f"{literal} is rounded by a float")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def key_of(guide: Guide) -> str:
    """32 hex digits: equal for equal canonical guides. SHA-256, so that no user can aim at another's guide."""
    return hashlib.sha256(msgspec.msgpack.encode(canonical(guide))).hexdigest()[:32]
