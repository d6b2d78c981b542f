"""What a license can be bound to: this machine, and the content of a model."""

import hashlib
import stat
from pathlib import Path
from typing import Final

from repoagent.api import AgentModel, NotFoundError, UnsafePathError, digest_files, read_small_file, walk_beneath

_PLACES: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_PURPOSE: Final = b"repoagent-license:"
"""Mixed in, as machine-id(5) asks for: the identifier of the machine itself should not be handed to others."""


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


def model_digest(root: Path, model: AgentModel | None = None) -> str:
    """The digest of all files in version directories, ``sha256:...``; ``model``, if there is one, has those of files.

    It is the SHA-256 of the sorted lines ``SHA256 (1/model.onnx) = ...``, as
    ``sha256sum --tag FILES | LC_ALL=C sort | sha256sum`` prints it.

    Raises:
        UnsafePathError: a link or a special file in a version directory, or a name that no line can have.
        CancelledError: the load was cancelled.
    """
    names = []
    for name, mode, _ in walk_beneath(root, skip=_outside_versions):
        _check_name(name)
        if not stat.S_ISDIR(mode):
            names.append(name)
    wanted = dict.fromkeys(names, ("sha256",))
    digests = digest_files(root, wanted) if model is None else model.digests(wanted)
    lines = sorted((f"SHA256 ({path}) = {found['sha256']}\n" for path, found in digests.items()), key=str.encode)
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def _outside_versions(name: str) -> bool:
    return not name.partition("/")[0].isdecimal()


def _check_name(path: str) -> None:
    """One name must not read as the lines of several files: then two models would have the same digest."""
    if any(character < " " or character == "\x7f" for character in path):
        raise UnsafePathError(f"{path!r} has control characters in its name")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UnsafePathError(f"{path!r} has a name that is not UTF-8") from None
