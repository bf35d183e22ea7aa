"""A schema document: its nodes by JSON pointer, its dialect, and the resolution of references inside it.

``$ref`` may be a pointer, an anchor, or an absolute or relative URI of a resource that the document itself holds. Anything
else is remote and refused. An ``$id`` starts a new resource whose pointers count from it; where such a pointer leads
nowhere, the document's root is tried, since much generated ``id`` means nothing.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from shared.errors import BadRequest, UnsupportedSchema

_BASE = "http://document.invalid/"  # references are joined to it; no name ends in .invalid
# Keywords whose value is data, not schemas: nothing inside is an id or an anchor.
_DATA = frozenset({"enum", "const", "default", "examples", "example"})


class Document:
    """``root`` is a parsed schema. Pointers are RFC 6901 texts, "" for the root."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.draft = _draft_of(root)
        self._resources: dict[str, str] = {}
        self._anchors: dict[str, str] = {}
        self._bases: list[tuple[str, str]] = []
        self._index()

    def at(self, pointer: str) -> Any:
        """The value at ``pointer``. Raises KeyError where there is none."""
        value = self.root
        for token in pointer.split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            value = _step(value, name)
        return value

    def resolve(self, reference: str, pointer: str) -> str:
        """The pointer that ``$ref: reference`` at ``pointer`` means."""
        base = self._base_of(pointer)
        address, fragment = urldefrag(urljoin(base, reference))
        fragment = unquote(fragment)
        resource = self._resources.get(address.rstrip("#"))
        if resource is None and not urldefrag(reference)[0]:
            resource = ""
        if resource is None:
            raise UnsupportedSchema(
                f"the reference {reference!r} leads out of the document: put the schema under $defs",
                pointer=pointer, keyword="$ref",
            )  # fmt: skip
        return self._place(address, resource, fragment, reference, pointer)

    def _place(self, address: str, resource: str, fragment: str, reference: str, pointer: str) -> str:
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get(f"{address}#{fragment}", self._anchors.get(f"#{fragment}"))
            if found is not None:
                return found
        else:
            for start in (resource, ""):
                if self._has(start + fragment):
                    return start + fragment
        raise BadRequest(f"the reference {reference!r} leads nowhere", field="guide", pointer=pointer, keyword="$ref")

    def _has(self, pointer: str) -> bool:
        try:
            self.at(pointer)
        except (KeyError, IndexError, TypeError, ValueError):
            return False
        return True

    def _base_of(self, pointer: str) -> str:
        """The base of the innermost resource around ``pointer``; the document's own $id comes after the default."""
        best, found = -1, _BASE
        for start, base in self._bases:
            if len(start) >= best and (pointer == start or pointer.startswith(start + "/")):
                best, found = len(start), base
        return found

    def _index(self) -> None:
        """Registers every ``$id`` and anchor. Iterative: the document may be deep."""
        self._resources[_BASE.rstrip("#")] = ""
        self._bases.append(("", _BASE))
        stack: list[tuple[str, Any, str]] = [("", self.root, _BASE)]
        while stack:
            pointer, value, base = stack.pop()
            if isinstance(value, dict):
                base = self._register(pointer, value, base)
                stack.extend((child_pointer(pointer, name), item, base) for name, item in value.items() if name not in _DATA)
            elif isinstance(value, list):
                stack.extend((f"{pointer}/{index}", item, base) for index, item in enumerate(value))

    def _register(self, pointer: str, value: dict[str, Any], base: str) -> str:
        identity = value.get("$id", value.get("id") if self.draft <= 4 or pointer == "" else None)
        if isinstance(identity, str) and not (self.draft <= 7 and "$ref" in value):
            if identity.startswith("#"):
                self._anchors[f"{urldefrag(base)[0]}{identity}"] = pointer
                self._anchors.setdefault(identity, pointer)
            else:
                base = urldefrag(urljoin(base, identity))[0]
                self._resources.setdefault(base, pointer)
                self._bases.append((pointer, base))
        for name in ("$anchor", "$dynamicAnchor"):
            if isinstance(value.get(name), str):
                self._anchors[f"{urldefrag(base)[0]}#{value[name]}"] = pointer
        return base


def child_pointer(pointer: str, name: str) -> str:
    return f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"


def _step(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return value[int(name)]
    if isinstance(value, dict):
        return value[name]
    raise KeyError(name)


def _draft_of(root: Any) -> int:
    """4, 6, 7, 2019 or 2020; a document that does not say is read as 2020-12."""
    uri = root.get("$schema") if isinstance(root, dict) else None
    if not isinstance(uri, str):
        return 2020
    marks = {"draft-03": 4, "draft-04": 4, "draft-05": 4, "draft-06": 6, "draft-07": 7, "2019-09": 2019}
    return next((draft for mark, draft in marks.items() if mark in uri), 2020)
