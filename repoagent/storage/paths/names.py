"""Names that come from outside, checked: as names, and as paths where no one else can write.

What someone else may write to is opened with :mod:`repoagent.beneath`, never by a path that was checked before.
"""

import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from repoagent.beneath.opening import relative_parts, shown
from repoagent.errors import InvalidArgumentError, UnsafePathError

NAME_BYTES: Final = 255
"""Of one name, on every filesystem of Linux."""
_NOT_ON_A_LINE: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Categories of characters: controls, half characters, ends of lines and of paragraphs."""


def object_parts(name: str) -> tuple[str, ...]:
    """Split the name of a stored object. Stricter than :func:`relative_parts`: an empty part or ``.`` is refused. So
    two names never give one path."""
    parts = relative_parts(name)
    if "/".join(parts) != name or not parts:
        raise UnsafePathError(f"{shown(name)} is not a plain relative path (an empty part, '.' or a final '/')")
    return parts


def check_component(name: str) -> str:
    """``name`` if it can be the name of one directory entry: not empty, ``.`` or ``..``, without ``/`` and NUL. Else
    raises ``UnsafePathError``."""
    if len(object_parts(name)) != 1:
        raise UnsafePathError(f"{shown(name)} contains '/'; expected one name")
    return name


def check_model_name(name: str) -> str:
    """Return ``name`` if a model can have it: it names one directory, and messages and logs can hold it on one line.

    Raises:
        UnsafePathError: see :func:`check_component`.
        InvalidArgumentError: it holds a control character or an end of a line, is not UTF-8, or is too long.
    """
    if any(unicodedata.category(character) in _NOT_ON_A_LINE for character in name):
        raise InvalidArgumentError(f"{shown(name)} holds a character that no line of text can hold")
    if len(name.encode()) > NAME_BYTES:
        raise InvalidArgumentError(f"{shown(name)} has more than {NAME_BYTES} bytes")
    return check_component(name)


def check_model_directory(name: str) -> str:
    """Return ``name`` if a directory of that name can be a model. Laxer than :func:`check_model_name`: it is there.

    Raises:
        UnsafePathError: see :func:`check_component`.
        InvalidArgumentError: it is not UTF-8.
    """
    if not is_text(name):
        raise InvalidArgumentError(f"{name!a} cannot be the name of a model: it is not UTF-8; rename the directory")
    return check_component(name)


def check_tree(names: Iterable[str]) -> None:
    """Check that ``names`` can be the files of one directory tree.

    Raises:
        UnsafePathError: an unsafe name, one too long for a filesystem, a name twice, or a file whose name another
            file needs for a directory.
    """
    files: set[str] = set()
    directories: set[str] = set()
    for name in names:
        parts = object_parts(name)
        if any(len(part.encode(errors="replace")) > NAME_BYTES for part in parts):
            raise UnsafePathError(f"{shown(name)} has a part of more than {NAME_BYTES} bytes")
        if name in files:
            raise UnsafePathError(f"{shown(name)} is there twice")
        files.add(name)
        directories.update("/".join(parts[:count]) for count in range(1, len(parts)))
    for name in sorted(files & directories):
        raise UnsafePathError(f"{shown(name)} is both a file and a directory")


def join_inside(root: Path | str, relative: str) -> Path:
    """Join ``relative`` to ``root``; where links lead is checked, and need not exist.

    ``root`` itself may be a link: it is the operator's. Links below it must stay below it. The check holds for the
    moment of the call, so what an attacker may write to in the meantime must be snapshotted first.

    Raises:
        UnsafePathError: see :func:`relative_parts`, or a link on the way leaves ``root``.
    """
    parts = relative_parts(relative)
    path = Path(root).joinpath(*parts)
    real_root = os.path.realpath(root)
    if not _is_below(os.path.realpath(path), real_root):
        raise UnsafePathError(f"{shown(relative)} is a link that leaves the model's directory")
    return path


def is_text(name: str) -> bool:
    """Whether a name that was read from a disk is UTF-8: a configuration, or a client, can state no other."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def file_label(text: str) -> str:
    """A short file name made from any text: for people to recognise, not unique."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text)[:48] or "_"


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
