"""Flags of a command without a settings class: each has an environment twin, shown in its help. Flag over twin over default."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shared.config import environment_name
from shared.errors import ConfigError

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class _Flag(NamedTuple):
    """``rivals``: the flags of which only one may be given."""

    action: argparse.Action
    twin: str
    default: Any
    rivals: list[str]


class Flags:
    """An argument parser whose flags have environment twins ``PREFIX_NAME``. A flag that may be given several times takes one value
    a line from its twin; a switch takes true or false."""

    def __init__(self, program: str, description: str, prefix: str) -> None:
        self.parser = argparse.ArgumentParser(prog=program, description=description, allow_abbrev=False)
        self._prefix = prefix
        self._flags: list[_Flag] = []

    def positional(self, name: str, text: str, **options: Any) -> None:
        """An argument by place; it has no twin."""
        self.parser.add_argument(name, help=text, **options)

    def add(
        self, name: str, text: str, *, twin: str = "", default: Any = None, rivals: list[str] | None = None, **options: Any
    ) -> None:
        """A flag (argparse's ``options``). Flags that share a list of ``rivals`` exclude each other."""
        dest = name.lstrip("-").replace("-", "_")
        twin = twin or environment_name(self._prefix, dest)
        shown = "" if default in (None, False, "") or default == [] else f", default {default}"
        action = self.parser.add_argument(name, help=f"{text} [{twin}{shown}]".replace("%", "%%"), default=None, **options)
        rivals = [] if rivals is None else rivals
        rivals.append(name)
        self._flags.append(_Flag(action, twin, default, rivals))

    def parse(self, argv: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> argparse.Namespace:
        """Raises ConfigError where a twin has a wrong value (named with it), or where flags that exclude each other are given."""
        environment = os.environ if environment is None else environment
        values = self.parser.parse_args(argv, argparse.Namespace(**{flag.action.dest: None for flag in self._flags}))
        given = {flag.action.option_strings[0] for flag in self._flags if getattr(values, flag.action.dest) is not None}
        for flag in self._flags:
            raw = environment.get(flag.twin, "")
            if flag.action.option_strings[0] in given or (raw and not given.isdisjoint(flag.rivals)):
                continue  # a flag that is given wins, also over the twins of its rivals
            setattr(values, flag.action.dest, _convert(flag, raw) if raw else flag.default)
        self._check_rivals(values)
        return values

    def _check_rivals(self, values: argparse.Namespace) -> None:
        for flag in self._flags:
            there = [name for name in flag.rivals if getattr(values, name.lstrip("-").replace("-", "_")) not in (None, False, [])]
            if len(there) > 1:
                raise ConfigError(f"{' and '.join(there)} exclude each other", field=there[0])


def _convert(flag: _Flag, raw: str) -> Any:
    if flag.action.nargs == 0:
        return _switch(flag.twin, raw)
    lines = raw.splitlines() if isinstance(flag.default, list) else [raw]
    cast: Any = flag.action.type or str
    try:
        values = [cast(line) for line in lines]
    except ValueError as error:
        raise ConfigError(f"{flag.twin} has value {raw!r}: not a valid {cast.__name__}", field=flag.twin) from error
    if flag.action.choices is not None and (wrong := [v for v in values if v not in flag.action.choices]):
        raise ConfigError(f"{flag.twin} has value {wrong[0]!r}; one of {', '.join(flag.action.choices)}", field=flag.twin)
    return values if isinstance(flag.default, list) else values[0]


def _switch(twin: str, raw: str) -> bool:
    if raw.lower() not in _TRUE + _FALSE:
        raise ConfigError(f"{twin} has value {raw!r}; one of {', '.join(_TRUE + _FALSE)}", field=twin)
    return raw.lower() in _TRUE
