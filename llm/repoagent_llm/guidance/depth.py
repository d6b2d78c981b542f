"""How deeply a guide is nested, counted without recursion: whatever reads it later calls itself once for each level.

Python's own readers and compilers in other languages have limits that differ between versions, or none.
"""

import re
from typing import Final

from repoagent_llm.types.errors import CheckError

__all__ = ["MOST_LEVELS", "check_depth"]

MOST_LEVELS: Final = 100
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_CODE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
_ESCAPED: Final = re.compile(r"\\.", re.DOTALL)
_BRACKET: Final = re.compile(r"\[\^?\]?|[](){}]")
"""Right behind its opening bracket the closing one is a character of the class."""


def check_depth(guide: str, *, is_json: bool) -> None:
    """Raise ``CheckError`` if brackets are open inside of more than ``MOST_LEVELS`` others.

    In JSON each string is counted by itself, for it may be an expression or a grammar. Elsewhere quotes may mean a
    string or nothing, so both are counted.
    """
    outside = _STRING.sub("", guide)
    if is_json:
        outside = outside.replace("[", "{").replace("]", "}")  # These are no classes of characters.
    others = map(_spelled, _STRING.findall(guide)) if is_json else (guide,)
    if any(_deepest(text) > MOST_LEVELS for text in (outside, *others)):
        raise CheckError(f"the guide is nested too deeply: more than {MOST_LEVELS} levels of brackets")


def _spelled(text: str) -> str:
    """A string of JSON as what reads it next sees it, as far as brackets go."""
    return _CODE.sub(lambda code: chr(int(code[1], 16)), text).replace("\\\\", "\\")


def _deepest(text: str) -> int:
    deepest = level = classes = 0
    for found in _BRACKET.finditer(_ESCAPED.sub("", text)):
        bracket = found[0][0]
        if bracket == "[":
            classes += 1
        elif bracket == "]":
            classes = max(0, classes - 1)
        elif not classes:  # there it is a character
            level = level + 1 if bracket in "({" else max(0, level - 1)
        deepest = max(deepest, level + classes)
    return deepest
