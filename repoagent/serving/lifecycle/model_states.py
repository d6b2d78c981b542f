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


class SlotStates:
    """The states of the versions of one model, under ``lock``, that of its slot.

    The version None stands for the model as a whole, as long as its versions are not known (agents are running, or
    one of them refused it).
    """

    def __init__(self, model: str, lock: threading.Lock) -> None:
        self._model = model
        self._lock = lock
        self._statuses: dict[int | None, VersionStatus] = {}
        self._owners: dict[int, LoadedModel] = {}
        self.progress = ""
        """How far the agents of the load are that is under way."""

    def statuses(self) -> list[tuple[int | None, VersionStatus]]:
        """Every version with its status, ascending. The reason of one that is being loaded is its agents' progress."""
        progress = self.progress
        loading = VersionStatus(ModelState.LOADING, progress)
        return [
            (version, loading if progress and status.state is ModelState.LOADING else status)
            for version, status in sorted(self._statuses.items(), key=lambda item: -1 if item[0] is None else item[0])
        ]

    def status(self, version: int | None) -> VersionStatus:
        """The status of one version; UNKNOWN if nothing is known of it."""
        return self._statuses.get(version, VersionStatus())

    def move(self, version: int | None, state: ModelState, reason: str = "") -> None:
        """Take one version, or the whole model, to ``state``; ``InvalidTransitionError`` if it may not follow."""
        with self._lock:
            if state is ModelState.LOADING and version is not None:
                self._owners.pop(version, None)
            self._move(version, state, reason)

    def _move(self, version: int | None, state: ModelState, reason: str = "") -> None:
        present = self.status(version).state
        if state not in _FOLLOWS[present]:
            raise InvalidTransitionError(
                f"model '{self._model}' version {version}: {state.value} may not follow {present.value}"
            )
        # A copy is changed and put in place, so that readers on other threads see the old or the new table, never half.
        statuses = {**self._statuses, version: VersionStatus(state, reason)}
        if version is not None and state is ModelState.LOADING:
            # A version that only goes, having belonged to the load before, is no news of the one whose agents run.
            statuses.pop(None, None)
        self._statuses = statuses

    def start_loading(self) -> None:
        """The model, of which nothing is loaded, is being loaded."""
        gone = ModelState.UNAVAILABLE
        with self._lock:
            # What an earlier load left behind is reported by this one, if it is still so.
            self._statuses = {one: status for one, status in self._statuses.items() if status.state is not gone}
            self._move(None, ModelState.LOADING)

    def make_ready(self, version: int, model: LoadedModel) -> None:
        with self._lock:
            state = self.status(version).state
            if state not in (ModelState.READY, ModelState.LOADING):
                self._move(version, ModelState.LOADING)
            if state is not ModelState.READY:
                self._move(version, ModelState.READY)
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
                    self._move(version, ModelState.UNAVAILABLE, reason)

    def fail(self, reasons: Mapping[int, str], others: str) -> None:
        """What was being loaded is not available, for a version's own reason or that of all ``others``."""
        for version, status in list(self._statuses.items()):
            if status.state is ModelState.LOADING:
                self.move(version, ModelState.UNAVAILABLE, others if version is None else reasons.get(version, others))
