"""JSON as Triton reads it: names without quotes, strings in single quotes and trailing commas are accepted too."""

import json
import re
from typing import Any, Final

from repoagent.nested_text import read_json

__all__ = ["loads"]

# Every alternative takes all that it has looked at (possessive, and an end of a string that is missing is none), so
# that the time stays proportional to the length of the text, whatever a client sends.
_TOKEN: Final = re.compile(
    r"""(?P<double>"(?:[^"\\]|\\.|\\\Z)*+"?)
      | '(?P<single>(?:[^'\\]|\\.|\\\Z)*+)(?P<close>'?)
      | (?P<name>[A-Za-z_$][\w$]*+)(?P<colon>\s*+:)?
      | (?P<comma>,)(?=\s*+[}\]])""",
    re.VERBOSE | re.DOTALL,
)


def loads(text: str) -> Any:
    """Read ``text`` as JSON, and if that fails, once more with the liberties above.

    Raises ``ValueError``; a ``json.JSONDecodeError`` (which is one) speaks about ``text`` as it was given.
    """
    try:
        return read_json(text)
    except json.JSONDecodeError as error:
        try:
            return read_json(_TOKEN.sub(_strict, text))
        except ValueError:
            raise error from None


def _strict(match: re.Match[str]) -> str:
    if match["comma"] is not None:
        return ""
    if match["colon"] is not None:
        return f'"{match["name"]}":'
    if match["single"] is not None:
        return '"' + match["single"].replace("\\'", "'").replace('"', '\\"') + match["close"].replace("'", '"')
    return match[0]
