"""One JSON object that may be the call of a function, read as it grows."""

from collections.abc import Collection
from typing import Final

from repoagent.nested_text import read_json

__all__ = ["CallObject"]

_ARGUMENTS: Final = frozenset({"arguments", "parameters"})
_SPACES: Final = frozenset(" \t\r\n")


class CallObject:
    """``names``: the functions that there are. ``before``: what stands before the object."""

    def __init__(self, names: Collection[str], before: str = "") -> None:
        self._names = names
        self.text = before
        """All of it, for what turns out to be no call."""
        self.name: str | None = None
        self.told = False
        """Whether the name has been reported."""
        self.done = False
        self.failed = False
        """Whether it is not a call of one of the functions."""
        self._json = ""
        self._read = 0
        self._depth = 0
        self._string = -1
        """Where the string begins in which the text ends, or -1."""
        self._escaped = False
        self._key: str | None = None
        """The member whose value is being read."""
        self._last: str | None = None
        """The last string, which may be a key."""
        self._value = -1
        """Where that value begins, or -1."""
        self._span: tuple[int, int] | None = None
        """Where the arguments begin and, if they have, end; else -1."""
        self._given = 0

    def feed(self, text: str) -> str:
        """Take more text; what follows the object is returned."""
        self._json += text
        data = self._json
        while self._read < len(data) and not (self.done or self.failed):
            self._character(data[self._read], self._read)
            self._read += 1
        rest = data[self._read :]
        self._json = data[: self._read]
        self.text += text[: len(text) - len(rest)]
        return rest

    def take_arguments(self) -> str:
        """More of the arguments, as JSON; the beginning is what has been taken before."""
        if self._span is None:
            if self.done and not self._given:
                self._given = 2
                return "{}"
            return ""
        start, end = self._span
        if self._json[start] == '"':  # Some models write the arguments as a string of JSON.
            if end < 0 or self._given:
                return ""
            self._given = 1
            return _string(self._json[start:end]) or "{}"
        stop = self._read if end < 0 else end
        piece = self._json[start + self._given : stop]
        self._given += len(piece)
        return piece

    def _character(self, character: str, place: int) -> None:
        if self._string >= 0:
            self._in_string(character, place)
        elif character == '"':
            self._string = place
            self._begin_value(place)
        elif character in "{[":
            self._begin_value(place)
            self._depth += 1
        elif character in "}]":
            self._close(place)
        elif character == ":" and self._depth == 1 and self._key is None:
            self._key, self._last = self._last, None
            self.failed = self._key is None
        elif character == "," and self._depth == 1:
            self._end_value(place)
        elif character not in _SPACES:
            self._begin_value(place)

    def _in_string(self, character: str, place: int) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            start, self._string = self._string, -1
            if self._depth == 1 and self._key is None:
                self._last = _string(self._json[start : place + 1])

    def _begin_value(self, place: int) -> None:
        if self._depth == 1 and self._key is not None and self._value < 0:
            self._value = place
            if self._key in _ARGUMENTS and self._span is None:
                self._span = (place, -1)

    def _close(self, place: int) -> None:
        if self._depth == 1:
            self._end_value(place)
        self._depth -= 1
        if self._depth == 0:
            self.done = True
            self.failed |= self.name is None
        if self._depth == 1 and self._value >= 0:
            self._end_arguments(place + 1)

    def _end_value(self, place: int) -> None:
        """A member of the object ends before ``place``."""
        if self._key == "name" and self._value >= 0:
            self.name = _string(self._json[self._value : place].rstrip())
            self.failed = self.name not in self._names
        if self._key in _ARGUMENTS and self._value >= 0:
            self._end_arguments(len(self._json[:place].rstrip()))
        self._key, self._last, self._value = None, None, -1

    def _end_arguments(self, place: int) -> None:
        if self._span is not None and self._span[1] < 0 and self._key in _ARGUMENTS:
            self._span = (self._span[0], place)


def _string(text: str) -> str | None:
    try:
        value = read_json(text, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
