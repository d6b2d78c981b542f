"""The states of one model's versions, and which load each of them comes from."""

import threading
from collections.abc import Iterable, Mapping

from repoagent.serving.lifecycle.loaded_model import LoadedModel
from repoagent.serving.lifecycle.model_states import ModelState, StateTable, VersionStatus

__all__ = ["SlotStates"]


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
        """The state of one version."""
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
        """``version`` is served by ``model``."""
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
        """``model`` has been unloaded."""
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
