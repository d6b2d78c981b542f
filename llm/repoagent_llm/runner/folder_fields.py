"""Reads the values of a genai_config.json, whose author may have written anything into it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from repoagent_llm.types.errors import DecoderError

__all__ = ["Section"]

_LONGEST: Final = 512


@dataclass(frozen=True, slots=True)
class Section:
    """An object of the file. Each method raises ``DecoderError``, which names the key and what it must be."""

    values: Mapping[str, Any]
    path: str
    source: str

    def section(self, key: str) -> "Section":
        """The object under ``key``."""
        found = self._required(key)
        if not isinstance(found, dict):
            raise self.wrong(key, "an object", found)
        return Section(found, self._full(key), self.source)

    def optional_section(self, key: str) -> "Section | None":
        """The object under ``key``; None where there is none."""
        return None if self.values.get(key) is None else self.section(key)

    def integer(self, key: str, low: int, high: int) -> int:
        """The whole number under ``key``, within ``low..high``."""
        found = self._required(key)
        if type(found) is not int or not low <= found <= high:
            raise self.wrong(key, f"a whole number from {low} to {high}", found)
        return found

    def integers(self, key: str, low: int, high: int, most: int) -> tuple[int, ...]:
        """The whole number under ``key``, or the list of them; at most ``most``, each within ``low..high``."""
        found = self.values.get(key)
        listed = [] if found is None else found if isinstance(found, list) else [found]
        if len(listed) > most or any(type(item) is not int or not low <= item <= high for item in listed):
            raise self.wrong(key, f"a whole number from {low} to {high}, or a list of at most {most} of them", found)
        return tuple(listed)

    def text(self, key: str) -> str:
        """The name under ``key``: of a tensor or a file."""
        found = self._required(key)
        if not isinstance(found, str) or not found or len(found) > _LONGEST or "\0" in found:
            raise self.wrong(key, f"a name of at most {_LONGEST} characters", found)
        return found

    def pattern(self, key: str) -> str:
        """A name with one ``%d``, in the place of the layer's number."""
        found = self.text(key)
        if found.count("%") != 1 or "%d" not in found:
            raise self.wrong(key, "a name with %d in the place of the layer's number", found)
        return found

    def _required(self, key: str) -> Any:
        if key not in self.values:
            raise DecoderError(f"the key '{self._full(key)}' is missing", source=self.source)
        return self.values[key]

    def _full(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def wrong(self, key: str, expected: str, found: object) -> DecoderError:
        """The error for a value that is not what it must be."""
        shown = repr(found)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return DecoderError(f"the key '{self._full(key)}' must be {expected}, not {shown}", source=self.source)
