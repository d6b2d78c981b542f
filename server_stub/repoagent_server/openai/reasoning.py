"""What a model thinks before it answers, cut from its text as it grows.

=============================  ==============================================================================
``<think>...</think>``         Qwen 3, DeepSeek-R1, SmolLM3; a template may write the first mark into the prompt
``<|channel|>analysis...``     gpt-oss, whose texts are messages on channels: what is neither an answer nor a call
                               is reasoning, and calls become those of Hermes, which ``tool_calls`` knows
=============================  ==============================================================================
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"
_CHANNEL: Final = "<|channel|>"
_MESSAGE: Final = "<|message|>"
_ENDS: Final = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")
_MARKS: Final = (_CHANNEL, _MESSAGE, *_ENDS)
_ANY: Final = re.compile("(" + "|".join(map(re.escape, _MARKS)) + ")")
_FUNCTION: Final = re.compile(r"to=functions\.([A-Za-z0-9_.-]{1,64})")
_LONGEST_HEADER: Final = 1024
LONGEST_BLANK: Final = 4096
"""Characters that wait for what follows them. More are text: each piece would be compared with all of them."""


def parts(piece: str) -> list[str]:
    """``piece``, at least one part: what is cut off the front of a long text copies the rest of it."""
    return [piece[start : start + LONGEST_BLANK] for start in range(0, len(piece), LONGEST_BLANK)] or [""]


def unfinished(text: str, words: Sequence[str]) -> int:
    """How many characters at the end of ``text`` are the beginning of one of ``words``."""
    for size in range(min(len(text), max(map(len, words)) - 1), 0, -1):
        end = text[len(text) - size :]
        if any(word.startswith(end) for word in words):
            return size
    return 0


class Reasoning:
    """One text. ``opened``: whether the prompt has its first mark."""

    def __init__(self, *, opened: bool = False) -> None:
        self._waiting = ""
        self._step: Callable[[bool], tuple[str, str]] = self._thinking if opened else self._beginning
        self._call = False
        """Whether the message that is read is one."""
        self._thought = False
        """Whether it is reasoning."""

    def feed(self, piece: str, *, final: bool) -> tuple[str, str]:
        """What ``piece`` adds to the reasoning and to the answer; ``final``: nothing more comes."""
        found = [("", "")]
        *firsts, last = parts(piece)
        for part in firsts:
            self._feed(part, False, found)
        self._feed(last, final, found)
        return "".join(thought for thought, _ in found), "".join(answer for _, answer in found)

    def _feed(self, part: str, final: bool, found: list[tuple[str, str]]) -> None:
        self._waiting += part
        step = None
        while self._step != step:
            step = self._step
            found.append(step(final))

    def _beginning(self, final: bool) -> tuple[str, str]:
        """Until it is known whether the text begins with a mark."""
        text = self._waiting.lstrip()
        if text.startswith(_OPEN):
            self._waiting, self._step = text.removeprefix(_OPEN), self._thinking
        elif text.startswith(_CHANNEL):
            self._waiting, self._step = text, self._in_header
        elif final or not (_OPEN.startswith(text) or _CHANNEL.startswith(text)) or len(self._waiting) > LONGEST_BLANK:
            self._step = self._answering
        return "", ""

    def _thinking(self, final: bool) -> tuple[str, str]:
        """Up to the last mark, without the blanks around the reasoning."""
        text = self._waiting if self._thought else self._waiting.lstrip()
        place = text.find(_CLOSE)
        if place >= 0:
            self._waiting, self._step = text[place + len(_CLOSE) :], self._behind
            return text[:place].rstrip(), ""
        kept = 0 if final else unfinished(text, (_CLOSE,))
        shown = text[: len(text) - kept]
        shown = shown if final or len(text) > LONGEST_BLANK else shown.rstrip()
        self._waiting = text[len(shown) :]
        self._thought |= bool(shown)
        return shown, ""

    def _behind(self, _: bool) -> tuple[str, str]:
        self._waiting = self._waiting.lstrip()
        if self._waiting:
            self._step = self._answering
        return "", ""

    def _answering(self, _: bool) -> tuple[str, str]:
        answer, self._waiting = self._waiting, ""
        return "", answer

    def _in_header(self, final: bool) -> tuple[str, str]:
        """From the end of a message to the beginning of the next: its channel, and whom it is for."""
        place = self._waiting.find(_MESSAGE)
        if place < 0:
            if final or len(self._waiting) > _LONGEST_HEADER:
                self._waiting = ""
            return "", ""
        header, self._waiting = self._waiting[:place], self._waiting[place + len(_MESSAGE) :]
        name = _FUNCTION.search(header)
        self._call, self._thought = name is not None, name is None and f"{_CHANNEL}analysis" in header
        self._step = self._in_message
        return "", f'<tool_call>{{"name": "{name[1]}", "arguments": ' if name else ""

    def _in_message(self, final: bool) -> tuple[str, str]:
        found = _ANY.search(self._waiting)
        end = found.start() if found else len(self._waiting) - (0 if final else unfinished(self._waiting, _MARKS))
        text, self._waiting = self._waiting[:end], self._waiting[end:]
        if found or final:
            self._waiting = self._waiting[len(found[0]) :] if found else ""
            self._step = self._in_header
            text += "}</tool_call>" if self._call else ""
        return (text, "") if self._thought else ("", text)
