"""What a license can be bound to: this machine, and the content of a model."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from repoagent.api import CancelledError, NotFoundError, UnsafePathError, list_beneath, open_beneath, read_small_file

__all__ = ["host_id", "model_digest"]

_PLACES: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_PURPOSE: Final = b"repoagent-license:"
"""Mixed in, as machine-id(5) asks for: the identifier of the machine itself should not be handed to others."""
_PIECE: Final = 4 << 20


def host_id(places: tuple[Path, ...] = _PLACES) -> str:
    """The identifier of this machine, ``sha256:...``.

    Raises:
        NotFoundError: the machine has none. Many containers have none unless the host's is mounted into them.
    """
    for place in places:
        try:
            text = read_small_file(place, limit=4096).strip()
        except OSError:
            continue
        if text:
            return f"sha256:{hashlib.sha256(_PURPOSE + text).hexdigest()}"
    raise NotFoundError(
        f"the license is bound to machines, and this one has no {places[0]}; in a container, mount that of the host"
    )


def model_digest(root: Path, cancelled: Callable[[], bool] = lambda: False) -> tuple[str, int]:
    """The digest of all files in version directories, ``sha256:...``, and how many bytes they have.

    It is the SHA-256 of the sorted lines ``SHA256 (1/model.onnx) = ...``, as
    ``sha256sum --tag FILES | LC_ALL=C sort | sha256sum`` prints it.

    Raises:
        UnsafePathError: a link or a special file in a version directory, or a name that no line can have.
        CancelledError: ``cancelled`` answered True.
    """
    lines, total = [], 0
    for path in _files(root):
        digest, size = _file_digest(root, path, cancelled)
        lines.append(f"SHA256 ({path}) = {digest}\n")
        total += size
    text = "".join(sorted(lines, key=str.encode)).encode()
    return f"sha256:{hashlib.sha256(text).hexdigest()}", total


def _files(root: Path) -> Iterator[str]:
    pending = [name for name in list_beneath(root) if name.isdecimal()]
    while pending:
        path = pending.pop()
        _check_name(path)
        try:
            inside = list_beneath(root, path, follow=False)
        except NotADirectoryError:
            yield path
        else:
            pending += [f"{path}/{name}" for name in inside]


def _check_name(path: str) -> None:
    """One name must not read as the lines of several files: then two models would have the same digest."""
    if any(character < " " or character == "\x7f" for character in path):
        raise UnsafePathError(f"{path!r} has control characters in its name")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UnsafePathError(f"{path!r} has a name that is not UTF-8") from None


def _file_digest(root: Path, path: str, cancelled: Callable[[], bool]) -> tuple[str, int]:
    hasher, size = hashlib.sha256(), 0
    with open_beneath(root, path, follow=False) as file:
        while piece := file.read(_PIECE):
            if cancelled():
                raise CancelledError("the load was cancelled while the model was hashed")
            hasher.update(piece)
            size += len(piece)
    return hasher.hexdigest(), size
