"""One frozen settings object per process: flag = environment variable = documented default.

A settings class is a ``msgspec.Struct`` whose fields are ``Annotated[type, Meta(description=..., ge=...)]``. ``load`` reads
flags first, then the environment (``PREFIX_FIELD``), then the default; a bad value raises ``ConfigError`` with the name and the
value. msgspec does the casting and the ranges (pydantic-settings would cost 0.2 s of every ``--help``).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from shared.errors import ConfigError

SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the settings of a process."""


def environment_name(prefix: str, field: str) -> str:
    """The environment twin of a field: ``MASKSTREAM_WORKER`` + ``client_bind`` -> ``MASKSTREAM_WORKER_CLIENT_BIND``."""
    return f"{prefix}_{field}".upper()


def add_flags(parser: argparse.ArgumentParser, settings: type[msgspec.Struct], prefix: str) -> None:
    """Adds one ``--flag`` a field to a parser; the help shows the environment twin and the default."""
    hints = get_type_hints(settings, include_extras=True)
    for field in msgspec.structs.fields(settings):
        description = _description(hints[field.name])
        default = "required" if field.required else f"default {_show(field.default)}"
        help_text = f"{description} [{environment_name(prefix, field.name)}, {default}]"
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if _plain(hints[field.name]) is bool else {}
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", dest=field.name, metavar="VALUE", help=help_text.replace("%", "%%"), **switch
        )


def load(
    settings: type[SettingsT], prefix: str, argv: Sequence[str] | None = None, *, environment: Mapping[str, str] | None = None,
    description: str = "", program: str | None = None,
) -> SettingsT:  # fmt: skip
    """Parses ``argv`` and the environment into a settings object. Raises ConfigError naming the key and the value."""
    parser = argparse.ArgumentParser(prog=program, description=description, allow_abbrev=False)
    add_flags(parser, settings, prefix)
    return from_namespace(settings, prefix, vars(parser.parse_args(argv)), environment)


def from_namespace(
    settings: type[SettingsT], prefix: str, flags: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> SettingsT:
    """Flags over environment over defaults."""
    environment = os.environ if environment is None else environment
    hints = get_type_hints(settings, include_extras=True)
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(settings):
        name = environment_name(prefix, field.name)
        flag = flags.get(field.name)
        raw, source = (flag, f"--{field.name.replace('_', '-')}") if flag is not None else (environment.get(name), name)
        if raw is not None and not (raw == "" and flag is None):
            values[field.name] = _convert(raw, hints[field.name], source)
        elif field.required:
            raise ConfigError(f"set --{field.name.replace('_', '-')} or {name}", field=field.name)
    return settings(**values)


def _convert(raw: str, hint: Any, source: str) -> Any:
    try:
        value: Any = [part.strip() for part in raw.split(",") if part.strip()] if _is_list(hint) else raw
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source} has value {raw!r}: {error}", field=source) from error


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _is_list(hint: Any) -> bool:
    return get_origin(_plain(hint)) in (list, tuple)


def _description(hint: Any) -> str:
    metas = [meta for meta in get_args(hint)[1:] if isinstance(meta, msgspec.Meta)] if get_origin(hint) is Annotated else []
    return next((meta.description for meta in metas if meta.description), "")


def _show(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or "empty"
    return str(value).lower() if isinstance(value, bool) else (str(value) or "empty")
