"""Imports xgrammar without torch and transformers: 60 MB and 0.3 s instead of 261 MB and 1.8 s.

xgrammar needs both names at import only. ``tvm_ffi`` is loaded while torch cannot be found (it would import a real one, and
asks ``isinstance`` of a stub's classes); then stubs stand in for the two while xgrammar is loaded. The version is pinned; a test
imports it in a fresh process.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from typing import Any

STUBBED = ("torch", "transformers")


class _FalseType(type):
    """Its classes are false, and give themselves when called or asked for an attribute."""

    def __bool__(cls) -> bool:
        return False

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        return cls

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Absent(metaclass=_FalseType):
    """Stands for anything of a module that is not there."""


class _StubModule(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name, "Stands in for a package that the grammar service never loads.")
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent


def import_xgrammar() -> Any:
    """The xgrammar module. In a process that has the real torch loaded (a test run), that one is used and left alone."""
    if "xgrammar" in sys.modules or "torch" in sys.modules:
        return importlib.import_module("xgrammar")
    modules: dict[str, Any] = sys.modules
    modules["torch"] = None  # not found, as far as tvm_ffi can see
    try:
        importlib.import_module("tvm_ffi")
    finally:
        del modules["torch"]
    for name in STUBBED:
        if name not in modules:
            modules[name] = _StubModule(name)
    try:
        return importlib.import_module("xgrammar")
    finally:
        for name in STUBBED:
            if isinstance(modules.get(name), _StubModule):
                del modules[name]
