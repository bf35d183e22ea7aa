"""The formats of a structural tag: their fields and the types of these, in any spelling. What is unknown is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grammar_service.regex_syntax import RegexError
from grammar_service.schema.document import child_pointer
from shared.errors import BadRequest, GuideError, UnsupportedSchema

Json = Any
Check = Callable[[Json], bool]


def _is_text(value: Json) -> bool:
    return isinstance(value, str) and not any(0xD800 <= ord(char) <= 0xDFFF for char in value)


def _is_texts(value: Json) -> bool:
    return isinstance(value, list) and all(_is_text(text) and text for text in value)


def _is_flag(value: Json) -> bool:
    return isinstance(value, bool)


def _is_count(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_token(value: Json) -> bool:
    return _is_count(value) or _is_text(value)


def _is_tokens(value: Json) -> bool:
    return isinstance(value, list) and all(_is_token(token) for token in value)


def _is_mark(value: Json) -> bool:
    """What a tag begins or ends with: a text, or a token of the vocabulary."""
    return _is_text(value) or (isinstance(value, dict) and value.get("type") == "token" and _is_token(value.get("token")))


def _is_end(value: Json) -> bool:
    return _is_mark(value) or (isinstance(value, list) and bool(value) and all(_is_text(text) for text in value))


def _is_schema(value: Json) -> bool:
    return isinstance(value, (dict, bool))


def _is_format(value: Json) -> bool:
    return isinstance(value, dict)


def _is_formats(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


_TAGS: dict[str, Check] = {"tags": _is_formats, "at_least_one?": _is_flag, "stop_after_first?": _is_flag}
# The fields of each format; a mark says that it may be left out.
FORMATS: dict[str, dict[str, Check]] = {
    "const_string": {"value": _is_text}, "json_schema": {"json_schema": _is_schema, "style?": _is_text},
    "regex": {"pattern": _is_text}, "grammar": {"grammar": _is_text, "syntax?": _is_text},
    "any_text": {"excludes?": _is_texts, "max_tokens?": _is_count, "max_chars?": _is_count},
    "token": {"token": _is_token}, "exclude_token": {"exclude_tokens?": _is_tokens},
    "any_tokens": {"exclude_tokens?": _is_tokens, "max_tokens?": _is_count},
    "sequence": {"elements": _is_formats}, "or": {"elements": _is_formats},
    "tag": {"begin": _is_mark, "content": _is_format, "end": _is_end},
    "triggered_tags": {"triggers": _is_texts, "excludes?": _is_texts, **_TAGS},
    "token_triggered_tags": {"trigger_tokens": _is_tokens, "exclude_tokens?": _is_tokens, **_TAGS},
    "tags_with_separator": {"separator": _is_text, **_TAGS},
    "optional": {"content": _is_format}, "plus": {"content": _is_format}, "star": {"content": _is_format},
    "repeat": {"min": _is_count, "max": _is_count, "content": _is_format},
}  # fmt: skip


def format_of(value: Json) -> tuple[Json, str]:
    """The format with its pointer, checked: wrapped, bare, or the older list of structures with triggers. Raises BadRequest."""
    if not isinstance(value, dict):
        raise BadRequest("a structural tag is an object", field="structural_tag")
    if "structures" in value:
        form, pointer = _from_structures(value), ""
    elif value.get("type") == "structural_tag":
        form, pointer = value.get("format"), "/format"
    else:
        form, pointer = value, ""
    return checked(form, pointer), pointer


def checked(form: Json, pointer: str) -> Json:
    """The format with every tag's type written out. Raises BadRequest naming the place."""
    kind = form.get("type") if isinstance(form, dict) else None
    fields = FORMATS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise BadRequest(f"unknown format {kind!r}; one of {', '.join(sorted(FORMATS))}", field="structural_tag", pointer=pointer)
    known = {name.removesuffix("?"): (check, name.endswith("?")) for name, check in fields.items()}
    for name in form:
        if name != "type" and name not in known:
            raise _wrong(f"{kind} has no field {name!r}", child_pointer(pointer, name), name)
    for name, (check, optional) in known.items():
        if name in form and not check(form[name]):
            raise _wrong(f"{name} of {kind} has the wrong type", child_pointer(pointer, name), name)
        if name not in form and not optional:
            raise _wrong(f"{kind} needs {name}", pointer, name)
    out = {name: _inner(name, value, child_pointer(pointer, name)) for name, value in form.items()}
    if kind == "triggered_tags":
        _check_triggers(out, pointer)
    return out


def _inner(name: str, value: Json, pointer: str) -> Json:
    if name == "content":
        return checked(value, pointer)
    if name in ("elements", "tags"):
        items = [{"type": "tag", **item} if name == "tags" and "type" not in item else item for item in value]
        return [_tag_only(checked(item, f"{pointer}/{at}"), name, f"{pointer}/{at}") for at, item in enumerate(items)]
    return value


def _tag_only(form: Json, name: str, pointer: str) -> Json:
    if name == "tags" and form["type"] != "tag":
        raise _wrong(f"{form['type']} stands among the tags", pointer, "type")
    return form


def _check_triggers(form: Json, pointer: str) -> None:
    for at, tag in enumerate(form["tags"]):
        begin = tag["begin"]
        if not isinstance(begin, str) or not any(begin.startswith(trigger) for trigger in form["triggers"]):
            raise _wrong(f"begin {begin!r} starts with none of the triggers", f"{pointer}/tags/{at}/begin", "begin")


def _wrong(message: str, pointer: str, keyword: str) -> BadRequest:
    return BadRequest(message, field="structural_tag", pointer=pointer, keyword=keyword)


def _from_structures(value: Json) -> Json:
    structures, triggers = value["structures"], value.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list) or not all(isinstance(s, dict) for s in structures):
        raise BadRequest("structures and triggers must be lists", field="structural_tag")
    tags = [
        {"type": "tag", "begin": entry.get("begin"), "end": entry.get("end"),
         "content": {"type": "json_schema", "json_schema": entry.get("schema", {})}}
        for entry in structures
    ]  # fmt: skip
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def guarded(write: Callable[[], str], pointer: str) -> str:
    """What ``write`` gives; its errors get the pointer of where they are."""
    try:
        return write()
    except (GuideError, BadRequest) as error:
        error.field = "structural_tag"
        error.pointer = pointer + error.pointer
        raise
    except RegexError as error:
        if error.construct:
            raise UnsupportedSchema(str(error), field="structural_tag", pointer=pointer, keyword=error.construct) from error
        raise BadRequest(str(error), field="structural_tag", pointer=pointer) from error
