"""The server: a :class:`repoagent.server.Server` with Triton's calls."""

import time
from collections.abc import Sequence
from dataclasses import replace

from repoagent.errors import InvalidArgumentError
from repoagent.server.at_exit import forget
from repoagent.server.model import Model
from repoagent.server.server import Server as UpperServer
from repoagent.serving.requests.tensor import ServerEnum
from repoagent_capi.triton_bindings.options import ServerOptions
from repoagent_capi.triton_bindings.request import InferenceRequest
from repoagent_capi.triton_bindings.response import DeliverySender
from repoagent_capi.triton_bindings.trace import InferenceTrace
from repoagent_capi.triton_bindings.values import Message, Metrics, Parameter


class ModelIndexFlag(ServerEnum):
    """Which models an index lists."""

    READY = 1


class Server:
    """A server that runs as soon as it is made. Names and versions are as everywhere: version -1 is the highest.

    Raises:
        RepoAgentError: it cannot start.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._upper = UpperServer(options.to_options()).start()
        self.core = self._upper.core
        """The serving core; also there after :meth:`stop`, when it refuses everything."""

    def _ptr(self) -> int:
        return id(self.core)

    def stop(self) -> None:
        """Finish running requests and unload everything. Twice is once."""
        try:
            self.core.stop()
        finally:
            forget(self.core)

    def set_exit_timeout(self, seconds: int) -> None:
        """How long :meth:`stop` may wait for running requests."""
        self.core.options = replace(self.core.options, exit_timeout_seconds=seconds)

    def is_live(self) -> bool:
        """The server runs."""
        return self.core.live()

    def is_ready(self) -> bool:
        """It takes requests."""
        return self.core.ready()

    def metadata(self) -> Message:
        """Name, version and extensions."""
        return Message.of(self.core.metadata())

    def metrics(self) -> Metrics:
        """All metrics."""
        return Metrics(self._upper.metrics())

    # -- repositories ---------------------------------------------------------------------------------------------

    def register_model_repository(self, path: str, name_mapping: Sequence[Parameter] = ()) -> None:
        """Add a repository; the parameters map directories to names of models. See the upper layer.

        Raises:
            InvalidArgumentError: a name is no text.
        """
        for parameter in name_mapping:
            if not isinstance(parameter.value, str):
                raise InvalidArgumentError(
                    f"Mapped model name must be a string, found another type for {parameter.name}"
                )
        self._upper.register_model_repository(path, [(it.name, str(it.value)) for it in name_mapping])

    def unregister_model_repository(self, path: str) -> None:
        """Forget a repository."""
        self._upper.unregister_model_repository(path)

    def poll_model_repository(self) -> None:
        """Follow changes in the repositories now."""
        self._upper.poll_model_repository()

    # -- models ---------------------------------------------------------------------------------------------------

    def _model(self, name: str, version: int) -> Model:
        return self._upper.model(name, version)

    def model_is_ready(self, model_name: str, model_version: int) -> bool:
        """Whether a request would be taken."""
        return self._model(model_name, model_version).ready()

    def model_batch_properties(self, model_name: str, model_version: int) -> tuple[int, int]:
        """A :class:`ModelBatchFlag` as a number, and 0."""
        return int(self._model(model_name, model_version).batch_properties()), 0

    def model_transaction_properties(self, model_name: str, model_version: int) -> tuple[int, int]:
        """A :class:`ModelTxnPropertyFlag` as a number, and 0."""
        return int(self._model(model_name, model_version).transaction_properties()), 0

    def model_metadata(self, model_name: str, model_version: int) -> Message:
        """Inputs and outputs."""
        return Message.of(self._model(model_name, model_version).metadata())

    def model_statistics(self, model_name: str, model_version: int) -> Message:
        """Counts and durations; an empty name is all models."""
        return Message.of(self.core.statistics(model_name, "" if model_version == -1 else str(model_version)))

    def model_config(self, model_name: str, model_version: int, config_version: int) -> Message:
        """The completed configuration; ``config_version`` must be 1."""
        return Message.of(self._model(model_name, model_version).config(config_version))

    def model_index(self, flags: int) -> Message:
        """A list of models; of those that are ready if :class:`ModelIndexFlag` READY is in ``flags``."""
        return Message.of(self.core.index(bool(int(flags) & int(ModelIndexFlag.READY))))

    def load_model(self, model_name: str) -> None:
        """Load or reload a model."""
        self._upper.load(model_name)

    def load_model_with_parameters(self, model_name: str, parameters: Sequence[Parameter]) -> None:
        """The same with a configuration and files of the caller's."""
        self._upper.load(model_name, {parameter.name: parameter.value for parameter in parameters})

    def unload_model(self, model_name: str) -> None:
        """Unload a model."""
        self._upper.unload(model_name)

    def unload_model_and_dependents(self, model_name: str) -> None:
        """Unload a model and those that it pulled in."""
        self._upper.unload(model_name, unload_dependents=True)

    # -- requests -------------------------------------------------------------------------------------------------

    def infer_async(self, request: InferenceRequest, trace: InferenceTrace | None = None) -> None:
        """Send ``request``; its responses come through :meth:`InferenceRequest.get_next_response`.

        The trace is taken over also when this raises.

        Raises:
            RepoAgentError: the request does not fit the model, or that is not ready.
        """
        sender = DeliverySender(request.delivery, trace)
        prepared = request.prepare(sender)
        self.core.check(prepared)
        sender.request = prepared
        if trace is not None:
            trace.begin(prepared, self.core.find(prepared).version, time.monotonic_ns())
        self.core.submit(prepared)
