"""Where files go in the model."""

from collections.abc import Sequence

from repoagent.api import InvalidArgumentError
from repoagent_fetch.options import Options
from repoagent_fetch.plan import chosen

__all__ = ["Destinations"]


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
