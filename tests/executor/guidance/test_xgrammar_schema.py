"""Schemas that xgrammar would follow in part are refused by keyword and place."""

from typing import Any

import pytest

from repoagent.executor.guidance.xgrammar_schema import check_schema

KIND = {"type": "object", "required": ["kind"]}


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "uniqueItems": False},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string", "maxLength": 3}, "unused": {"not": {}}}},
        {"type": "object", "properties": {"child": {"$ref": "#"}}},
        {"oneOf": [{"type": "string"}, {"type": "integer"}, {"const": None}]},
        {"oneOf": [{**KIND, "properties": {"kind": {"const": kind}}} for kind in "ab"]},
        {"type": "string", "enum": ["a"], "title": "T", "default": {"not": 1}},
    ],
)
def test_what_is_followed(schema: Any) -> None:
    check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"items": {"not": {}}}, r"the keyword 'not' \(at #/items\)"),
        ({"contains": False}, "'contains'"),
        ({"maximum": 3}, "'maximum' without a 'type'"),
        ({"anyOf": [{}], "type": "string"}, "'type' beside 'anyOf'"),
        ({"allOf": [{}, {}]}, "'allOf' with several"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"if": {}}}}, r"'if' \(at #/\$defs/x\)"),
        ({"$ref": "other.json"}, "not 'other.json'"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}}, "circular"),
        ({"properties": {"x": {"$id": "urn:x"}}}, r"'\$id' inside a schema \(at #/properties/x\)"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "'oneOf'"),
        ({"oneOf": [{**KIND, "properties": {"kind": {"enum": ["a", kind]}}} for kind in "bc"]}, "'oneOf'"),
        ({"oneOf": [{}, True]}, "'oneOf'"),
    ],
)
def test_what_is_refused(schema: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_schema(schema)
