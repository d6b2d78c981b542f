"""The replicas as one core: what the front ends of an ingress ask about models and have done to them."""

from collections.abc import Mapping
from typing import Any, Final

from repoagent_server.handlers.headers import Api
from repoagent_server.handlers.operations import Call, Operation, Operations
from repoagent_server.shared.merging import merged_index, merged_metrics, merged_statistics

import repoagent
from repoagent.api.report import LoadReport
from repoagent.audit import NO_AUDIT, Audit, current_actor
from repoagent.errors import RepoAgentError, UnsupportedError
from repoagent.serving.queries import EXTENSIONS
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.tracing.trace_settings import TraceSettings
from repoagent.serving.tracing.tracer import Tracer
from repoagent_ray.replicas import Replicas

_OF_ONE_SERVER: Final = (
    "trace and log settings belong to one server, and Ray Serve runs several: set them in `options` of the application"
)
_MISSING: Final = frozenset({"sequence", "trace", "logging"})
"""Extensions of a single server."""


class ClusterCore:
    """A :class:`~repoagent_server.shared.core.Core` without inference, which ingresses pass on as it came.

    Every method but ``live`` and ``metadata`` waits for replicas, so it is called on threads.
    """

    def __init__(self, replicas: Replicas, audit: Audit = NO_AUDIT) -> None:
        self._replicas = replicas
        self.tracer = Tracer(TraceSettings())
        self.audit = audit

    def live(self) -> bool:
        """The ingress answers."""
        return True

    def ready(self) -> bool:
        """A replica takes requests."""
        try:
            return any(self._replicas.ask_all("ask", "ready").good)
        except RepoAgentError:
            return False

    def metadata(self) -> dict[str, Any]:
        """``GET v2``."""
        extensions = [name for name in EXTENSIONS if name not in _MISSING]
        return {"name": "repoagent-ray", "version": repoagent.__version__, "extensions": extensions}

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether a replica has it ready. Nothing is loaded."""
        try:
            return any(self._replicas.ask_all("ask", "model_ready", name, version).good)
        except RepoAgentError:
            return False

    def asks_model(self, name: str, version: str = "") -> bool:
        """All that asks replicas is called on threads anyway."""
        return False

    def model_loaded(self, name: str) -> bool:
        """Whether a replica has it loaded."""
        return any(self._replicas.ask_all("ask", "model_loaded", name).good)

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """``GET v2/models/NAME``. A model that is not loaded is loaded for it."""
        document: dict[str, Any] = self._replicas.ask(
            "ask_loaded", name, "model_metadata", name, version, patience=None
        )
        return document

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """``GET v2/models/NAME/config``. A model that is not loaded is loaded for it."""
        document: dict[str, Any] = self._replicas.ask("ask_loaded", name, "model_config", name, version, patience=None)
        return document

    def decoupled(self, name: str, version: str = "") -> bool:
        """Whether a model may answer a request more than once. A model that is not loaded is loaded for it."""
        return bool(self._replicas.ask("ask_loaded", name, "decoupled", name, version, patience=None))

    def index(self, *, ready_only: bool = False) -> list[dict[str, Any]]:
        """Every model, with the state of the replica that is furthest with it."""
        return merged_index(self._replicas.ask_all("index", ready_only).any())

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """``GET v2/models/stats``, added up over the replicas that have the model."""
        return merged_statistics(self._replicas.ask_all("ask", "statistics", name, version).any())

    def load(
        self,
        name: str,
        *,
        config: str | bytes | None = None,
        files: Mapping[str, bytes] | None = None,
        version: int | None = None,
    ) -> LoadReport:
        """Load a model in each replica that has it, or in one if none has.

        Raises:
            UnsupportedError: a configuration, files or a version come with the call: replicas that load the model
                later would not know of them.
            RepoAgentError: it cannot be loaded.
        """
        if config is not None or files or version is not None:
            raise UnsupportedError(
                f"failed to load '{name}': a configuration, files or one version of a load request would reach the "
                "replicas of now only; change the repository instead"
            )
        actor = current_actor()
        reports = self._replicas.ask_all("reload", name, actor, patience=None).all()
        held = [report for report in reports if report is not None]
        return LoadReport.from_dict(held[0] if held else self._replicas.ask("load", name, name, actor, patience=None))

    def unload(self, name: str, *, unload_dependents: bool = False, version: int | None = None) -> None:
        """Unload a model in every replica, once its requests have ended. The next request loads it again.

        Raises:
            UnsupportedError: only one version is meant.
            RepoAgentError: it cannot be unloaded.
        """
        if version is not None:
            raise UnsupportedError(f"failed to unload '{name}': on Ray Serve a model is unloaded with all its versions")
        self._replicas.ask_all("unload", name, unload_dependents, current_actor(), patience=None).all()

    def report(self, name: str) -> LoadReport | None:
        """What the agents did at the last load, in one of the replicas that tried it."""
        for report in self._replicas.ask_all("report", name).good:
            if report is not None:
                return LoadReport.from_dict(report)
        return None

    def attestation(self, name: str, version: str = "") -> bytes | None:
        """The receipt of a replica that serves the model, or the version. Each has one of its own load."""
        found: list[bytes | None] = self._replicas.ask_all("ask", "attestation", name, version).any()
        return next((document for document in found if document is not None), None)

    def metrics(self) -> str:
        """Those of every replica that answers, as one page."""
        return merged_metrics(self._replicas.ask_all("metrics").any(), "replica")

    def check(self, request: InferRequest) -> None:
        """Refuse ``request``: an ingress passes inference on as it came.

        Raises:
            UnsupportedError: always.
        """
        raise _not_here(request)

    def submit(self, request: InferRequest) -> None:
        """Answer ``request`` with the same refusal."""
        request.send(InferResponse(request.model_name, "", request.asked.id, error=_not_here(request)), final=True)


def _not_here(request: InferRequest) -> UnsupportedError:
    return UnsupportedError(
        f"an ingress executes no model: the request for '{request.model_name}' belongs to a replica, to which an "
        "ingress passes it on"
    )


class ClusterOperations(Operations):
    """The operations of an ingress: all but those that are about one server."""

    def run(self, operation: Operation, call: Call) -> Any:
        if operation.api in (Api.TRACE, Api.LOGGING):
            raise UnsupportedError(_OF_ONE_SERVER)
        return super().run(operation, call)
