"""Reading the values of options."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from repoagent.errors import InvalidArgumentError, UnsafePathError

_NAME_BYTES: Final = 200
"""Of 255 that filesystems take: what lies beside the file is named after it."""
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


def choice(options: Mapping[str, str], name: str, choices: Iterable[str]) -> str:
    """The value of the option ``name``, in lower case. Raises ``InvalidArgumentError`` if it is not one of
    ``choices``."""
    value, choices = options[name].lower(), list(choices)
    if value in choices:
        return value
    close = difflib.get_close_matches(value, choices, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"expected one of: {', '.join(choices)}"
    raise InvalidArgumentError(f"parameter '{name}': '{options[name]}' is not a valid value; {hint}")


def truth(options: Mapping[str, str], name: str) -> bool:
    """The value of an option that is true or false. Raises ``InvalidArgumentError`` if it is neither."""
    return _BOOLEANS[choice(options, name, _BOOLEANS)]


def number(options: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    """The value of an option that is a whole number; None if it was not given. Raises ``InvalidArgumentError`` if it is
    something else, or out of range."""
    text = options.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most:
        return int(text)
    raise InvalidArgumentError(f"parameter '{name}': '{text}' is not a whole number from {least} to {most}")


def file_name(options: Mapping[str, str], name: str) -> str | None:
    """The value of an option that names a file, without any directory; None if it was not given. Raises
    ``UnsafePathError`` if it is something else."""
    value = options.get(name)
    if value is None:
        return None
    plain = value not in ("", ".", "..") and "/" not in value and value.isprintable()
    if not plain or len(value.encode()) > _NAME_BYTES:
        raise UnsafePathError(f"parameter '{name}': {value[:_NAME_BYTES]!r} is not a plain file name")
    return value
