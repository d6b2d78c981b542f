"""Parameters that go into the server, messages and metrics that come out."""

import json
from typing import Any

from repoagent.errors import InvalidArgumentError
from repoagent.nested_text import read_json
from repoagent.server.enums import MetricFormat, ParameterType

__all__ = ["Message", "Metrics", "Parameter", "parameter_type"]


def parameter_type(value: Any) -> ParameterType:
    """The type of a parameter with this value.

    Raises:
        TypeError: there is no such type.
    """
    # bool before int: True is an int for Python, and BOOL for a server.
    for kind, name in ((bool, "BOOL"), (int, "INT"), (float, "DOUBLE"), (str, "STRING"), (bytes, "BYTES")):
        if isinstance(value, kind):
            return ParameterType[name]
    raise TypeError(f"a parameter must be bytes, str, int or bool, not {type(value).__name__}")


class Parameter:
    """A name and a value: ``bytes``, ``str``, ``int`` or ``bool``.

    Raises:
        TypeError: the value is something else.
    """

    __slots__ = ("name", "type", "value")

    def __init__(self, name: str, value: bytes | str | int | bool) -> None:
        if isinstance(value, float):
            raise TypeError("a parameter must be bytes, str, int or bool, not float")
        self.name = name
        self.value = value
        self.type = parameter_type(value)


class Message:
    """A piece of JSON.

    Raises:
        InvalidArgumentError: ``json_text`` is none.
    """

    __slots__ = ("_text",)

    def __init__(self, json_text: str) -> None:
        try:
            read_json(json_text)
        except ValueError as error:
            raise InvalidArgumentError(f"failed to parse the message as JSON: {error}") from error
        self._text = json_text

    @classmethod
    def of(cls, content: Any) -> "Message":
        """The message that says ``content``."""
        return cls(json.dumps(content, separators=(",", ":")))

    def serialize_to_json(self) -> str:
        """The text."""
        return self._text


class Metrics:
    """The metrics of a server at one moment."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def formatted(self, metric_format: MetricFormat) -> str:
        """The text; there is one format."""
        return self._text
