"""What the text must follow: OpenAI's ``response_format``, and vLLM's fields for the same."""

from dataclasses import dataclass
from typing import Any, Final

from repoagent_server.codec.json_text import dumps_text
from repoagent_server.openai.fields import Fields

_FIELD: Final = "response_format"
_OUTPUTS: Final = "structured_outputs"
_KINDS: Final = ("json", "regex", "choice", "grammar")
_SPACES: Final = "the key 'x-guidance' of a schema sets its white space"
_ELSEWHERE: Final = ("grammar", "json_schema", "regex", "ebnf", "structural_tag")
"""Names that other servers have."""
_MOST_CHOICES: Final = 1024


@dataclass(frozen=True, slots=True)
class Guide:
    """What the text must follow; ``field`` of the request wants that."""

    field: str
    type: str
    text: str = ""


def response_guide(fields: Fields) -> Guide | None:
    """What the text must follow; None for any text.

    Raises:
        FieldError: a field makes no sense, or cannot be honoured, or several of them are given.
    """
    for name in _ELSEWHERE:
        fields.refuse(name, f"use '{_OUTPUTS}'")
    fields.refuse("guided_whitespace_pattern", _SPACES)
    found = [guide for guide in (_format(fields), _outputs(fields), *_guided(fields)) if guide is not None]
    if len(found) > 1:
        raise fields.wrong(found[1].field, f"cannot be honoured together with '{found[0].field}'")
    return found[0] if found else None


def _format(fields: Fields) -> Guide | None:
    given = fields.object(_FIELD)
    return None if given is None else format_guide(given, _FIELD, given.object("json_schema"))


def format_guide(given: Fields, field: str, wrapped: Fields | None) -> Guide | None:
    """What a format demands, which is the object ``field`` of a request; ``wrapped``: what has its schema.

    Raises:
        FieldError: something in it makes no sense.
    """
    kind = given.required("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return schema_guide(field, {"type": "object"})
    if kind != "json_schema":
        raise given.wrong("type", "must be 'text', 'json_object' or 'json_schema'")
    schema = None if wrapped is None else wrapped.get("schema")
    if type(schema) is not dict:
        raise given.wrong("json_schema", "must be an object with a 'schema', which is an object")
    return schema_guide(field, schema)


def _outputs(fields: Fields) -> Guide | None:
    given = fields.object(_OUTPUTS)
    if given is None:
        return None
    given.refuse("whitespace_pattern", _SPACES)
    given.refuse("disable_additional_properties", "the key 'additionalProperties' of a schema sets it", False)
    found = [guide for kind in _KINDS if (guide := _guide(given, kind, kind)) is not None]
    if given.truth("json_object"):
        found.append(schema_guide(given.name("json_object"), {"type": "object"}))
    if given.text("structural_tag") is not None:
        found.append(Guide(given.name("structural_tag"), "structural_tag", given.required("structural_tag")))
    if len(found) != 1:
        raise fields.wrong(_OUTPUTS, f"must have one of {', '.join(_KINDS)}, json_object and structural_tag")
    return found[0]


def _guided(fields: Fields) -> list[Guide | None]:
    return [_guide(fields, f"guided_{kind}", kind) for kind in _KINDS]


def _guide(fields: Fields, field: str, kind: str) -> Guide | None:
    value, name = fields.get(field), fields.name(field)
    if value is None:
        return None
    if kind == "json" and type(value) is dict:
        return schema_guide(name, value)
    if kind == "choice":
        return Guide(name, "ebnf_grammar", _choices(fields, field, value))
    return Guide(name, {"json": "json_schema", "grammar": "ebnf_grammar"}.get(kind, kind), fields.required(field))


def _choices(fields: Fields, field: str, value: Any) -> str:
    if type(value) is not list or not 0 < len(value) <= _MOST_CHOICES or any(type(item) is not str for item in value):
        raise fields.wrong(field, f"must be an array of 1 to {_MOST_CHOICES} strings")
    return "start: " + " | ".join(dumps_text(item) for item in value)


def schema_guide(field: str, schema: dict[str, Any]) -> Guide:
    """JSON that follows ``schema``."""
    return Guide(field, "json_schema", dumps_text(schema))
