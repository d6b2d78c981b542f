"""Reading the fields of a request. What is null counts as not given, as in OpenAI's API."""

from collections.abc import Mapping
from typing import Any, Final

from repoagent.errors import InvalidArgumentError
from repoagent_server.openai.errors import FieldError

_MOST_OBJECTS: Final = 1 << 16
"""Of one array: each takes a hundred times the bytes that it has in JSON."""


LONGEST_NAME: Final = 1024
"""Of a model with an adapter: what the field ``model`` has goes into errors and logs."""


class Fields:
    """The members of a JSON object. Each method raises :class:`FieldError`, which names the field."""

    def __init__(self, document: object, path: str = "") -> None:
        if type(document) is not dict:
            what = f"'{path}'" if path else "the body of the request"
            raise FieldError(path, "must be an object") if path else InvalidArgumentError(f"{what} must be an object")
        self.values: Mapping[str, Any] = document
        self._path = path

    def name(self, field: str) -> str:
        """The full name of a field."""
        return f"{self._path}.{field}" if self._path else field

    def get(self, field: str) -> Any:
        """The value as it is; None where there is none."""
        return self.values.get(field)

    def wrong(self, field: str, text: str, code: str = "invalid_value") -> FieldError:
        """The error for a field; ``code``: in OpenAI's words."""
        return FieldError(self.name(field), text, code)

    def truth(self, field: str, default: bool = False) -> bool:
        value = self.get(field)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.wrong(field, "must be true or false")
        return value

    def whole(self, field: str, low: int, high: int) -> int | None:
        value = self.get(field)
        if value is None:
            return None
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise self.wrong(field, f"must be a whole number from {low} to {high}")
        return value

    def real(self, field: str, low: float, high: float) -> float | None:
        value = self.get(field)
        if value is None:
            return None
        if type(value) not in (int, float) or not low <= value <= high:  # not a number is never within
            raise self.wrong(field, f"must be a number from {low:g} to {high:g}")
        return float(value)

    def text(self, field: str) -> str | None:
        value = self.get(field)
        if value is not None and type(value) is not str:
            raise self.wrong(field, "must be a string")
        return value

    def required(self, field: str) -> str:
        value = self.text(field)
        if value is None:
            raise self.wrong(field, "is required", "missing_required_parameter")
        return value

    def model(self) -> str:
        """The field ``model``."""
        name = self.required("model")
        if len(name) > LONGEST_NAME:
            raise self.wrong("model", f"must have at most {LONGEST_NAME} characters")
        return name

    def texts(self, field: str, most: int) -> list[str]:
        """A string, or a list of at most ``most`` of them."""
        value = self.get(field)
        if value is None:
            return []
        found = [value] if type(value) is str else value
        if type(found) is not list or len(found) > most or any(type(item) is not str for item in found):
            raise self.wrong(field, f"must be a string, or an array of at most {most} strings")
        return [item for item in found if item]

    def object(self, field: str) -> "Fields | None":
        value = self.get(field)
        return None if value is None else Fields(value, self.name(field))

    def objects(self, field: str) -> "list[Fields]":
        value = self.get(field)
        if value is None:
            return []
        if type(value) is not list or len(value) > _MOST_OBJECTS:
            raise self.wrong(field, f"must be an array of at most {_MOST_OBJECTS} objects")
        return [Fields(item, f"{self.name(field)}[{number}]") for number, item in enumerate(value)]

    def refuse(self, field: str, text: str, *allowed: Any) -> None:
        """Refuse a field that cannot be honoured, unless it has one of the values ``allowed``."""
        value = self.get(field)
        if value is not None and not any(type(value) is type(other) and value == other for other in allowed):
            raise self.wrong(field, f"cannot be honoured: {text}", "unsupported_value")
