"""Calls of functions in the text of a model, found as it grows.

Four forms are known, which cover the templates of most models:

* ``<tool_call>{...}</tool_call>`` anywhere in the text (Hermes, Qwen),
* DeepSeek's marks, which ``marked_calls`` rewrites as that,
* an object at its beginning (Llama 3),
* an array of objects there (Mistral, Granite).

An object has ``name``, and ``arguments`` or ``parameters``. What turns out to be none of them is text.
"""

from collections.abc import Collection
from dataclasses import dataclass
from io import StringIO
from typing import Final, TypeAlias

from repoagent.nested_text import read_json
from repoagent_server.openai.marked_calls import MarkedCalls
from repoagent_server.openai.reasoning import LONGEST_BLANK, parts, unfinished

_ARGUMENTS: Final = frozenset({"arguments", "parameters"})
_SPACES: Final = frozenset(" \t\r\n")


class CallObject:
    """``names``: the functions that there are. ``before``: what stands before the object."""

    def __init__(self, names: Collection[str], before: str = "") -> None:
        self._names = names
        self._before = before
        self.name: str | None = None
        self.told = False
        """Whether the name has been reported."""
        self.done = False
        self.failed = False
        """Whether it is not a call of one of the functions."""
        self._json = StringIO()
        """What has been read: to add a piece to a text would copy all before it."""
        self._read = 0
        self._solid = 0
        """Where the last character that has been read ends which is no space."""
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

    @property
    def text(self) -> str:
        """All of it, for what turns out to be no call."""
        return self._before + self._json.getvalue()

    def feed(self, text: str) -> str:
        """Take more text; what follows the object is returned."""
        self._json.write(text)
        begin = self._read
        for character in text:
            if self.done or self.failed:
                break
            self._character(character, self._read)
            self._read += 1
            if not character.isspace():
                self._solid = self._read
        self._json.seek(self._read)
        self._json.truncate()
        return text[self._read - begin :]

    def _part(self, start: int, end: int) -> str:
        place = self._json.tell()
        self._json.seek(start)
        part = self._json.read(end - start)
        self._json.seek(place)
        return part

    def take_arguments(self) -> str:
        """More of the arguments, as JSON; the beginning is what has been taken before."""
        if self._span is None:
            if self.done and not self._given:
                self._given = 2
                return "{}"
            return ""
        start, end = self._span
        if self._part(start, start + 1) == '"':  # Some models write the arguments as a string of JSON.
            if end < 0 or self._given:
                return ""
            self._given = 1
            return _string(self._part(start, end)) or "{}"
        given, stop = start + self._given, self._read if end < 0 else end
        piece = self._part(given, stop) if given < stop else ""
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
            self._end_value()
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
                self._last = _string(self._part(start, place + 1))

    def _begin_value(self, place: int) -> None:
        if self._depth == 1 and self._key is not None and self._value < 0:
            self._value = place
            if self._key in _ARGUMENTS and self._span is None:
                self._span = (place, -1)

    def _close(self, place: int) -> None:
        if self._depth == 1:
            self._end_value()
        self._depth -= 1
        if self._depth == 0:
            self.done = True
            self.failed |= self.name is None
        if self._depth == 1 and self._value >= 0:
            self._end_arguments(place + 1)

    def _end_value(self) -> None:
        """A member of the object has ended."""
        if self._key == "name" and self._value >= 0:
            self.name = _string(self._part(self._value, self._solid))
            self.failed = self.name not in self._names
        if self._key in _ARGUMENTS and self._value >= 0:
            self._end_arguments(self._solid)
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


