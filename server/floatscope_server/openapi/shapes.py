"""How shapes of JSON are written down: a few words that make JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Shape = dict[str, Any]

TEXT: Shape = {"type": "string"}
FLAG: Shape = {"type": "boolean"}
WHOLE: Shape = {"type": "integer"}
COUNT: Shape = {"type": "integer", "minimum": 0}
TIME: Shape = {"type": "string", "format": "date-time"}
FINITE: Shape = {"type": "number"}
NUMBER: Shape = {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
"""A number that may be non-finite; those are strings."""
ANY: Shape = {}
ANY_OBJECT: Shape = {"type": "object"}


def obj(required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None, **more: Any) -> Shape:
    """An object with these members and no others; ``additionalProperties=True`` for others too."""
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
        "additionalProperties": False,
        **more,
    }


def array(of: Shape, **more: Any) -> Shape:
    return {"type": "array", "items": of, **more}


def by_name(of: Shape) -> Shape:
    """An object whose members are named by whoever sent them."""
    return {"type": "object", "additionalProperties": of}


def nullable(shape: Shape) -> Shape:
    """This or null."""
    if set(shape) >= {"type"} and isinstance(shape["type"], str) and "enum" not in shape:
        return {**shape, "type": [shape["type"], "null"]}
    return {"anyOf": [shape, {"type": "null"}]}


def one_of(values: Sequence[str]) -> Shape:
    return {"enum": list(values)}


def ref(name: str) -> Shape:
    """A shape of the document by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def page(of: Shape, optional: Mapping[str, Shape] | None = None) -> Shape:
    """A list: its items, and where the next page begins."""
    return obj({"items": array(of), "next_cursor": nullable(TEXT)}, optional)
