"""Directories that no one else can write to."""

import contextlib
import logging
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from repoagent.errors import InvalidArgumentError, UnavailableError

logger = logging.getLogger(__name__)

_MOST_LINKS: Final = 40
"""As many as the kernel follows in one path (path_resolution(7))."""


def private_root(path: Path, *, purpose: str) -> Path:
    """As :func:`private_directory`, for one whose parents are not ours either: its place, without links.

    Who owns a directory can put another one into the place of what is in it. So every parent must be this user's or
    root's, and so must every link on the way, or this raises ``InvalidArgumentError``. One that everybody can write to,
    without the sticky bit, is only reported: a volume that Kubernetes makes for one pod is such.
    """
    _check_owners(path, f"{purpose} directory")  # before anything is made there
    made = private_directory(path, purpose=purpose).resolve()
    _check_owners(path, f"{purpose} directory")
    _warn_of_parents(path, made, f"{purpose} directory")
    return made


def check_parents(path: Path, *, purpose: str) -> None:
    """Refuse what :func:`private_root` refuses of the parents of ``path``, which need not be there itself."""
    _check_owners(path, purpose)
    _warn_of_parents(path, path.parent.resolve() / path.name, purpose)


def _warn_of_parents(path: Path, real: Path, what: str) -> None:
    for parent in (parent for parent in real.parents if parent.exists()):
        if _everybody_may_rename_in(parent.stat()):
            logger.log(
                logging.INFO if parent.is_mount() else logging.WARNING,
                "the %s %s lies in %s, where every user can put another directory in its place; set the "
                "sticky bit (chmod +t), or name another directory, if others use this machine or container",
                what,
                path,
                parent,
            )


def _check_owners(path: Path, what: str) -> None:
    """Refuse a place with a parent, or a link on the way, that belongs to neither this user nor root."""
    for step in _looked_up(path.parent):
        with contextlib.suppress(OSError):  # it is not there yet, or making the directory will show why not
            owner = step.lstat().st_uid
            if owner not in (0, os.geteuid()) and not _is_unmapped(owner):
                raise InvalidArgumentError(
                    f"the {what} {path} lies in {step}, which belongs to user {owner}: that user can "
                    "put another directory in its place; name a directory whose parents belong to this user or to root"
                )


def _looked_up(path: Path) -> Iterator[Path]:
    """Every directory and link that the kernel looks at on the way to ``path``, in its order."""
    place = Path("/")
    yield place
    names = list(reversed(path.absolute().parts[1:]))
    links = 0
    while names:
        name = names.pop()
        if name == "..":
            place = place.parent
            continue
        step = place / name
        yield step
        if not step.is_symlink():
            place = step
            continue
        links += 1
        if links > _MOST_LINKS:  # the kernel refuses the path too
            return
        target = step.readlink()
        names += [part for part in reversed(target.parts) if part != target.anchor]
        place = Path(target.anchor) if target.is_absolute() else place


def _is_unmapped(owner: int) -> bool:
    """Whether ``owner`` stands for all users that this user namespace does not map.

    In a container without root, such as one of Apptainer, that is whom the host's directories belong to, root's too
    (user_namespaces(7)). Who it really is cannot be found out.
    """
    try:
        if owner != int(Path("/proc/sys/kernel/overflowuid").read_text()):
            return False
        ranges = [[*map(int, line.split())] for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except (OSError, ValueError):
        return False
    return not any(first <= owner < first + count for first, _, count in ranges)


def private_directory(path: Path, *, purpose: str) -> Path:
    """Create ``path``, and its parents, with mode 0700 if need be; ``purpose`` begins the message of an error.

    Raises ``InvalidArgumentError`` for a link, no directory, someone else's, or one that others can write to, and
    ``UnavailableError`` if it cannot be created.
    """
    try:
        with contextlib.suppress(FileExistsError):  # What is there instead is reported below.
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise UnavailableError(
            f"cannot create the {purpose} directory {path}: {error.strerror}; name one that this user can make and "
            "write to"
        ) from error
    fault = _fault(status)
    if fault:
        raise InvalidArgumentError(
            f"the {purpose} directory {path} {fault}; expected a directory that this user owns and no other can write "
            "to: correct it, or name one that does not exist yet"
        )
    return path


def default_workspace_path(environment: Mapping[str, str]) -> Path:
    """``$REPOAGENT_WORKSPACE``, else ``workspace`` in systemd's ``$STATE_DIRECTORY``, which no cleaner looks into, else
    ``repoagent-<uid>`` in the directory for temporary files."""
    if given := environment.get("REPOAGENT_WORKSPACE"):
        return Path(given).resolve()
    if state := environment.get("STATE_DIRECTORY"):
        return Path(state.split(":")[0]).resolve() / "workspace"
    return Path(tempfile.gettempdir()) / f"repoagent-{os.geteuid()}"


def default_cache_path(environment: Mapping[str, str]) -> Path:
    """``$REPOAGENT_CACHE``, else ``$XDG_CACHE_HOME/repoagent``, else ``~/.cache/repoagent``."""
    given = environment.get("REPOAGENT_CACHE")
    if given:
        return Path(given).resolve()
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "repoagent"


def _everybody_may_rename_in(status: os.stat_result) -> bool:
    return bool(status.st_mode & stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX


def _fault(status: os.stat_result) -> str | None:
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to {os.geteuid()}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"has mode {stat.S_IMODE(status.st_mode):04o}, which lets others write to it"
    return None
