"""The states of a model, and the one table of what may follow what."""

import enum
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from repoagent.errors import InvalidTransitionError
from repoagent.serving.lifecycle.loaded_model import LoadedModel

UNLOADED: Final = "unloaded"
"""The reason of a version that is UNAVAILABLE because it was asked to go."""


class ModelState(enum.Enum):
    """Where one version of a model is in its life; the values are Triton's names."""

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


_FOLLOWS: Final = MappingProxyType(
    {
        ModelState.UNKNOWN: {ModelState.LOADING},
        ModelState.LOADING: {ModelState.READY, ModelState.UNAVAILABLE},
        ModelState.READY: {ModelState.UNLOADING},
        # LOADING again: a load that was asked for while the old one still finishes its requests.
        ModelState.UNLOADING: {ModelState.UNAVAILABLE, ModelState.LOADING},
        ModelState.UNAVAILABLE: {ModelState.LOADING},
    }
)


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """A state and, where it is not good news, the reason."""

    state: ModelState = ModelState.UNKNOWN
    reason: str = ""


class StateTable:
    """The states of the versions of one model. Not locked: its owner serialises changes.

    The version None stands for the model as a whole, as long as its versions are not known (agents are running, or
    one of them refused it).
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._statuses: dict[int | None, VersionStatus] = {}

    def statuses(self) -> list[tuple[int | None, VersionStatus]]:
        """Every version with its status, ascending."""
        return sorted(self._statuses.items(), key=lambda item: -1 if item[0] is None else item[0])

    def get(self, version: int | None) -> VersionStatus:
        """The status of one version; UNKNOWN if nothing is known of it."""
        return self._statuses.get(version, VersionStatus())

    def move(self, version: int | None, state: ModelState, reason: str = "") -> None:
        """Take one version to ``state``.

        Raises:
            InvalidTransitionError: that state may not follow the present one.
        """
        present = self.get(version).state
        if state not in _FOLLOWS[present]:
            raise InvalidTransitionError(
                f"model '{self._model}' version {version}: {state.value} may not follow {present.value}"
            )
        self._put(version, VersionStatus(state, reason))

    def _put(self, version: int | None, status: VersionStatus) -> None:
        # A copy is changed and put in place, so that readers on other threads see the old or the new table, never half.
        statuses = dict(self._statuses)
        statuses[version] = status
        if version is not None and status.state is ModelState.LOADING:
            # A version that only goes, having belonged to the load before, is no news of the one whose agents run.
            statuses.pop(None, None)
        self._statuses = statuses

    def forget(self, state: ModelState) -> None:
        """Drop the versions in ``state``."""
        self._statuses = {version: status for version, status in self._statuses.items() if status.state is not state}


class SlotStates:
    """A :class:`StateTable` under ``lock``, that of the model's slot. The methods that change it take the lock."""

    def __init__(self, name: str, lock: threading.Lock) -> None:
        self._lock = lock
        self._table = StateTable(name)
        self._owners: dict[int, LoadedModel] = {}
        self.progress = ""
        """How far the agents of the load are that is under way."""

    def statuses(self) -> list[tuple[int | None, VersionStatus]]:
        """The versions and their states. The reason of one that is being loaded is the progress of its agents."""
        statuses, progress = self._table.statuses(), self.progress
        if not progress:
            return statuses
        loading = VersionStatus(ModelState.LOADING, progress)
        return [(number, loading if one.state is ModelState.LOADING else one) for number, one in statuses]

    def status(self, version: int) -> VersionStatus:
        return self._table.get(version)

    def move(self, version: int | None, state: ModelState, reason: str = "") -> None:
        """Give ``version``, or the model as a whole, another state."""
        with self._lock:
            if state is ModelState.LOADING and version is not None:
                self._owners.pop(version, None)
            self._table.move(version, state, reason)

    def start_loading(self) -> None:
        """The model, of which nothing is loaded, is being loaded."""
        with self._lock:
            # What an earlier load left behind is reported by this one, if it is still so.
            self._table.forget(ModelState.UNAVAILABLE)
            self._table.move(None, ModelState.LOADING)

    def make_ready(self, version: int, model: LoadedModel) -> None:
        with self._lock:
            state = self._table.get(version).state
            if state not in (ModelState.READY, ModelState.LOADING):
                self._table.move(version, ModelState.LOADING)
            if state is not ModelState.READY:
                self._table.move(version, ModelState.READY)
            self._owners[version] = model

    def own(self, versions: Iterable[int], model: LoadedModel) -> None:
        """``versions`` are served by ``model``, in the states in which they are."""
        with self._lock:
            self._owners.update(dict.fromkeys(versions, model))

    def leave(self, model: LoadedModel) -> None:
        """``model`` is being unloaded: so are the versions that no other load has taken over."""
        for version in model.versions:
            if self._owners.get(version) is model:
                self.move(version, ModelState.UNLOADING)

    def gone(self, model: LoadedModel, reason: str) -> None:
        with self._lock:
            for version in model.versions:
                if self._owners.get(version) is model:
                    del self._owners[version]
                    self._table.move(version, ModelState.UNAVAILABLE, reason)

    def fail(self, reasons: Mapping[int, str], others: str) -> None:
        """What was being loaded is not available, for a version's own reason or that of all ``others``."""
        for version, status in self._table.statuses():
            if status.state is ModelState.LOADING:
                self.move(version, ModelState.UNAVAILABLE, others if version is None else reasons.get(version, others))
