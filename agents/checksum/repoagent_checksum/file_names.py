"""File names that come from outside: made plain, shown, and opened without ever leaving the directory."""

from io import FileIO
from pathlib import Path

from repoagent.api import InvalidArgumentError, UnsafePathError, open_beneath, read_beneath

MAX_TEXT_BYTES = 64 << 20
"""The largest digest file, listing or index that is read."""
MOST_VALUES = 1_000_000
"""Of a listing, an index or a header in JSON. A shard of 100,000 tensors has fewer."""


def plain_name(name: str, source: str) -> str:
    """``name`` without a leading ``./``, if it surely names something below the directory it is relative to.

    Args:
        name: As written.
        source: Where it was written, for the message.

    Raises:
        UnsafePathError: empty, absolute, with NUL, or with ``.``, ``..`` or nothing between two slashes.
    """
    plain = name
    while plain.startswith("./"):
        plain = plain[2:]
    parts = plain.split("/")
    if "\0" in plain or any(part in ("", ".", "..") for part in parts):
        raise UnsafePathError(f"{source}: {show(name)!r} is not a plain relative path inside the model's directory")
    return plain


def show(name: str) -> str:
    """``name`` on one line and printable, whatever bytes it is made of."""
    text = name.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def open_inside(root: Path, name: str) -> FileIO:
    """Open the regular file ``name`` below ``root`` for unbuffered reading; close it.

    No link is followed at any step and a FIFO does not block, so what is read is a file of this very directory.

    Raises:
        OSError: it cannot be opened.
        UnsafePathError: a link, or a special file.
    """
    return open_beneath(root, name, follow=False)


def read_inside(root: Path, name: str, what: str) -> bytes:
    """The content of a small file below ``root``; ``what`` names its kind in the messages.

    Raises:
        InvalidArgumentError: it cannot be read, or is larger than ``MAX_TEXT_BYTES``.
        UnsafePathError: a link, or a special file.
    """
    try:
        return read_beneath(root, name, limit=MAX_TEXT_BYTES, follow=False)
    except OSError as error:
        raise InvalidArgumentError(f"{what} {show(name)} cannot be read: {error.strerror}") from error
