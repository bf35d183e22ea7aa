"""What is enforced of JSON Schema, by engine: the published form of what tests/unit/test_capability.py shows on the engines.

``exact``: the texts are those of the valid instances, up to spelling (integers without a fraction, bounded numbers without an
exponent, white space bounded). ``narrower``: some valid instances cannot be written; none that is invalid can. ``refused``:
the guide is refused with pointer and keyword. A new engine version is held against this table before the pin moves.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["exact", "narrower", "refused"]
PROVED_VERSIONS = {"llguidance": "1.9.1", "xgrammar": "0.2.9"}


class Capability(NamedTuple):
    """One row: a keyword in a context, and the level on each engine."""

    keyword: str
    context: str
    llguidance: Level
    xgrammar: Level
    note: str = ""


TABLE: tuple[Capability, ...] = (
    Capability("type", "one or several", "exact", "exact"),
    Capability("nullable", "beside type", "exact", "exact", "OpenAPI: adds null to type"),
    Capability("enum", "any values", "exact", "exact", "filtered by the keywords beside it"),
    Capability("const", "any value", "exact", "exact"),
    Capability("minimum", "any size", "exact", "exact", "with 0 alone exponents are allowed"),
    Capability("maximum", "any size", "exact", "exact"),
    Capability("exclusiveMinimum", "number or draft 4 boolean", "exact", "exact"),
    Capability("exclusiveMaximum", "number or draft 4 boolean", "exact", "exact"),
    Capability("multipleOf", "steps whose last three digits decide", "exact", "exact"),
    Capability("multipleOf", "other steps", "exact", "refused", "llguidance's own number front"),
    Capability("multipleOf", "other steps beside not or excluded values", "refused", "refused"),
    Capability("minLength", "with pattern and format", "exact", "exact", "counts characters"),
    Capability("maxLength", "with pattern and format", "exact", "exact", "counts characters"),
    Capability("pattern", "search, anchors, look-ahead", "exact", "exact", "xgrammar: automata up to 300 states"),
    Capability("pattern", "back-reference, look-behind, word boundary", "refused", "refused"),
    Capability("format", "known formats", "exact", "exact", "others are annotations, with a warning"),
    Capability("format", "regex, iri, idn-*", "narrower", "narrower", "the ASCII and plain part"),
    Capability("items", "schema, boolean, or draft 7 tuple", "exact", "exact"),
    Capability("prefixItems", "with items", "exact", "exact"),
    Capability("additionalItems", "behind a draft 7 tuple", "exact", "exact"),
    Capability("minItems", "", "exact", "exact"),
    Capability("maxItems", "", "exact", "exact"),
    Capability("uniqueItems", "up to 5 possible values", "exact", "exact"),
    Capability("uniqueItems", "up to 63 possible values", "exact", "refused"),
    Capability("uniqueItems", "strings or integers", "narrower", "refused", "items differ in their first or last characters"),
    Capability("uniqueItems", "objects that must have a string", "narrower", "refused", "they differ in it as strings do"),
    Capability("uniqueItems", "other items", "refused", "refused"),
    Capability("contains", "with minContains and maxContains", "exact", "exact"),
    Capability("minContains", "", "exact", "exact"),
    Capability("maxContains", "", "exact", "exact"),
    Capability("properties", "up to 63 in one object", "exact", "narrower", "xgrammar: in the order of the schema"),
    Capability("properties", "false as a schema", "exact", "exact"),
    Capability("required", "declared or not", "exact", "exact"),
    Capability("additionalProperties", "schema or boolean", "exact", "exact"),
    Capability("patternProperties", "overlapping too", "exact", "exact"),
    Capability("propertyNames", "", "exact", "exact"),
    Capability("minProperties", "declared properties", "exact", "exact"),
    Capability("minProperties", "two or more undeclared needed", "refused", "refused", "names may repeat, so they count once"),
    Capability("maxProperties", "", "exact", "exact"),
    Capability("dependentRequired", "", "exact", "exact"),
    Capability("dependentSchemas", "", "exact", "exact"),
    Capability("dependencies", "names or schemas", "exact", "exact"),
    Capability("allOf", "", "exact", "exact"),
    Capability("anyOf", "", "exact", "exact"),
    Capability("oneOf", "disjoint", "exact", "exact"),
    Capability("oneOf", "overlapping", "exact", "exact", "narrower, with a warning, where branches differ only deep inside"),
    Capability("not", "any schema", "exact", "exact"),
    Capability("if", "with then and else", "exact", "exact"),
    Capability("then", "", "exact", "exact"),
    Capability("else", "", "exact", "exact"),
    Capability("$ref", "inside the document, with siblings", "exact", "exact"),
    Capability("$ref", "to another document", "refused", "refused"),
    Capability("unevaluatedProperties", "behind in-place applicators", "exact", "exact"),
    Capability("unevaluatedItems", "", "refused", "refused"),
    Capability("$dynamicRef", "", "refused", "refused"),
)


def rows_of(keyword: str) -> list[Capability]:
    """All rows of one keyword."""
    return [row for row in TABLE if row.keyword == keyword]
