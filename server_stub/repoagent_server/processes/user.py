"""``--worker-user``: another user for the workers, which reads what it is handed over of the keeper's files."""

import os
import pwd
import stat
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final

from repoagent.errors import InvalidArgumentError, UnavailableError

_ACCESS_LIST: Final = "system.posix_acl_access"
_NO_ID: Final = 0xFFFFFFFF
_READ, _WRITE, _ENTER = 4, 2, 1
_OWNER, _USER, _GROUP, _MASK, _OTHERS = 1, 2, 4, 16, 32
_MASKED: Final = (_USER, _GROUP, 8)
_VERSION: Final = struct.pack("<I", 2)
_ENTRY: Final = struct.Struct("<HHI")
"""Which kind of entry, the rights, and whose."""


@dataclass(frozen=True, slots=True)
class WorkerUser:
    """A user without supplementary groups. Files are opened to it by access lists: their owner and mode for others
    stay."""

    name: str
    uid: int
    gid: int
    home: str

    @classmethod
    def of(cls, name: str) -> "WorkerUser":
        """The user of that name or number.

        Raises:
            InvalidArgumentError: there is none, it is root, or this process may not start others under it.
        """
        if os.geteuid() != 0:
            raise InvalidArgumentError("--worker-user needs a server that is started as root")
        number = int(name) if name.isascii() and name.isdecimal() else None
        try:
            entry = pwd.getpwnam(name) if number is None else pwd.getpwuid(number)
            found = cls(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)
        except (KeyError, OverflowError):
            if number is None or not 0 < number < _NO_ID:
                raise InvalidArgumentError(f"--worker-user: this machine has no user '{name}'") from None
            found = cls(name, number, number, "/")
        if found.uid == 0:
            raise InvalidArgumentError("--worker-user: root reads everything; name a user that owns nothing")
        return found

    @property
    def start(self) -> Mapping[str, Any]:
        """Arguments of ``Popen``. The one group is that which the user has anyway: Python 3.12.0 does nothing for an
        empty list (CVE-2023-6507)."""
        return {"user": self.uid, "group": self.gid, "extra_groups": [self.gid]}

    @property
    def environment(self) -> Mapping[str, str]:
        """What names the user."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    def hand_over(self, root: Path, private: Iterable[Path]) -> None:
        """Let the user read what lies beneath ``root``, if that lies in a directory which is ``private`` to the keeper.

        Elsewhere files belong to the operator, whose rights stay as they are. Links are not followed.

        Raises:
            UnavailableError: the filesystem keeps no access lists.
        """
        top = next((top for top in private if root.is_relative_to(top)), None)
        if top is None:
            return
        for place in (top, *(one for one in reversed(root.parents) if one != top and one.is_relative_to(top))):
            self._allow(place, _ENTER)
        for directory, _, names, fd in os.fwalk(root, onerror=_raise):
            self._allow(Path(directory), _READ | _ENTER, fd)
            for name in names:
                if stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
                    try:
                        self._allow(Path(directory, name), _READ, file)
                    finally:
                        os.close(file)

    def prepare_logs(self, *paths: Path | None) -> None:
        """The same as :meth:`prepare_log` for each that is a file, not the standard error."""
        for path in paths:
            if path is not None and str(path) != "-":
                self.prepare_log(path)

    def prepare_log(self, path: Path) -> None:
        """Let the user append to a file, which is made if need be.

        The user may be able to write to its directory: a link in its place must not open another file to it.

        Raises:
            UnavailableError: it cannot be made, is a link, or its filesystem keeps no access lists.
        """
        if path.exists() and not path.is_file():
            if path.lstat().st_uid not in (0, os.geteuid()):
                raise UnavailableError(f"the log {path} belongs to another user")
            return  # A terminal, or a pipe.
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UnavailableError(f"the log {path} cannot be opened: {error.strerror}") from error
        try:
            status = os.fstat(file)
            if status.st_nlink != 1 or status.st_uid != os.geteuid():
                raise UnavailableError(f"the log {path} is a second name of a file, or another user's")
            if stat.S_ISREG(status.st_mode):
                self._allow(path, _READ | _WRITE, file)
        finally:
            os.close(file)

    def _allow(self, path: Path, rights: int, fd: int | None = None) -> None:
        """Give the user ``rights`` beside those that others have."""
        place = path if fd is None else fd
        entries = {**_entries(place), (_USER, self.uid): rights}
        mask = reduce(or_, (held for (kind, _), held in entries.items() if kind in _MASKED))
        listed = sorted({**entries, (_MASK, _NO_ID): mask}.items())
        text = _VERSION + b"".join(_ENTRY.pack(kind, held, who) for (kind, who), held in listed)
        try:
            os.setxattr(place, _ACCESS_LIST, text)
        except OSError as error:
            raise UnavailableError(
                f"{path} cannot be opened to the user '{self.name}' of --worker-user: {error.strerror}; its filesystem "
                "must keep access lists (POSIX ACLs)"
            ) from error


def _entries(place: Path | int) -> dict[tuple[int, int], int]:
    """Who has which rights: by the access list, or by the mode if there is none.

    With a list, the mode shows its mask in the place of the group's rights.
    """
    try:
        text = os.getxattr(place, _ACCESS_LIST)
    except OSError:
        mode = os.stat(place).st_mode
        return {(_OWNER, _NO_ID): mode >> 6 & 7, (_GROUP, _NO_ID): mode >> 3 & 7, (_OTHERS, _NO_ID): mode & 7}
    found = {(kind, who): held for kind, held, who in _ENTRY.iter_unpack(text[len(_VERSION) :])}
    mask = found.pop((_MASK, _NO_ID), 7)
    return {(kind, who): held & mask if kind in _MASKED else held for (kind, who), held in found.items()}


def _raise(error: OSError) -> None:
    raise UnavailableError(f"what is handed over cannot be read: {error.strerror}") from error
