"""Varied schemas, each with a long document that fits it: what the benchmarks of the grammar service walk."""

from __future__ import annotations

from typing import Any

WORDS = [
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda",
    "mu", "nu", "xi", "omicron", "pi", "rho", "sigma", "tau",
]  # fmt: skip
STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False} | more


def _array(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items} | more


def schemas() -> list[tuple[dict[str, Any], Any]]:
    """Schema and document, 18 of them."""
    return [*_texts(), *_numbers(), *_records()]


def _texts() -> list[tuple[dict[str, Any], Any]]:
    flat = dict.fromkeys(WORDS[:8], STRING)
    return [
        ({"type": "object", "properties": flat, "required": list(flat)}, {name: f"the {name} of all things" for name in flat}),
        (_array({"enum": WORDS}), WORDS * 3),
        ({"type": "object", "additionalProperties": STRING}, {f"key_{w}": w.upper() for w in WORDS}),
        (_array({"type": "string", "maxLength": 40}), [" ".join(WORDS[i : i + 4]) for i in range(15)]),
        (_object({"title": STRING, "body": STRING}), {"title": "A long text", "body": " ".join(WORDS * 8)}),
        (_array({"type": "string", "pattern": "^[a-z]+-[0-9]{3}$"}), [f"{w}-{100 + i}" for i, w in enumerate(WORDS)]),
    ]


def _numbers() -> list[tuple[dict[str, Any], Any]]:
    point = _object({"x": NUMBER, "y": NUMBER})
    return [
        (_array(NUMBER), [i * 1.25 for i in range(60)]),
        (_array({"type": "integer", "minimum": 0, "maximum": 9999}), [i * 37 for i in range(90)]),
        (_array(point), [{"x": i / 4, "y": -i / 8} for i in range(20)]),
        (_array(_array({"type": "boolean"})), [[i % 2 == 0, i % 3 == 0] for i in range(40)]),
        (_array({"type": "string", "format": "date"}), [f"2024-{1 + i % 12:02d}-{1 + i % 28:02d}" for i in range(30)]),
        (_array({"anyOf": [INTEGER, STRING, {"type": "null"}]}), [i if i % 3 else None if i % 2 else f"n{i}" for i in range(60)]),
    ]


def _records() -> list[tuple[dict[str, Any], Any]]:
    person = _object({"name": STRING, "age": INTEGER})
    line = _object({"sku": STRING, "count": INTEGER, "price": NUMBER})
    order = _object({"id": INTEGER, "state": {"enum": ["open", "closed", "waiting"]}, "lines": _array(line)})
    tree = {"$ref": "#/$defs/node", "$defs": {"node": _object({"name": STRING, "children": _array({"$ref": "#/$defs/node"})})}}
    call = _object({"tool": {"const": "search"}, "arguments": _object({"query": STRING, "limit": INTEGER})})
    port = _object({"containerPort": INTEGER, "protocol": {"enum": ["TCP", "UDP"]}})
    pod = _object({"kind": {"const": "Pod"}, "metadata": _object({"name": STRING}), "ports": _array(port)})
    lines = [{"sku": f"{w}-{i}", "count": i, "price": i * 1.5} for i, w in enumerate(WORDS)]
    node: Any = {"name": "leaf", "children": []}
    for word in WORDS:
        node = {"name": word, "children": [node]}
    ports = [{"containerPort": 8000 + i, "protocol": "TCP" if i % 2 else "UDP"} for i in range(20)]
    queries = [{"tool": "search", "arguments": {"query": f"what is {w}", "limit": i}} for i, w in enumerate(WORDS)]
    return [
        (_array(person), [{"name": w.title(), "age": 30 + i} for i, w in enumerate(WORDS)]),
        (order, {"id": 7, "state": "waiting", "lines": lines}),
        (tree, node),
        (_array(call), queries),
        (pod, {"kind": "Pod", "metadata": {"name": "web-1"}, "ports": ports}),
        (_array(_object({"word": {"enum": WORDS}, "rank": INTEGER})), [{"word": w, "rank": i} for i, w in enumerate(WORDS)]),
    ]
