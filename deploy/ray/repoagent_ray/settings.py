"""The settings of an application, as ``serve run`` and a Serve configuration file give them."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from repoagent.audit import NO_AUDIT, Audit
from repoagent.errors import InvalidArgumentError
from repoagent.limits import Limits
from repoagent.loader.attesting import AttestSettings
from repoagent.server import ModelControlMode, Options

_OURS: Final = {
    "memory_budget": "models_per_replica limits what a replica loads",
    "model_control_mode": "models are loaded by the requests for them",
    "model_namespacing": "a model is known by its name alone",
    "model_repository": "it is a setting of its own",
    "on_demand": "models are loaded by the requests for them",
    "audit": "it is audit_log",
    "startup_models": "models are loaded by the requests for them",
}
_MOST_BODY: Final = 1 << 26


class Settings(BaseModel):
    """What the application serves, and with how much. A name that is not known is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model_repository: str | list[str]
    """A directory or URL, or several. Every node must reach it under this name."""
    models_per_replica: int = Field(3, ge=1)
    """How many models a replica has at a time; the one used least lately goes for the next."""
    min_replicas: int = Field(1, ge=1)
    max_replicas: int | None = Field(None, ge=1)
    """With more than ``min_replicas``, Ray Serve adds and removes replicas by the length of their queues; None for
    ``min_replicas``."""
    target_ongoing_requests: float = Field(8.0, gt=0)
    """Requests per replica, running and queued, that the autoscaler aims for."""
    upscale_delay_s: float = Field(30.0, ge=0)
    downscale_delay_s: float = Field(600.0, ge=0)
    max_ongoing_requests: int = Field(64, ge=1)
    """Requests that a replica runs at a time; others wait in the ingress."""
    max_queued_requests: int = Field(1000, ge=-1)
    """Requests that wait in an ingress before more are refused (503); -1 for no limit."""
    drain_seconds: float = Field(30.0, ge=0)
    """How long an unload, and the end of a replica, wait for running requests."""
    health_check_period_s: float = Field(5.0, gt=0)
    """How often Ray asks a replica, and an ingress, whether it is well."""
    health_check_timeout_s: float = Field(10.0, gt=0)
    """How long one may take to answer that. After three times without an answer Ray replaces it: until then it may be
    given requests, which fail when their patience is over."""
    ingress_replicas: int = Field(1, ge=1)
    """Processes that pass requests on."""
    stream_requests: int = Field(256, ge=1)
    """Requests of one gRPC stream that may run at a time; others are not read before."""
    max_body: int = Field(_MOST_BODY, ge=1)
    """The largest body of an HTTP request, in bytes."""
    forward_headers: str = ""
    """Which headers of inference requests reach the model as parameters: a regular expression."""
    access: str | None = None
    """An access file, which every node with an ingress must have under this path."""
    allow_openai: bool = False
    """Serve OpenAI's API below ``/v1``."""
    allow_metrics: bool = True
    """Serve the metrics of all replicas at ``/metrics``."""
    allow_ui: bool = False
    """Serve a page for people at ``/ui``."""
    request_log: str | None = None
    """A directory on each node with an ingress: each ingress writes a line for each request into a file of its own."""
    audit_log: str | None = None
    """A directory on each node: each process writes an audit log of its own there."""
    audit_required: bool = False
    """Refuse loads and unloads that cannot be recorded."""
    audit_key: str | None = None
    """The reference of a key: with it every line of the audit logs carries an HMAC."""
    replica: dict[str, Any] = Field(default_factory=lambda: {"num_cpus": 1})
    """Ray's options for the actor of a replica: ``num_cpus``, ``num_gpus``, ``resources``, ..."""
    ingress: dict[str, Any] = Field(default_factory=lambda: {"num_cpus": 0})
    """The same for that of an ingress."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further fields of :class:`repoagent.server.Options` for the server in each replica."""

    @field_validator("options")
    @classmethod
    def _known(cls, options: dict[str, Any]) -> dict[str, Any]:
        for name in options:
            if name in _OURS:
                raise ValueError(f"options: '{name}' cannot be set here: {_OURS[name]}")
            if name not in Options.__dataclass_fields__:
                raise ValueError(f"options: '{name}' is not a field of repoagent.server.Options")
        return options

    @model_validator(mode="after")
    def _in_order(self) -> "Settings":
        if self.most_replicas < self.min_replicas:
            raise ValueError(f"max_replicas is {self.max_replicas}, below min_replicas, which is {self.min_replicas}")
        return self

    @property
    def most_replicas(self) -> int:
        """The most replicas at a time."""
        return self.min_replicas if self.max_replicas is None else self.max_replicas

    @property
    def limits(self) -> Limits:
        """What one request may hold.

        Raises:
            InvalidArgumentError: a limit is not known, or its value means nothing.
        """
        made: Limits = self._made("limits", Limits, {})
        return made

    @property
    def attest(self) -> AttestSettings | None:
        """How each replica signs receipts of its loads, if at all. Errors as of :attr:`limits`."""
        given = self.options.get("attest")
        made: AttestSettings | None = None if given is None else self._made("attest", AttestSettings, given)
        return made if made is None or made.directory is None else replace(made, directory=Path(made.directory))

    def _made(self, name: str, kind: type[Any], default: Any) -> Any:
        given = self.options.get(name, default)
        if isinstance(given, kind):
            return given
        try:
            return kind(**given)
        except TypeError as error:
            raise InvalidArgumentError(f"options: {name}: {error}") from None

    def server_options(self, audit: Audit = NO_AUDIT) -> Options:
        """The options of the server in a replica. ``audit`` gets what happens to its models.

        Raises:
            InvalidArgumentError: a limit, or a setting of receipts, is not known, or its value means nothing.
        """
        fields = {"log_info": True, "drain_timeout": self.drain_seconds, "exit_timeout": int(self.drain_seconds) + 5}
        return Options(
            model_repository=self.model_repository,
            model_control_mode=ModelControlMode.EXPLICIT,
            audit=audit,
            **{**fields, **self.options, "limits": self.limits, "attest": self.attest},
        )
