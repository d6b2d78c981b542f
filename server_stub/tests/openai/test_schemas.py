"""Schemas through ``response_format``: what a model that knows nothing writes parses, and is valid under its schema."""

import json
from typing import Any

import jsonschema
import pytest
from openai import OpenAI

from .conftest import Token, user

_CLOSED: dict[str, Any] = {"additionalProperties": False}
SCHEMAS: dict[str, dict[str, Any]] = {
    "numbers": {
        "properties": {"a": {"type": "integer", "minimum": -5, "maximum": 12}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        **_CLOSED,
    },
    "optional": {"properties": {"a": {"enum": [1]}, "b": {"enum": [2]}}, "required": ["b"], **_CLOSED},
    "enum": {"properties": {"x": {"enum": ["red", "green", 3, None]}}, "required": ["x"], **_CLOSED},
    "const": {"properties": {"x": {"const": [1, {"y": "z"}]}}, "required": ["x"], **_CLOSED},
    "array": {
        "properties": {"x": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3}},
        "required": ["x"],
        **_CLOSED,
    },
    "tuple": {
        "properties": {
            "x": {"type": "array", "prefixItems": [{"const": 1}, {"const": "a"}], "items": False, "minItems": 2}
        },
        "required": ["x"],
        **_CLOSED,
    },
    "lengths": {
        "properties": {"x": {"type": "string", "minLength": 2, "maxLength": 4}},
        "required": ["x"],
        **_CLOSED,
    },
    "pattern": {
        "properties": {"x": {"type": "string", "pattern": "^[0-9]{3}-[a-f]{2}$"}},
        "required": ["x"],
        **_CLOSED,
    },
    "any of": {
        "properties": {"x": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 2}]}},
        "required": ["x"],
        **_CLOSED,
    },
    "references": {
        "$defs": {"point": {"type": "object", "properties": {"x": {"enum": [0, 1]}}, "required": ["x"], **_CLOSED}},
        "properties": {"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}},
        "required": ["from", "to"],
        **_CLOSED,
    },
    "nested": {
        "properties": {
            "a": {
                "type": "object",
                "properties": {
                    "b": {"type": "object", "properties": {"c": {"const": True}}, "required": ["c"], **_CLOSED}
                },
                "required": ["b"],
                **_CLOSED,
            }
        },
        "required": ["a"],
        **_CLOSED,
    },
    "all of": {
        "properties": {"x": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}},
        "required": ["x"],
        **_CLOSED,
    },
    "names": {"properties": {'"\\\n': {"const": 'a"\\b'}}, "required": ['"\\\n'], **_CLOSED},
}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", SCHEMAS)
def test_an_answer_is_valid_under_its_schema(name: str, seed: int, client: OpenAI, token: Token) -> None:
    """M4: xgrammar, which is gone, let seven texts through."""
    schema = {"type": "object", **SCHEMAS[name]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    # Any space may be written without end.
    spaces = {str(token(space)): -100 for space in " \n\t\r"}
    made = client.chat.completions.create(
        model="sums",
        messages=user("47+85:"),
        response_format=form,
        logit_bias=spaces,
        temperature=2,
        seed=seed,
        max_tokens=200,
    )
    assert made.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(made.choices[0].message.content or ""), schema)
