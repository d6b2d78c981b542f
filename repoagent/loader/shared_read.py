"""One read of a model for two agents: a guard that judges digests, and the agent behind it that reads every file.

Otherwise the model is copied, so that nothing changes while it is judged, and each of the two reads the copy. Here the
second one does its work when the guard asks for digests, in a private directory of its own, and hashes the bytes that
it takes. The guard is given these digests, and what the second one made is handed on only after the guard has accepted.

No directory may change meanwhile, so the files that were read are those that the guard listed. Both reach them through
a descriptor: a link to the model, or a directory above it, can be swapped without a change of the model's own.
"""

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from repoagent.beneath.opening import walk_beneath
from repoagent.beneath.unchanged import Watched
from repoagent.errors import CancelledError, InternalError, RepoAgentError, UnavailableError


class SharedRead:
    """What one read found out. Used by the thread of the load; close it.

    Args:
        root: The model, in a directory that others can change.
        read: Lets the second agent do its work, up to handing it on.
        isolated: Called when the guard wants a private copy instead.
        always: What the second agent should compute of each file, whatever the guard asks for.

    Raises:
        UnsafePathError: there is a link or a special file in ``root``.
    """

    def __init__(
        self, root: Path, read: Callable[[], object], isolated: Callable[[], object], always: Sequence[str] = ()
    ) -> None:
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.root: Path | None = Path(f"/proc/self/fd/{self._fd}")
        """The model, whatever becomes of its path; None once the read is closed."""
        try:
            self._watched = Watched(self.root, follow=False)
        except BaseException:
            self.close()
            raise
        self._read = read
        self._isolated = isolated
        self._found: dict[str, Mapping[str, str]] = {}
        self._error: RepoAgentError | None = None
        self.begun = False
        self.given_up = False
        """Whether the guard wants a private copy instead."""
        self.algorithms: tuple[str, ...] = tuple(always)
        """What the second agent should compute of each file."""

    def close(self) -> None:
        """Let go of the model."""
        if self.root is not None:
            self.root = None
            os.close(self._fd)

    def keep(self, path: str, digests: Mapping[str, str]) -> None:
        """The second agent took bytes with ``digests`` for those of the file ``path``."""
        self._found[path] = dict(digests)

    def digests(self, files: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]] | None:
        """The digests of ``files`` as they were read; None if the second agent failed, or the read is closed.

        The guard may hash files that can change then, as its word does not count: :meth:`finish` ends the load.
        """
        if self.root is None:
            return None
        if not self.begun:
            self.begun = True
            asked = [name for names in files.values() for name in names]
            self.algorithms = tuple(dict.fromkeys([*self.algorithms, *asked]))
            try:
                self._read()
            except CancelledError:
                raise
            except RepoAgentError as error:
                self._error = error
        if self._error is not None:
            return None
        self._watched.check()
        try:
            return {path: {name: self._found[path][name] for name in names} for path, names in files.items()}
        except KeyError as error:
            raise UnavailableError(f"{error} was not read with the other files of the model; load it again") from None

    def give_up(self) -> None:
        """The guard wants a private copy: nothing is shared."""
        self.given_up = True
        self._isolated()

    def read_files(self) -> dict[str, str] | None:
        """SHA-256 of every file of the model as it was read; None if not all were, or there may be others by now."""
        if self.root is None:
            return None
        try:
            names = [path for path, mode, _ in walk_beneath(self.root, follow=False) if stat.S_ISREG(mode)]
            self._watched.check()
            return {name: self._found[name]["sha256"] for name in names}
        except (KeyError, OSError, RepoAgentError):
            return None

    def finish(self, guard: str) -> None:
        """The guard has accepted; raises if the model may not go on all the same."""
        if self._error is not None:
            raise self._error
        if not self.begun:
            raise InternalError(f"agent '{guard}' accepted files without asking for their digests")
        self._watched.check()
