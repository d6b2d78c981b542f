"""How one part of the server reaches the models: ensembles their members, whatever the server's own state."""

from concurrent.futures import Future
from typing import TYPE_CHECKING

from repoagent.errors import RepoAgentError
from repoagent.serving.lifecycle.load_request import LoadRequest
from repoagent.serving.lifecycle.model_table import ModelTable
from repoagent.serving.repositories.repository_set import RepositorySet
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.senders import answer_error
from repoagent.serving.versions.served_model import RetiredError, ServedModel

if TYPE_CHECKING:
    from repoagent.api.report import LoadReport

__all__ = ["Router"]


class Router:
    """See :class:`~repoagent.serving.versions.ensemble_builder.Members`.

    Requests are taken also while the server stops: those that it had taken before are to be finished.
    """

    def __init__(self, table: ModelTable, repositories: RepositorySet) -> None:
        self._table = table
        self._repositories = repositories

    def choose(self, name: str, namespace: str) -> str | None:
        """The namespace of the model that an ensemble of ``namespace`` means by ``name``: its own if there is one.

        None if no repository has one and none is loaded, or several that are not the ensemble's neighbours.
        """
        if not self._repositories.namespacing:
            return ""
        loaded = [slot.id for slot in self._table.named(name) if slot.loaded is not None]
        listed = {model.namespace for model in self._repositories.ids(name)}
        # One that is loaded and has left its repository gives way to the one that is there, perhaps the same, moved.
        found = listed | {model.namespace for model in loaded if not listed or not model.namespace}
        if namespace in found:
            return namespace
        return found.pop() if len(found) == 1 else None

    def load_needed(self, name: str) -> "Future[LoadReport]":
        """Queue a load of a model that another one needs.

        Raises:
            UnavailableError: the server is stopping.
        """
        future = self._table.load(name, LoadRequest(needed=True))
        future.add_done_callback(lambda _: self._table.forget_if_empty(name))
        return future

    def find(self, name: str, version: str) -> ServedModel:
        """See :meth:`ModelTable.find`."""
        return self._table.find(name, version)

    def submit(self, request: InferRequest) -> None:
        """Hand ``request`` to its model; never raises."""
        try:
            while not self._submitted(request):
                pass
        except RepoAgentError as error:
            answer_error(request, error)

    def _submitted(self, request: InferRequest) -> bool:
        """False if the model was replaced between the look and the call: the next look finds its successor."""
        served = self._table.find(request.asked.model_name, request.asked.model_version)
        try:
            request.model_name = served.name
            served.submit(request)
        except RetiredError:
            return False
        return True
