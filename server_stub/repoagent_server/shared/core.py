"""What the front ends need of a serving core.

``repoagent.serving.core.ServingCore`` has it. So have ``processes/worker.py``, which asks the keeper
(``processes/desk.py``), the ingress of Ray Serve (``cluster_core.py``), and the tests' fake.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from repoagent.audit import Audit
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.tracing.tracer import Tracer


class Report(Protocol):
    """What a load did; ``repoagent.api.LoadReport`` is one."""

    def to_dict(self) -> dict[str, Any]: ...

    def lines(self) -> list[str]: ...


class Core(Protocol):
    """The server, without any protocol. Every method may be called from any thread and raises RepoAgentError."""

    tracer: Tracer
    """Chooses the requests that are traced."""

    audit: Audit
    """Gets what clients do to models and settings."""

    def live(self) -> bool: ...

    def ready(self) -> bool: ...

    def metadata(self) -> dict[str, Any]: ...

    def model_ready(self, name: str, version: str = "") -> bool: ...

    def asks_model(self, name: str, version: str = "") -> bool: ...

    def model_loaded(self, name: str) -> bool: ...

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]: ...

    def decoupled(self, name: str, version: str = "") -> bool: ...

    def model_config(self, name: str, version: str = "") -> dict[str, Any]: ...

    def index(self, *, ready_only: bool = False) -> list[dict[str, Any]]: ...

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]: ...

    def load(
        self,
        name: str,
        *,
        config: str | bytes | None = None,
        files: Mapping[str, bytes] | None = None,
        version: int | None = None,
    ) -> Report: ...

    def unload(self, name: str, *, unload_dependents: bool = False, version: int | None = None) -> None: ...

    def report(self, name: str) -> Report | None: ...

    def attestation(self, name: str, version: str = "") -> bytes | None:
        """The signed receipt of the load that serves the model or the version, as JSON; None if there is none."""

    def check(self, request: InferRequest) -> None:
        """Refuse ``request`` if it would be refused before its execution, as far as that is known."""

    def submit(self, request: InferRequest) -> None:
        """Answer through ``request.send``, from any thread, perhaps at once. A refusal is an answer: never raises."""
