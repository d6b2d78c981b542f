"""Making the directory of the model: its own files, and what is fetched."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from repoagent.api import AgentModel, CancelledError, InvalidArgumentError, RemoteFile, digest_files, open_beneath
from repoagent_fetch.archives import Unpacking
from repoagent_fetch.options import Options
from repoagent_fetch.plan import Plan, chosen

__all__ = ["VERSION", "Build", "Destinations"]


class Destinations:
    """The mapping of remote files, beside those that the model itself has. Nothing of the model is replaced."""

    def __init__(self, options: Options, own: Sequence[str]) -> None:
        self._into = options.into
        self._moves = dict(options.files)
        self._include = options.include
        self.own = tuple(own)
        self._taken = frozenset(own)
        self.rules = [options.into, *map(list, options.files), *options.include]

    def remote(self, path: str) -> str:
        """Where the remote file ``path`` goes.

        Raises:
            InvalidArgumentError: the model itself has a file there.
        """
        where = self._moves.get(path) or (f"{self._into}/{path}" if self._into else path)
        if where in self._taken:
            raise InvalidArgumentError(f"the model has {where!r} itself, and the source has it as well: remove one")
        return where

    def archived(self, path: str) -> str | None:
        """Where a file of an archive goes; None if it is not wanted."""
        return self.remote(path) if chosen(path, self._include) else None


VERSION: Final = 2
"""Of what lies in the cache."""


class Build:
    """Makes the directory of the model."""

    def __init__(self, model: AgentModel, plan: Plan, placing: Destinations, own: Path) -> None:
        self._model = model
        self._plan = plan
        self._placing = placing
        self._own = own
        self.ran = False
        """Whether the directory was made by this load; else it came from the cache."""

    def key(self) -> str:
        """Everything that the result depends on."""
        files = [
            (file.url, file.digest, file.size, file.tag, self._placing.remote(file.path)) for file in self._plan.files
        ]
        archives = [(one.file.url, one.file.digest, one.below) for one in self._plan.archives]
        digests = digest_files(self._own, dict.fromkeys(self._placing.own, ("sha256",)), follow=True)
        own = [(path, found["sha256"]) for path, found in digests.items()]
        return json.dumps(["fetch", VERSION, self._plan.source, files, archives, self._placing.rules, own])

    def __call__(self, target: Path) -> None:
        self.ran = True
        for path in self._placing.own:
            (target / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open_beneath(self._own, path) as source, (target / path).open("xb") as copy:
                shutil.copyfileobj(source, copy)
        self._unpack(target)
        files = [_moved(file, self._placing.remote(file.path)) for file in self._plan.files]
        self._model.download(files, target, allow=self._plan.allow)
        if not any(path.is_file() for path in target.rglob("*")):
            raise InvalidArgumentError(f"{self._plan.source} has no file of those that are wanted")

    def _unpack(self, target: Path) -> None:
        """Archives lie beside ``target`` meanwhile: within the cache they are links, not copies."""
        if not self._plan.archives:
            return
        beside = target.parent / "layers"
        beside.mkdir(mode=0o700)
        # A manifest may name one layer many times, which comes once.
        files = {one.file.digest: _moved(one.file, one.file.digest.replace(":", "-")) for one in self._plan.archives}
        self._model.download(list(files.values()), beside, allow=self._plan.allow)
        unpacking = Unpacking(
            target,
            self._placing.archived,
            packed=sum(path.stat().st_size for path in beside.iterdir()),
            most_files=self._model.limits.download_files,
            check_cancelled=self._check,
        )
        for one in self._plan.archives:
            unpacking.unpack(beside / files[one.file.digest].path, one.compression, one.below)
        shutil.rmtree(beside)

    def _check(self) -> None:
        if self._model.cancelled:
            raise CancelledError("cancelled while unpacking a layer")


def _moved(file: RemoteFile, path: str) -> RemoteFile:
    return RemoteFile(path, file.url, file.size, file.digest, file.tag, file.headers)
