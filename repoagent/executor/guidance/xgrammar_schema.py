"""Which JSON schemas xgrammar follows to the letter.

It leaves out what it does not know without a word: under ``{"not": {}}`` it writes anything. Such a schema is refused,
so that text under a schema is valid under it.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, Final

__all__ = ["check_schema"]

_IGNORED: Final = frozenset(
    (
        "not",
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "multipleOf",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$dynamicRef",
        "$recursiveRef",
    )
)
#: With the value false these say what is done anyway.
_HARMLESS_IF_FALSE: Final = ("uniqueItems", "unevaluatedProperties")
#: Followed only beside a "type".
_TYPED: Final = frozenset(
    (
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
    )
)
_STRUCTURE: Final = frozenset(
    (
        "properties",
        "patternProperties",
        "required",
        "additionalProperties",
        "propertyNames",
        "items",
        "prefixItems",
    )
)
#: Each is followed alone: what else the schema asks for is left out.
_WHOLE: Final = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_TYPES: Final = {
    bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object", type(None): "null",
}  # fmt: skip


def check_schema(schema: Any) -> None:
    """Raise ``ValueError`` for a keyword that xgrammar would ignore; says which, and where."""
    waiting, seen = [("#", schema)], set()
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, Mapping) and id(part) not in seen:
            seen.add(id(part))
            _check_part(path, part, schema)
            waiting += _parts(path, part, schema)


def _check_part(path: str, part: Mapping[str, Any], root: Any) -> None:
    for name, value in part.items():
        if name in _IGNORED and not (value is False and name in _HARMLESS_IF_FALSE):
            raise _refusal(path, f"the keyword {name!r}")
        if name in _TYPED and "type" not in part:
            raise _refusal(path, f"{name!r} without a 'type' beside it")
    if "$id" in part and path != "#":
        raise _refusal(path, "'$id' inside a schema")
    _check_whole(path, part)
    if not all(_differ(_resolve(a, root), _resolve(b, root)) for a, b in combinations(part.get("oneOf", ()), 2)):
        raise _refusal(path, "'oneOf' whose schemas differ neither in type nor in a constant property")


def _check_whole(path: str, part: Mapping[str, Any]) -> None:
    whole = [name for name in _WHOLE if name in part]
    if not whole:
        return
    others = _TYPED | _STRUCTURE | set(whole[1:]) | (set() if whole[0] in ("const", "enum") else {"type"})
    for name in part:
        if name in others:
            raise _refusal(path, f"{name!r} beside {whole[0]!r}")
    if len(part.get("allOf", ())) > 1:
        raise _refusal(path, "'allOf' with several schemas")


def _refusal(path: str, what: str) -> ValueError:
    return ValueError(f"xgrammar does not support {what} (at {path}); GuidedDecodingBackend.LLGUIDANCE supports more")


def _parts(path: str, part: Mapping[str, Any], root: Any) -> Iterator[tuple[str, Any]]:
    """The schemas inside a schema, references followed."""
    if "$ref" in part:
        yield part["$ref"], _resolve(part, root)
    for name in ("properties", "patternProperties"):
        for key, inner in part.get(name, {}).items():
            yield f"{path}/{name}/{key}", inner
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for number, inner in enumerate(part.get(name, ())):
            yield f"{path}/{name}/{number}", inner
    for name in ("items", "additionalProperties", "propertyNames"):
        if name in part:
            yield f"{path}/{name}", part[name]


def _resolve(part: Any, root: Any) -> Any:
    """What a schema stands for when it is nothing but a reference; refuses references out of the document."""
    for _ in range(100):
        if not isinstance(part, Mapping) or "$ref" not in part:
            return part
        pointer = part["$ref"]
        if pointer != "#" and not pointer.startswith("#/"):
            raise ValueError(f"xgrammar supports references of the form '#/...' only, not {pointer!r}")
        part = root
        for key in pointer.split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            part = part[int(key)] if isinstance(part, list) else part[key]
    raise ValueError(f"the reference {pointer!r} is circular")


def _differ(left: Any, right: Any) -> bool:
    """Whether no value can be valid under both, as far as types and constants show."""
    if not isinstance(left, Mapping) or not isinstance(right, Mapping):
        return left is False or right is False
    types = _types(left), _types(right)
    if all(types) and not types[0] & types[1]:
        return True
    if _constants(left) and _constants(right):
        return not _constants(left) & _constants(right)
    shared = set(left.get("required", ())) & set(right.get("required", ()))
    for name in shared:
        values = [_constants(side.get("properties", {}).get(name, {})) for side in (left, right)]
        if all(values) and not values[0] & values[1]:
            return types == ({"object"}, {"object"})
    return False


def _types(part: Mapping[str, Any]) -> set[str]:
    """Types of the values that can be valid; empty: not said. Whole numbers are numbers."""
    for name in ("const", "enum"):
        if name in part:
            return {_TYPES[type(value)] for value in ([part[name]] if name == "const" else part[name])}
    said = part.get("type", ())
    return {"number" if name == "integer" else name for name in ([said] if isinstance(said, str) else said)}


def _constants(part: Any) -> set[str]:
    """The values that a schema lists, as text; empty: it lists none."""
    if not isinstance(part, Mapping):
        return set()
    if "const" in part:
        return {repr(part["const"])}
    return {repr(value) for value in part.get("enum", ())}
