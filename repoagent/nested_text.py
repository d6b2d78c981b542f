"""Reading JSON and TOML from outside: how deep it is nested is counted before a parser sees it.

Parsers call themselves for each level, and so does much that walks what they return. Where that ends differs between
versions of Python: 3.11 raises ``RecursionError`` at a thousand levels, later ones at ten thousand or at the end of the
stack. Nothing here depends on it, and nothing else in this project parses a text of others.
"""

import json
import re
from typing import Any, Final

DEEPEST: Final = 100
"""Levels; no format that is read here needs half of them."""

_CHUNK: Final = 1 << 20
_JSON_STRING: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_TOML_STRING: Final = re.compile(
    r"""\"{3}(?:[^"\\]++|\\.|"(?!""))*+(?:\"{3})?
      | '{3}(?:[^']++|'(?!''))*+(?:'{3})?
      | "(?:[^"\\\n]++|\\.)*+"?
      | '[^'\n]*+'?
      | \#[^\n]*+""",
    re.DOTALL | re.VERBOSE,
)
_STEPS: Final = bytes.maketrans(b"[{(]})", b"\1\1\1\xff\xff\xff")
_OTHERS: Final = bytes(set(range(256)) - set(b"[{(]})"))


def read_json(text: str | bytes | bytearray, *, deepest: int = DEEPEST, most_values: int = 0, **options: Any) -> Any:
    """The value in ``text``, as ``json.loads`` reads it.

    Args:
        text: What to read; bytes in any of JSON's encodings.
        deepest: How many arrays and objects may lie in one another.
        most_values: About how many values there may be; 0 is any number. The parser lets no other thread run: a
            million take it some tenths of a second.
        **options: Those of ``json.loads``.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or has too many values.
    """
    if not isinstance(text, str):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    if most_values and sum(map(text.count, ",[{")) > most_values:
        raise ValueError(f"more than {most_values} values")
    check_depth(text, deepest)
    return json.loads(text, **options)


def read_json_object(text: str | bytes, *, most_values: int = 0) -> dict[str, Any]:
    """The JSON object in ``text``, for what someone signed or decides by: every parser reads the same in it.

    Args:
        text: What to read; bytes in UTF-8.
        most_values: About how many values there may be; 0 is any number.

    Raises:
        ValueError: as :func:`read_json`; not an object, bytes that are not UTF-8, a member twice in one object, NaN or
            infinity.
    """
    text = text if isinstance(text, str) else text.decode()
    document = read_json(
        text, most_values=most_values, object_pairs_hook=_unique_members, parse_constant=_refused_constant
    )
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member occurs twice")
    return members


def _refused_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def read_toml(text: str) -> dict[str, Any]:
    """The document in ``text``.

    Raises:
        ValueError: it is not TOML, or is nested too deeply.
    """
    import tomllib  # half of the programs read no such file

    check_depth(text, strings=_TOML_STRING)
    return tomllib.loads(text)


def check_depth(text: str, deepest: int = DEEPEST, *, strings: re.Pattern[str] = _JSON_STRING) -> None:
    """Raise ``ValueError`` if more than ``deepest`` brackets are open at once.

    What is no bracket of the language is not counted: ``strings`` matches those. A text that is not of the language is
    counted as a parser would read it, up to its first fault.
    """
    if sum(map(text.count, "[{(")) <= deepest:
        return
    import numpy as np  # most texts have few brackets

    steps = strings.sub("", text).encode("ascii", "ignore").translate(_STEPS, _OTHERS)
    depth = 0
    for start in range(0, len(steps), _CHUNK):
        depths = depth + np.cumsum(np.frombuffer(steps[start : start + _CHUNK], np.int8), dtype=np.int64)
        if depths.max() > deepest:
            raise ValueError(f"nested too deeply: more than {deepest} levels")
        depth = int(depths[-1])
