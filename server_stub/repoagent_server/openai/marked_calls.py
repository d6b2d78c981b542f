"""Calls in the marks of DeepSeek's models, rewritten as those of Hermes, which ``tool_calls`` knows.

::

    <|tool_calls_begin|><|tool_call_begin|>NAME<|tool_sep|>{...}<|tool_call_end|><|tool_calls_end|>

This is the form of V3.1. In V3 and R1 ``function`` stands in the place of the name, and the name, on a line of its own
with a block of JSON below it, in that of the object. The forms are those of the models' chat
templates, with U+FF5C and U+2581 where | and _ stand here.
"""

import re
from collections.abc import Callable
from typing import Final

from repoagent_server.codec.json_text import dumps_text
from repoagent_server.openai.reasoning import LONGEST_BLANK, unfinished

_CALL: Final = "<\uff5ctool\u2581call\u2581begin\uff5c>"
_NAMED: Final = "<\uff5ctool\u2581sep\uff5c>"
_END: Final = "<\uff5ctool\u2581call\u2581end\uff5c>"
_FENCE: Final = "\n```"
_MARKS: Final = (_CALL, "<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>")
_ANY: Final = re.compile("<\uff5ctool\u2581(?:call\u2581begin|calls\u2581begin|calls\u2581end)\uff5c>")
_BLOCK: Final = "```json"
_LONGEST_HEAD: Final = 1024


class MarkedCalls:
    """One text."""

    def __init__(self) -> None:
        self._waiting = ""
        self._step: Callable[[bool], str] = self._in_text

    def feed(self, piece: str, *, final: bool) -> str:
        """What ``piece`` adds, with calls in the form of Hermes; ``final``: nothing more comes."""
        self._waiting += piece
        found, step = "", None
        while self._step != step:
            step = self._step
            found += step(final)
        return found

    def _in_text(self, final: bool) -> str:
        """Up to the next call, without the marks around all of them."""
        shown = ""
        while (mark := _ANY.search(self._waiting)) is not None:
            shown += self._waiting[: mark.start()]
            self._waiting = self._waiting[mark.end() :]
            if mark[0] == _CALL:
                self._step = self._in_head
                return shown
        kept = 0 if final else unfinished(self._waiting, _MARKS)
        end = len(self._waiting) - kept
        shown, self._waiting = shown + self._waiting[:end], self._waiting[end:]
        return shown

    def _in_head(self, final: bool) -> str:
        """Up to the object. What turns out to have none is text."""
        head, mark, rest = self._waiting.partition(_NAMED)
        line, _, below = rest.lstrip().partition("\n")
        if mark and line.startswith("{"):
            name, self._waiting = head.strip(), rest
        elif below.startswith(_BLOCK):
            name, self._waiting = line.strip(), below.removeprefix(_BLOCK)
        elif final or len(self._waiting) > _LONGEST_HEAD:
            self._step = self._in_text
            return _CALL
        else:
            return ""
        self._step = self._in_arguments
        return f'<tool_call>{{"name": {dumps_text(name)}, "arguments": '

    def _in_arguments(self, final: bool) -> str:
        """The object: up to the end of its block, and of the call."""
        text, end = self._waiting, self._waiting.find(_END)
        fence = text.find(_FENCE, 0, end if end >= 0 else len(text))
        if end >= 0:
            self._waiting, self._step = text[end + len(_END) :], self._in_text
            return text[: fence if fence >= 0 else end] + "}</tool_call>"
        kept = len(text) - fence if fence >= 0 else unfinished(text, (_FENCE, _END))
        if final or kept > LONGEST_BLANK:
            kept = 0
        shown, self._waiting = text[: len(text) - kept], text[len(text) - kept :]
        return shown
