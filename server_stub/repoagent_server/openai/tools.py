"""``tools`` and ``tool_choice``: what a model may call, and what it must."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from repoagent_server.openai.fields import Fields
from repoagent_server.openai.response_format import Guide, schema_guide

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_MOST: Final = 1024
_CHOICE: Final = "tool_choice"
_FUNCTION: Final = frozenset({"name", "description", "parameters", "strict"})
_ELSEWHERE: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf", "patternProperties", "if", "unevaluatedProperties"})
"""Where a schema may name further properties."""


@dataclass(frozen=True, slots=True)
class Tools:
    """``given``: as the template gets them, none if none may be called."""

    given: list[dict[str, Any]] = field(default_factory=list)
    names: frozenset[str] = frozenset()
    named: str | None = None
    """The one that must be called: the text is its arguments."""
    required: bool = False
    """Some must be called: the text is a list of calls."""
    parallel: bool = True
    guide: Guide | None = None


def read_tools(fields: Fields, *, flat: bool = False) -> Tools:
    """Read both fields. ``flat``: a function's name stands beside its type, as in ``/v1/responses``.

    Raises:
        FieldError: one makes no sense, or cannot be honoured.
    """
    fields.refuse("functions", "use 'tools'")
    fields.refuse("function_call", "use 'tool_choice'")
    tools = _tools(fields, flat)
    parallel = fields.truth("parallel_tool_calls", True)
    choice = fields.get(_CHOICE)
    if choice in (None, "none", "auto") and (choice == "none" or not tools):
        return Tools()
    if not tools:
        raise fields.wrong(_CHOICE, "is only allowed with 'tools'")
    given, names = list(tools.values()), frozenset(tools)
    if choice in (None, "auto"):
        return Tools(given, names, parallel=parallel)
    if choice == "required":
        several = fields.truth("parallel_tool_calls", False)
        return Tools(given, names, required=True, parallel=parallel, guide=_any_call(tools, several=several))
    named = _named(fields, tools, flat)
    return Tools(given, names, named, guide=schema_guide(_CHOICE, _parameters(tools[named])))


def _tools(fields: Fields, flat: bool) -> dict[str, dict[str, Any]]:
    """By their names."""
    found: dict[str, dict[str, Any]] = {}
    tools = fields.objects("tools")
    if len(tools) > _MOST:
        raise fields.wrong("tools", f"must have at most {_MOST} tools")
    for tool in tools:
        if tool.get("type") != "function":
            raise tool.wrong("type", "must be 'function'")
        function = tool if flat else tool.object("function")
        if function is None:
            raise tool.wrong("function", "is required")
        name = function.required("name")
        if _NAME.fullmatch(name) is None:
            raise function.wrong("name", "must have 1 to 64 letters, digits, '_', '-' and '.'")
        function.object("parameters")
        function.text("description")
        named = {key: value for key, value in function.values.items() if key in _FUNCTION}
        found[name] = {"type": "function", "function": named} if flat else dict(tool.values)
    return found


def _named(fields: Fields, tools: Mapping[str, Any], flat: bool) -> str:
    if type(fields.get(_CHOICE)) is not dict:
        raise fields.wrong(_CHOICE, "must be 'none', 'auto', 'required', or an object that names a function")
    choice = fields.object(_CHOICE)
    if choice is None or choice.get("type") != "function":
        function = None
    else:
        function = choice if flat else choice.object("function")
    if function is None:
        raise fields.wrong(_CHOICE, "must have the type 'function', and a 'function' with a 'name'")
    name = function.required("name")
    if name not in tools:
        raise fields.wrong(_CHOICE, "names a function that is not in 'tools'")
    return name


def _parameters(tool: Mapping[str, Any]) -> dict[str, Any]:
    """As a schema: a call has no other parameters than those named, unless the tool allows them."""
    schema: dict[str, Any] = tool["function"].get("parameters") or {"type": "object", "properties": {}}
    return {"additionalProperties": False, **schema} if _is_plain(schema) else schema


def _is_plain(schema: Mapping[str, Any]) -> bool:
    """Whether the names of an object are those of its ``properties``."""
    return type(schema.get("properties")) is dict and _ELSEWHERE.isdisjoint(schema)


def _any_call(tools: Mapping[str, Mapping[str, Any]], *, several: bool) -> Guide:
    """A list of calls: of one, unless the client asks for ``several``, for small models go on until their end."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": _parameters(tool)},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for name, tool in tools.items()
    ]
    most = {} if several else {"maxItems": 1}
    return schema_guide(_CHOICE, {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}})
