"""Calls of functions in the text of a model, found as it grows.

Three forms are known, which cover the templates of most models: ``<tool_call>{...}</tool_call>`` anywhere in the text
(Hermes, Qwen), an object at its beginning (Llama 3), and an array of objects there (Mistral, Granite). An object has
``name`` and ``arguments`` or ``parameters``. What turns out to be none of them is text.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from repoagent_server.openai.call_object import CallObject

__all__ = ["CallPiece", "ToolCalls"]

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


class ToolCalls:
    """One text. ``names``: the functions that there are. Unless ``parallel``, only the first call counts."""

    def __init__(self, names: Collection[str], *, parallel: bool = True) -> None:
        self._names = names
        self._parallel = parallel
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

    def feed(self, piece: str, *, final: bool) -> tuple[str, list[CallPiece]]:
        """The text and the calls that ``piece`` adds; ``final``: nothing more comes."""
        self._waiting += piece
        content: list[str] = []
        calls: list[CallPiece] = []
        while self._step(content, calls, final):
            pass
        return "".join(content), calls

    def _step(self, content: list[str], calls: list[CallPiece], final: bool) -> bool:
        """Take something of what waits; False if nothing can be."""
        if self._object is not None:
            return self._in_object(self._object, content, calls, final)
        if not self._begun:
            return self._at_beginning(content, final)
        if self._bare:
            return self._between(final)
        if self._closing:
            return self._at_close(final)
        if self._tagged:
            return self._after_tag(content, final)
        return self._in_text(content, final)

    def _at_beginning(self, content: list[str], final: bool) -> bool:
        """Whether the text begins with a call without a tag."""
        text = self._waiting.lstrip()
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

    def _in_object(self, found: CallObject, content: list[str], calls: list[CallPiece], final: bool) -> bool:
        text, self._waiting = self._waiting, ""
        self._waiting = found.feed(text)
        shown = self._parallel or not self.count
        if found.name is not None and shown and not (found.failed and not found.told):
            if not found.told:
                found.told = True
                calls.append(CallPiece(self.count, found.name))
            if arguments := found.take_arguments():
                calls.append(CallPiece(self.count, None, arguments))
        if not (found.done or found.failed or final):
            return False
        self._object = None
        if not found.told and (found.name is None or found.failed):
            content.append(found.text)  # It is a text after all.
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
        if text and text.strip() != "]":
            self._bare = False
            return True
        if final:
            self._waiting = ""
        return False

    def _at_close(self, final: bool) -> bool:
        """After a call in a tag: its end, which may be missing."""
        text = self._waiting.lstrip()
        if _CLOSE.startswith(text) and text != _CLOSE and not final:
            return False
        self._waiting = text.removeprefix(_CLOSE)
        self._closing = False
        return True

    def _in_text(self, content: list[str], final: bool) -> bool:
        """Text, up to the next tag; without the spaces behind a call."""
        text = self._waiting.lstrip() if self._called else self._waiting
        place = text.find(_OPEN)
        held = 0 if final or place >= 0 else _beginning(text)
        end = place if place >= 0 else len(text) - held
        content.append(text[:end])
        self._called &= not end
        self._tagged = place >= 0
        self._waiting = text[end + len(_OPEN) :] if self._tagged else text[end:]
        return self._tagged

    def _after_tag(self, content: list[str], final: bool) -> bool:
        text = self._waiting.lstrip()
        if text.startswith("{"):
            self._tagged, self._closing = False, True
            self._open(text, _OPEN + self._waiting[: len(self._waiting) - len(text)])
            return True
        if text or final:
            content.append(_OPEN)
            self._tagged = False
            return True
        return False


def _beginning(text: str) -> int:
    """How many characters at the end of ``text`` are the beginning of a tag."""
    for size in range(min(len(text), len(_OPEN) - 1), 0, -1):
        if _OPEN.startswith(text[len(text) - size :]):
            return size
    return 0
