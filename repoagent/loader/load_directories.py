"""The private directories of one load: which there are, and which of them hold plaintext that must not stay."""

from pathlib import Path

from repoagent.storage.workspaces.workspace import Workspace


class LoadDirectories:
    """Hands out directories of a workspace and remembers them. Close it when the load is over."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._confidential: dict[Path, bool] = {}

    @property
    def confidential(self) -> bool:
        """Whether this load keeps plaintext in memory only; once true, it stays true."""
        return self._workspace.confidential

    def get(self, label: str, *, confidential: bool = False, size_hint: int | None = None) -> Path:
        """The directory called ``label``, empty when asked for first; errors as in ``Workspace.directory``."""
        path = self._workspace.directory(label, confidential=confidential, size_hint=size_hint)
        self._confidential.setdefault(path, self._workspace.confidential)
        return path

    def holds(self, path: Path | str) -> bool:
        """Whether ``path`` is one of them or lies in one."""
        place = Path(path)
        return any(place.is_relative_to(directory) for directory in self._confidential)

    def remove(self, path: Path) -> None:
        """Remove one of them, wiped first if it was confidential."""
        del self._confidential[path]
        self._workspace.remove(path)

    def remove_others(self, place: Path) -> None:
        """Remove those in which ``place`` does not lie."""
        for path in [path for path in self._confidential if not place.is_relative_to(path)]:
            self.remove(path)

    def unlink(self) -> None:
        """Remove all of them without truncating a file, so that a process that has one open or mapped is not hurt."""
        while self._confidential:
            self._workspace.remove(self._confidential.popitem()[0], wipe=False)

    def remove_confidential(self) -> None:
        """Wipe and remove those that hold plaintext."""
        for path in [path for path, confidential in self._confidential.items() if confidential]:
            self.remove(path)

    def close(self) -> None:
        """Remove all that is left."""
        self._confidential.clear()
        self._workspace.close()
