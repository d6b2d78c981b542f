"""Names for the moments of a load at which a test can make something happen.

A point is written ``[after ]SUBJECT CALL[ #N]``:

* SUBJECT is the name of an agent, and CALL one of its methods: ``initialize``, ``model_initialize``, ``LOAD``,
  ``LOAD_COMPLETE``, ``LOAD_FAIL``, ``UNLOAD``, ``UNLOAD_COMPLETE``, ``model_finalize``, ``finalize``;
* or CALL is something that the agent asks its ``AgentModel`` for: ``acquire_location``, ``update_location``, ``key``,
  ``localize``, ``cache``, ...;
* or SUBJECT is ``storage``, and CALL one of :data:`STORAGE_POINTS`.

Without ``after`` it is the moment before the call. ``#N`` is the N-th time; without it, the first.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from repoagent.api import Action, AgentModel

__all__ = ["STORAGE_POINTS", "Point"]

STORAGE_POINTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "start": "repoagent.storage.workspaces.process_dir:sweep",
        "process directory": "repoagent.storage.workspaces.process_dir:ProcessDirectory",
        "workspace directory": "repoagent.storage.workspaces.workspace:Workspace.directory",
        "workspace close": "repoagent.storage.workspaces.workspace:Workspace.close",
        "snapshot": "repoagent.storage.transfer.snapshot:snapshot",
        "snapshot file": "repoagent.storage.transfer.snapshot:_copy_file",
        "download": "repoagent.storage.transfer.localize:localize",
        "download part": "repoagent.storage.transfer.partial_file:PartialFile.write",
        "download check": "repoagent.storage.transfer.localize:check_unchanged",
        "download publish": "repoagent.storage.cache.blob_store:BlobStore._publish",
        "cache build": "repoagent.storage.cache.cache_store:CacheStore.build",
        "cache publish": "repoagent.storage.cache.cache_store:CacheStore._publish",
        "cache sync": "repoagent.storage.paths.trees:sync_tree",
        "cache sync directory": "repoagent.storage.cache.cache_store:_sync_directory",
        "remove tree": "repoagent.storage.paths.trees:remove_tree",
        "remove entry": "repoagent.storage.paths.trees:_remove_entry",
    }
)
"""What happens in the storage that a test may want to interrupt, and the function that does it."""

AGENT_POINTS: Final = frozenset(
    {
        *(action.name for action in Action),
        *("initialize", "model_initialize", "model_finalize", "finalize"),
        *(name for name, member in vars(AgentModel).items() if callable(member) and not name.startswith("_")),
        *("cache", "cancelled"),
    }
)
"""The calls of an agent, and what it may ask its model for."""

_POINT: Final = re.compile(r"(?P<after>after )?(?P<name>\S+ \S[^#]*?)( #(?P<count>[1-9][0-9]*))?")


@dataclass(frozen=True, slots=True)
class Point:
    """One moment: the ``count``-th time that the call ``name`` begins, or ends if ``after``."""

    name: str
    after: bool = False
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Point":
        """Read the notation above.

        Raises:
            ValueError: it is not in this notation, or names a call that does not exist.
        """
        match = _POINT.fullmatch(text)
        if match is None:
            raise ValueError(
                f"'{text}' is not a point; expected '[after ]SUBJECT CALL[ #N]', e.g. 'after mine LOAD #2'"
            )
        subject, _, call = match["name"].partition(" ")
        if subject == "storage" and call not in STORAGE_POINTS:
            raise ValueError(f"there is no storage point '{call}'; there are: {', '.join(STORAGE_POINTS)}")
        if subject != "storage" and call not in AGENT_POINTS:
            raise ValueError(f"an agent has no call '{call}'; there are: {', '.join(sorted(AGENT_POINTS))}")
        return cls(match["name"], match["after"] is not None, int(match["count"] or 1))

    def __str__(self) -> str:
        return f"{'after ' * self.after}{self.name}{f' #{self.count}' if self.count > 1 else ''}"
