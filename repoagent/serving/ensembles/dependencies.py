"""Which models ensembles call, and which of them need which."""

import threading
from collections.abc import Callable, Iterable

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import ModelId


class Dependencies:
    """The members of ensembles that are loaded (asked of ``members_of``) and of those that are being loaded.

    Every ensemble is declared before it is loaded, so only those need be asked for: there may be thousands of models
    that are none.
    """

    def __init__(self, members_of: Callable[[str], frozenset[str]]) -> None:
        self._members_of = members_of
        self._ensembles: set[str] = set()
        self._lock = threading.Lock()
        self._pending: dict[str, frozenset[str]] = {}
        self._orphans: dict[str, tuple[frozenset[str], bool]] = {}

    def declare(self, ensemble: str, members: frozenset[str]) -> None:
        """Note that ``ensemble`` is about to be loaded with ``members``, until :meth:`forget`.

        Two ensembles that need each other are found here by the one that comes second: neither waits for the other.

        Raises:
            InvalidArgumentError: one of the members needs ``ensemble``, directly or through others.
        """
        with self._lock:
            self._ensembles.add(ensemble)
            edges = {**self._loaded(), **self._pending, ensemble: members}
            last = _path_back(edges, ensemble)
            if last is not None:
                raise InvalidArgumentError(
                    f"circular dependency between ensembles: {ensemble} -> ... -> {last} -> {ensemble}"
                )
            self._pending[ensemble] = members

    @property
    def any(self) -> bool:
        """Whether there ever was an ensemble: where there was none, no model has users."""
        return bool(self._ensembles)

    def loaded(self) -> dict[str, frozenset[str]]:
        """The models that each loaded ensemble calls."""
        with self._lock:
            return self._loaded()

    def _loaded(self) -> dict[str, frozenset[str]]:
        return {name: members for name in self._ensembles if (members := self._members_of(name))}

    def forget(self, ensemble: str) -> None:
        """The load that was declared has ended, well or not."""
        with self._lock:
            self._pending.pop(ensemble, None)

    def orphan(self, ensemble: str, members: frozenset[str], *, explicit: bool) -> None:
        """Note that ``ensemble`` had to go because of its members, and that it is to come back with them.

        ``explicit``: it was asked for by name.
        """
        with self._lock:
            self._orphans[ensemble] = (members, explicit)

    def adopt(self, ensemble: str) -> None:
        """It is there again, or it is not wanted any more."""
        with self._lock:
            self._orphans.pop(ensemble, None)

    def orphans_of(self, model: str) -> dict[str, tuple[frozenset[str], bool]]:
        """The ensembles that are to come back with ``model``, or a namesake of it that they had: their members, and
        whether they were asked for."""
        with self._lock:
            return {name: orphan for name, orphan in self._orphans.items() if _has_namesake(orphan[0], model)}

    def users_of_namesakes(self, model: str) -> list[str]:
        """The loaded ensembles that call ``model`` directly, or one of its name in another repository."""
        with self._lock:
            return sorted(name for name, members in self._loaded().items() if _has_namesake(members, model))

    def users(self, model: str, *, pending: bool = True) -> list[str]:
        """The ensembles that call ``model`` directly; also those that are being loaded if ``pending``."""
        with self._lock:
            edges = [self._loaded(), *([self._pending] if pending else [])]
        return sorted({name for some in edges for name, members in some.items() if model in members})

    def members(self, ensemble: str) -> frozenset[str]:
        """The models that a loaded ensemble calls; none if it is no ensemble."""
        return self._members_of(ensemble)

    def all_users(self, model: str) -> list[str]:
        """The loaded ensembles that need ``model``, directly or not, each before those that it calls itself."""
        found: dict[str, None] = {}
        queue = [model]
        while queue:
            for name in self.users(queue.pop(0), pending=False):
                found.pop(name, None)  # One that is reached by a longer way too has to come before what is between.
                found[name] = None
                queue.append(name)
        return list(reversed(found))


def _path_back(edges: dict[str, frozenset[str]], start: str) -> str | None:
    """The last model on a way from ``start`` back to it; None if there is no such way."""
    seen: set[str] = set()
    queue: list[str] = [start]
    while queue:
        name = queue.pop()
        members: Iterable[str] = edges.get(name, ())
        if start in members:
            return name
        fresh = set(members) - seen
        seen |= fresh
        queue += sorted(fresh)
    return None


def _has_namesake(members: Iterable[str], model: str) -> bool:
    name = ModelId.of(model).name
    return any(ModelId.of(member).name == name for member in members)
