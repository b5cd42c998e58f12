"""Keys of YAML files, declared once: readers take their names from here, and the JSON Schema their descriptions.

A node of a file is a TypedDict whose hints may be `Annotated`: text is the description, `Also` adds to the schema.

    class Stages(TypedDict):
        min: Annotated[int, "Seeds before the first look.", Also(minimum=1)]
"""

import functools
import operator
import types
import typing
from pathlib import Path
from typing import Annotated, Any

Schema = dict[str, Any]

NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
"""Pattern of a number as text: YAML 1.1 reads 1e-4, without a point, as text, and the readers accept it."""


class Also:
    """More keywords of JSON Schema; with a `type` they replace that of the hint."""

    def __init__(self, **words: Any) -> None:
        self.words = words


def ref(name: str) -> Also:
    """Refer to a definition of this name."""
    return Also(**{"$ref": f"#/$defs/{name}"})


Text = Annotated[str | float | bool | None, Also(type=["string", "number", "boolean", "null"])]
"""Text that YAML may read as something else, such as a title that is a year."""

Name = Annotated[str, Also(type=["string", "number", "boolean"])]
"""The name of an arm or a factor, which may be a number."""

Changes = Annotated[dict[str, Any] | None, ref("Changes")]  # dotted paths of a configuration and their new values


def keys(node: type) -> tuple[str, ...]:
    """Return the keys of a declared node, in order."""
    return tuple(node.__annotations__)


def required(node: type) -> tuple[str, ...]:
    """Return the required keys of a declared node."""
    return tuple(key for key in keys(node) if key in node.__required_keys__)  # type: ignore[attr-defined]


def schema_of(hint: Any, nodes: dict[str, Schema]) -> Schema:
    """Return the JSON Schema of a type hint; `nodes` receives the declared nodes that the hint names."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        notes = hint.__metadata__
        additions = [note.words if isinstance(note, Also) else {"description": note} for note in notes]
        whole = any("$ref" in addition or "type" in addition for addition in additions)
        return functools.reduce(operator.or_, additions, {} if whole else schema_of(arguments[0], nodes))
    if origin in (typing.Required, typing.NotRequired):
        return schema_of(arguments[0], nodes)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return any_of([schema_of(argument, nodes) for argument in arguments])
    if origin is list or origin is tuple:
        inner = any_of([schema_of(argument, nodes) for argument in arguments if argument is not Ellipsis])
        size = len(arguments) if origin is tuple and Ellipsis not in arguments else None
        return {"type": "array", "items": inner, **({"minItems": size, "maxItems": size} if size else {})}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(arguments[1], nodes)}
    if typing.is_typeddict(hint):
        if hint.__name__ not in nodes:
            nodes[hint.__name__] = {}  # a node may hold itself
            hints = typing.get_type_hints(hint, include_extras=True)
            nodes[hint.__name__] = {
                "description": " ".join((hint.__doc__ or "").split()),
                "type": "object",
                "properties": {key: schema_of(hints[key], nodes) for key in keys(hint)},
                "additionalProperties": False,
                **({"required": list(required(hint))} if required(hint) else {}),
            }
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if hint is float:
        return {"anyOf": [{"type": "number"}, {"type": "string", "pattern": NUMBER}]}
    plain = {int: "integer", bool: "boolean", str: "string", type(None): "null", Path: "string"}
    return {"type": plain[hint]} if hint in plain else {}


def any_of(schemas: list[Schema]) -> Schema:
    """Return the schema of what any of several schemas accepts, without duplicates."""
    parts: list[Schema] = []
    for schema in schemas:
        inner = schema["anyOf"] if schema.keys() == {"anyOf"} else [schema]
        parts += [part for part in inner if part not in parts]
    if {} in parts:
        return {}
    return parts[0] if len(parts) == 1 else {"anyOf": parts}
