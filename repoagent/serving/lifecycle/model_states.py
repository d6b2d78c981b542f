"""The states of a model, and the one table of what may follow what."""

import enum
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from repoagent.errors import InvalidTransitionError

__all__ = ["UNLOADED", "ModelState", "StateTable", "VersionStatus"]

UNLOADED: Final = "unloaded"
"""The reason of a version that is UNAVAILABLE because someone wanted it so."""


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
            # A version that only goes, having belonged to the load before, says nothing of the one whose agents run.
            statuses.pop(None, None)
        self._statuses = statuses

    def forget(self, state: ModelState) -> None:
        """Drop the versions in ``state``."""
        self._statuses = {version: status for version, status in self._statuses.items() if status.state is not state}
