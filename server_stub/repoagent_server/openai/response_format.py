"""``response_format``: text that follows a schema."""

from typing import Any

from repoagent_server.codec.json_text import dumps
from repoagent_server.openai.fields import Fields
from repoagent_server.openai.generation_request import Guide

__all__ = ["response_guide", "schema_guide"]

_FIELD = "response_format"


def response_guide(fields: Fields) -> Guide | None:
    """What the text must follow; None for any text.

    Raises:
        FieldError: the field makes no sense.
    """
    given = fields.object(_FIELD)
    if given is None:
        return None
    kind = given.required("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return schema_guide(_FIELD, {"type": "object"})
    if kind != "json_schema":
        raise given.wrong("type", "must be 'text', 'json_object' or 'json_schema'")
    wrapped = given.object("json_schema")
    schema = None if wrapped is None else wrapped.get("schema")
    if type(schema) is not dict:
        raise given.wrong("json_schema", "must be an object with a 'schema', which is an object")
    return schema_guide(_FIELD, schema)


def schema_guide(field: str, schema: dict[str, Any]) -> Guide:
    """JSON that follows ``schema``."""
    return Guide(field, "json_schema", dumps(schema).decode("utf-8", "surrogateescape"))
