"""What can be asked about the models of a server; nothing here changes anything."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import repoagent
from repoagent.config import redact, write_json
from repoagent.errors import InvalidArgumentError, NotFoundError, RepoAgentError
from repoagent.serving.lifecycle.loaded_model import LoadedModel
from repoagent.serving.lifecycle.model_slot import ModelSlot
from repoagent.serving.lifecycle.model_states import UNLOADED, ModelState
from repoagent.serving.lifecycle.model_table import ModelTable
from repoagent.serving.lifecycle.repository_set import RepositorySet
from repoagent.serving.measuring.statistics import StatisticsSnapshot
from repoagent.serving.requests.request import ModelId
from repoagent.serving.versions.served_model import ServedModel
from repoagent.storage.paths.names import check_model_name

EXTENSIONS: Final = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


@dataclass(frozen=True, slots=True)
class ModelMetrics:
    """The numbers of one ready version at one moment, for exporters of metrics."""

    name: str
    version: str
    running: int
    """Requests that wait or are being executed."""
    waiting: int
    statistics: StatisticsSnapshot
    namespace: str = ""
    """The repository that the model comes from, if models may have the same name in several."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Labels that the configuration of the model adds (``metric_tags``)."""
    cached: bool = False
    """The response cache keeps its answers."""


class CoreQueries:
    """Answers about the models in ``table`` and ``repositories``, in the forms of the KServe v2 protocol and Triton."""

    def __init__(self, table: ModelTable, repositories: RepositorySet, server_id: str, *, caches: bool = False) -> None:
        self._table = table
        self._repositories = repositories
        self._server_id = server_id
        self._caches = caches

    def metadata(self) -> dict[str, Any]:
        """``GET v2``."""
        return {"name": self._server_id, "version": repoagent.__version__, "extensions": list(EXTENSIONS)}

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether that model and version is loaded, can answer and, if it has code for that, states that it is ready.

        That takes its time where :meth:`asks_model`.
        """
        served = self._served(name, version)
        return served is not None and served.ready and served.check_ready()

    def asks_model(self, name: str, version: str = "") -> bool:
        """Whether :meth:`model_ready` runs code of that model."""
        served = self._served(name, version)
        return served is not None and served.asks

    def model_loaded(self, name: str) -> bool:
        """Whether a request for that model would be taken."""
        return self._served(name, "") is not None

    def _served(self, name: str, version: str) -> ServedModel | None:
        """What requests for that model and version go to, if it is there."""
        try:
            return self._table.find(name, version)
        except RepoAgentError:
            return None

    def has_model(self, name: str) -> bool:
        """Whether a model of that name is loaded, or a repository has one; also while that one does not answer."""
        if self.model_loaded(name):
            return True
        try:
            check_model_name(ModelId.of(name).name)
        except RepoAgentError:
            return False
        try:
            self._repositories.find(name)
        except NotFoundError:
            return False
        except RepoAgentError:  # Several have it, or it cannot be asked: a load shows what is wrong.
            return True
        return True

    def all_ready(self) -> bool:
        """No version is on its way up or down, or failed.

        Those that were unloaded on purpose do not count, nor does one that is loaded, or could not be loaded, beside
        others that serve.
        """
        return all(
            version is None
            or status.state is ModelState.READY
            or status.reason == UNLOADED
            or (status.state is not ModelState.UNLOADING and _is_beside(slot.loaded, version))
            for slot in self._table.slots()
            for version, status in slot.statuses()
        )

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """``GET v2/models/NAME``. Without a version, all ready ones are listed. Errors as :meth:`ModelTable.find`."""
        served = self._table.find(name, version)
        slot = self._table.meant(name)
        loaded = slot.loaded if slot is not None else None
        everything = [served.version] if version or loaded is None else list(loaded.versions)
        return {**served.metadata, "versions": [str(number) for number in sorted(everything)]}

    def decoupled(self, name: str, version: str = "") -> bool:
        """Whether a model may answer a request more than once. Raises as :meth:`ModelTable.find` does."""
        return self._table.find(name, version).decoupled

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """``GET v2/models/NAME/config``: the completed configuration, without what looks like a secret. Raises as
        :meth:`ModelTable.find` does."""
        return write_json(redact(self._table.find(name, version).config))

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """``GET v2/models/stats``: every ready version, or those of one model, which raises ``InvalidArgumentError`` if
        it is not."""
        slots = self._table.slots() if not name else [self._ready_slot(name)]
        entries = [
            served.statistics_dict()
            for slot in slots
            if slot.loaded is not None
            for number, served in sorted(slot.loaded.versions.items())
            if not version or str(number) == version
        ]
        if version and not entries:
            raise InvalidArgumentError(f"requested model version is not available for model '{name}'")
        return {"model_stats": entries}

    def _ready_slot(self, name: str) -> ModelSlot:
        slot = self._table.meant(name)
        if slot is None or slot.loaded is None:
            raise InvalidArgumentError(f"requested model '{name}' is not available")
        return slot

    def metrics(self) -> list[ModelMetrics]:
        """The counters of every ready version."""
        return [
            ModelMetrics(
                slot.id.name,
                str(version),
                served.running,
                served.waiting,
                served.statistics.snapshot(),
                namespace=slot.id.namespace,
                tags=dict(served.config.metric_tags),
                cached=self._caches and served.config.response_cache.enable,
            )
            for slot in self._table.slots()
            if slot.loaded is not None
            for version, served in sorted(slot.loaded.versions.items())
        ]

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """``POST v2/repository/index``: every model of the repositories, and every other one that is not unloaded.

        While a repository cannot be listed, those of its models that are not loaded are shown with that.
        """
        slots = {slot.name: slot for slot in self._table.slots()}
        listed = {} if ready_only else self._repositories.listing()
        entries = []
        for name in sorted({*(slot.id for slot in slots.values()), *listed}):
            if name in slots and name not in listed and _unloaded(slots[name]):
                continue
            reason = listed.get(name, "")
            # Why the next load fails is more to know of a model than that it was unloaded.
            shown = name in slots and not (reason and _unloaded(slots[name]))
            known = _slot_entries(slots[name], ready_only) if shown else []
            entries += known or ([] if ready_only else [_listed_entry(name, reason)])
        return entries


def _listed_entry(model: ModelId, reason: str) -> dict[str, str]:
    state = {"state": ModelState.UNAVAILABLE.value, "reason": reason} if reason else {}
    return {**_identified(model), **state}


def _unloaded(slot: ModelSlot) -> bool:
    """Whether nothing else is known of a model but that it was unloaded."""
    return all(
        status.state is ModelState.UNAVAILABLE and status.reason.startswith(UNLOADED) for _, status in slot.statuses()
    )


def _slot_entries(slot: ModelSlot, ready_only: bool) -> list[dict[str, str]]:
    entries = []
    for version, status in slot.statuses():
        if ready_only and status.state is not ModelState.READY:
            continue
        entry = _identified(slot.id)
        if version is not None:
            entry["version"] = str(version)
        entry["state"] = status.state.value
        if status.reason:
            entry["reason"] = status.reason
        entries.append(entry)
    return entries


def _identified(model: ModelId) -> dict[str, str]:
    return {"name": model.name, **({"namespace": model.namespace} if model.namespace else {})}


def _is_beside(loaded: LoadedModel | None, version: int) -> bool:
    return loaded is not None and version not in loaded.versions
