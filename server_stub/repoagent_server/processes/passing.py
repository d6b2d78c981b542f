"""What a worker has in the place of a version whose home is another worker."""

from repoagent.config import ModelConfig
from repoagent.errors import InternalError, UnavailableError
from repoagent.serving.instances.backend import BackendInstance, BackendModel, BatchRunner, InstanceSpec
from repoagent.serving.instances.instance import VersionContext
from repoagent.serving.requests.request import InferRequest, Labels
from repoagent.serving.requests.senders import answer_error
from repoagent.serving.scheduling.scheduler import Scheduler
from repoagent.serving.versions.served_model import ServedModel
from repoagent_server.processes.links import Links


class _Elsewhere(BackendModel):
    """In the place of a model whose home is another worker."""

    asks = True

    def __init__(self, links: Links, home: int, handed: int) -> None:
        self._links = links
        self._home = home
        self._handed = handed

    def check_ready(self) -> bool:
        """What its home answers."""
        link = self._links.get(self._home)
        return link is not None and link.ready(self._handed)

    def create_instance(self, spec: InstanceSpec) -> BackendInstance | BatchRunner:
        raise InternalError("the model is executed by another process")

    def close(self) -> None:
        """Nothing is held."""


class _Passing(Scheduler):
    """Passes requests on to the home of the model."""

    def __init__(self, model_name: str, links: Links, home: int, handed: int) -> None:
        super().__init__(model_name)
        self._links = links
        self._home = home
        self._handed = handed

    def submit(self, request: InferRequest) -> None:
        link = self._links.get(self._home)
        if link is None:
            error = UnavailableError(f"the process that has model '{self._model_name}' is being started again")
            answer_error(request, error)
        else:
            link.submit(self._handed, request)

    def close(self) -> None:
        """Nothing waits here."""


def passing_version(
    name: str, version: int, config: ModelConfig, labels: Labels, links: Links, home: int, handed: int
) -> ServedModel:
    """A version whose requests are checked here and executed by the worker ``home``, which has it as ``handed``."""
    return ServedModel(
        VersionContext(name, version, config),
        backend_model=_Elsewhere(links, home, handed),
        scheduler=_Passing(name, links, home, handed),
        labels=labels,
    )