_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"
_MARKS: Final = ("<|python_tag|>", "<|tool_call|>", "[TOOL_CALLS]")
"""What some models put before a call at the beginning; most often a special token, which is not in the text."""
_BETWEEN: Final = frozenset(" \t\r\n,;")


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of call number ``index``: its name, which comes first, or more of its arguments."""

    index: int
    name: str | None = None
    arguments: str = ""


Part: TypeAlias = str | CallPiece
"""Of what a text adds: text, or a call."""


class ToolCalls:
    """One text. ``names``: the functions that there are. Unless ``parallel``, only the first call counts."""

    def __init__(self, names: Collection[str], *, parallel: bool = True) -> None:
        self._names = names
        self._parallel = parallel
        self._marked = MarkedCalls()
        self._waiting = ""
        self._begun = False
        """Whether the beginning of the text has been looked at."""
        self._object: CallObject | None = None
        self._tagged = False
        self._closing = False
        """Whether the end of a tag is to come."""
        self._bare = False
        """Whether calls follow each other without tags."""
        self._called = False
        """Whether the last that came was a call."""
        self.count = 0
        """Calls so far."""

    def feed(self, piece: str, *, final: bool) -> list[Part]:
        """The texts and the calls that ``piece`` adds, in their order; ``final``: nothing more comes."""
        found: list[Part] = []
        *firsts, last = parts(piece)
        for part in firsts:
            self._waiting += self._marked.feed(part, final=False)
            while self._step(found, final=False):
                pass
        self._waiting += self._marked.feed(last, final=final)
        while self._step(found, final):
            pass
        return found

    def _step(self, found: list[Part], final: bool) -> bool:
        """Take something of what waits; False if nothing can be."""
        if self._object is not None:
            return self._in_object(self._object, found, final)
        if not self._begun:
            return self._at_beginning(final)
        if self._bare:
            return self._between(final)
        if self._closing:
            return self._at_close(final)
        if self._tagged:
            return self._after_tag(found, final)
        return self._in_text(found, final)

    def _at_beginning(self, final: bool) -> bool:
        """Whether the text begins with a call without a tag."""
        text = self._waiting.lstrip()
        final |= len(self._waiting) > LONGEST_BLANK
        if not final and (not text or any(mark.startswith(text) for mark in _MARKS)):
            return False
        for mark in _MARKS:
            text = text.removeprefix(mark).lstrip() if text.startswith(mark) else text
        if not text and not final:
            return False
        inside = text[1:].lstrip() if text.startswith("[") else text
        if text.startswith("[") and not inside and not final:
            return False
        self._begun = True
        if inside.startswith("{"):
            self._bare = True
            self._open(inside, self._waiting[: len(self._waiting) - len(inside)])
        return True

    def _open(self, text: str, before: str) -> None:
        """An object begins with ``text``; ``before`` is what goes before it if it is no call."""
        self._waiting = text
        self._object = CallObject(self._names, before)

    def _in_object(self, held: CallObject, found: list[Part], final: bool) -> bool:
        text, self._waiting = self._waiting, ""
        self._waiting = held.feed(text)
        shown = self._parallel or not self.count
        if held.name is not None and shown and not (held.failed and not held.told):
            if not held.told:
                held.told = True
                found.append(CallPiece(self.count, held.name))
            if arguments := held.take_arguments():
                found.append(CallPiece(self.count, None, arguments))
        if not (held.done or held.failed or final):
            return False
        self._object = None
        if not held.told and (held.name is None or held.failed):
            found.append(held.text)  # It is a text after all.
            self._bare = self._closing = False
        else:
            self.count += 1
            self._called = True
        return bool(self._waiting)

    def _between(self, final: bool) -> bool:
        """After a call without a tag: another one, or the end."""
        text = self._waiting.lstrip("".join(_BETWEEN))
        if text.startswith("{"):
            self._open(text, "")
            return True
        if (text and text.strip() != "]") or len(self._waiting) > LONGEST_BLANK:
            self._bare = False
            return True
        if final:
            self._waiting = ""
        return False

    def _at_close(self, final: bool) -> bool:
        """After a call in a tag: its end, which may be missing."""
        text = self._waiting.lstrip()
        if _CLOSE.startswith(text) and text != _CLOSE and not final:
            self._waiting = text
            return False
        self._waiting = text.removeprefix(_CLOSE)
        self._closing = False
        return True

    def _in_text(self, found: list[Part], final: bool) -> bool:
        """Text, up to the next tag; without the spaces behind a call."""
        text = self._waiting.lstrip() if self._called else self._waiting
        place = text.find(_OPEN)
        held = 0 if final or place >= 0 else unfinished(text, (_OPEN,))
        end = place if place >= 0 else len(text) - held
        found.append(text[:end])
        self._called &= not end
        self._tagged = place >= 0
        self._waiting = text[end + len(_OPEN) :] if self._tagged else text[end:]
        return self._tagged

    def _after_tag(self, found: list[Part], final: bool) -> bool:
        text = self._waiting.lstrip()
        if text.startswith("{"):
            self._tagged, self._closing = False, True
            self._open(text, _OPEN + self._waiting[: len(self._waiting) - len(text)])
            return True
        if text or final or len(self._waiting) > LONGEST_BLANK:
            found.append(_OPEN)
            self._tagged = False
            return True
        return False
