"""Models of a server."""

import asyncio
import queue
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from repoagent.errors import InvalidArgumentError, NotFoundError, RepoAgentError
from repoagent.server.enums import ModelBatchFlag, ModelTxnPropertyFlag
from repoagent.server.iterators import CALLER, AsyncQueueSender, AsyncResponseIterator, QueueSender, ResponseIterator
from repoagent.server.request import (
    InferenceRequest,
    InferenceResponse,
    core_input,
    core_request,
    error_response,
    make_response,
)
from repoagent.serving.requests.request import Asked, InferRequest

if TYPE_CHECKING:
    from repoagent.api.report import LoadReport
    from repoagent.server.datatypes import Array
    from repoagent.server.server import Server
    from repoagent.serving.core import ServingCore


def infer(core: "ServingCore", request: InferenceRequest, raise_on_error: bool) -> ResponseIterator:
    """Send ``request`` and return its responses.

    Raises:
        RepoAgentError: the request does not fit the model, or there is no such model. Failures of the model itself
            come with the response.
        TypeError: a field of the request has a value of the wrong type.
    """
    prepared = core_request(request)
    if request.response_queue is not None and isinstance(request.response_queue, asyncio.Queue):
        raise TypeError("infer cannot fill an asyncio.Queue: give it a queue.SimpleQueue, or use async_infer")
    serial = CALLER.ask()
    response = _execute_here(core, request, prepared)
    if response is not None:
        return ResponseIterator(prepared, [response].pop, raise_on_error, serial)
    responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()
    prepared.redirect(QueueSender(request, responses))
    core.check(prepared)
    core.submit(prepared)
    return ResponseIterator(prepared, responses.get, raise_on_error, serial)


def _execute_here(core: "ServingCore", request: InferenceRequest, prepared: InferRequest) -> InferenceResponse | None:
    """The response to a request that this thread executes by itself; None if it should not."""
    try:
        answer = core.infer_here(prepared, CALLER.patient)
        if answer is None:
            return None
        response = make_response(request, answer, True)
    except RepoAgentError as error:
        # Faults of the request itself are raised at once, as in Triton, all others come with the response.
        core.check(prepared)
        response = error_response(request, error)
    if request.response_queue is not None:
        user_queue: Any = request.response_queue
        user_queue.put(response)
    return response


def infer_async(core: "ServingCore", request: InferenceRequest, raise_on_error: bool) -> AsyncResponseIterator:
    """The same for the running event loop, which is never blocked.

    Raises:
        RepoAgentError: the request does not fit the model, or there is no such model.
        RuntimeError: no event loop is running.
    """
    if not isinstance(request.response_queue, asyncio.Queue | None):
        raise TypeError(f"async_infer fills an asyncio.Queue, not {type(request.response_queue).__name__}")
    responses: asyncio.Queue[InferenceResponse] = asyncio.Queue()
    prepared = core_request(request, AsyncQueueSender(request, responses))
    core.check(prepared)
    core.submit(prepared)
    return AsyncResponseIterator(prepared, responses, raise_on_error)


class Model:
    """A model of a server, by name and version; -1 is the highest version that is ready.

    It is only a name: making one sends nothing to the server. ``state`` and ``reason`` are those of the index, for an
    object that came from one.
    """

    __slots__ = ("__weakref__", "_answering", "_server", "name", "reason", "state", "version")

    def __init__(
        self,
        server: "Server",
        name: str,
        version: int = -1,
        state: str | None = None,
        reason: str | None = None,
    ) -> None:
        self._server = server
        self.name = name
        self.version = version
        self.state = state
        self.reason = reason
        self._answering: tuple[str, Model] | None = None

    def __str__(self) -> str:
        return str({"name": self.name, "version": self.version, "state": self.state or self._state_now()})

    def __repr__(self) -> str:
        version = "" if self.version == -1 else f", version {self.version}"
        reason = f": {self.reason}" if self.reason else ""
        return f"<Model '{self.name}'{version}, {self.state or self._state_now()}{reason}>"

    def _state_now(self) -> str:
        try:
            return "READY" if self.ready() else "not ready"
        except RepoAgentError:
            return "not ready"

    def at_version(self, version: int | str) -> "Model":
        """The same model at one version; an empty text leaves it as it is."""
        return Model(self._server, self.name, int(version)) if version else self

    def answering(self, version: str) -> "Model":
        """As :meth:`at_version`, and the same object again as long as the same version answers."""
        known = self._answering
        if known is not None and known[0] == version:
            return known[1]
        model = self.at_version(version)
        if model is not self:  # That would keep it alive.
            self._answering = (version, model)
        return model

    # -- requests -------------------------------------------------------------------------------------------------

    def create_request(self, **fields: Any) -> InferenceRequest:
        """A request to this model; ``fields`` are those of :class:`InferenceRequest`."""
        return InferenceRequest(self, **fields)

    def infer(
        self, inference_request: InferenceRequest | None = None, raise_on_error: bool = True, **fields: Any
    ) -> ResponseIterator:
        """Send a request, the one given or a new one, after setting ``fields`` in it, and return its responses.

        Raises:
            InvalidArgumentError: the request does not fit the model; the server is not started.
            NotFoundError: there is no such model or version.
            UnavailableError: it is not ready.
        """
        request = InferenceRequest(self, **fields) if inference_request is None else _changed(inference_request, fields)
        return infer(self._server.core, request, raise_on_error)

    def async_infer(
        self, inference_request: InferenceRequest | None = None, raise_on_error: bool = True, **fields: Any
    ) -> AsyncResponseIterator:
        """The same for ``async for``. Call it where an event loop is running."""
        request = InferenceRequest(self, **fields) if inference_request is None else _changed(inference_request, fields)
        return infer_async(self._server.core, request, raise_on_error)

    def run(self, inputs: Mapping[str, Any], outputs: Iterable[str] = ()) -> "dict[str, Array]":
        """Arrays in, arrays out, on this thread where possible; the shortest way to use a model.

        Args:
            inputs: See :class:`InferenceRequest`.
            outputs: Names of the outputs wanted (one may stand by itself); all of them if empty.

        Returns:
            NumPy arrays by name. BYTES outputs are object arrays of ``bytes``; BF16 ones are their bits, as uint16.

        Raises:
            RepoAgentError: the request failed, or the model is decoupled.
            TypeError: ``inputs`` is not a mapping.
        """
        if type(inputs) is not dict and not isinstance(inputs, Mapping):
            raise TypeError(f"run takes the inputs by name, {{'name': array}}, not {type(inputs).__name__}")
        prepared = InferRequest(
            Asked(
                self.name,
                {name: core_input(value) for name, value in inputs.items()},
                self._version_text(),
                requested_outputs=(outputs,) if isinstance(outputs, str) else tuple(outputs),
            )
        )
        try:
            response = self._server.core.infer(prepared)
        except RepoAgentError as error:
            raise error.with_traceback(None) from None  # The server's frames are of no use to the caller.
        return {name: tensor.array for name, tensor in response.outputs.items()}

    # -- questions ------------------------------------------------------------------------------------------------

    def _version_text(self) -> str:
        return "" if self.version == -1 else str(self.version)

    def metadata(self) -> dict[str, Any]:
        """Name, versions, platform, inputs and outputs, as the KServe v2 protocol gives them."""
        return self._server.core.model_metadata(self.name, self._version_text())

    def ready(self) -> bool:
        """Whether the model accepts requests."""
        return self._server.core.model_ready(self.name, self._version_text())

    def report(self) -> "LoadReport":
        """What the last load of the model did, agent by agent; a notebook shows it as a picture.

        Raises:
            NotFoundError: it was never loaded.
        """
        report = self._server.core.report(self.name)
        if report is None:
            raise NotFoundError(f"model '{self.name}' was never loaded, so there is no report of a load")
        return report

    def statistics(self) -> dict[str, Any]:
        """Counts and durations, in the form of Triton's statistics JSON."""
        return self._server.core.statistics(self.name, self._version_text())

    def config(self, config_version: int = 1) -> dict[str, Any]:
        """The completed configuration.

        Raises:
            InvalidArgumentError: ``config_version`` is not 1, the only one there is.
        """
        if config_version != 1:
            raise InvalidArgumentError(
                f"model configuration version {config_version} not supported, supported versions are: 1"
            )
        return self._server.core.model_config(self.name, self._version_text())

    def batch_properties(self) -> ModelBatchFlag:
        """FIRST_DIM if the first dimension of its tensors is a batch size."""
        return ModelBatchFlag.FIRST_DIM if self.config()["max_batch_size"] > 0 else ModelBatchFlag.UNKNOWN

    def transaction_properties(self) -> ModelTxnPropertyFlag:
        """DECOUPLED if a request can have any number of responses."""
        decoupled = self.config().get("model_transaction_policy", {}).get("decoupled", False)
        return ModelTxnPropertyFlag.DECOUPLED if decoupled else ModelTxnPropertyFlag.ONE_TO_ONE


def _changed(request: InferenceRequest, fields: dict[str, Any]) -> InferenceRequest:
    for name, value in fields.items():
        setattr(request, name, value)
    return request


class ModelDictionary(dict[tuple[str, int], Model]):
    """Models by (name, version). A name alone gives the model at its highest ready version."""

    def __init__(self, server: "Server", models: Iterable[Model]) -> None:
        super().__init__({(model.name, model.version): model for model in models})
        self._server = server

    def __getitem__(self, key: Any) -> Model:
        if isinstance(key, str) and any(name == key for name, _ in self):
            return Model(self._server, key)
        try:
            return super().__getitem__(key)
        except KeyError:
            raise KeyError(f"Unknown Model: {key}") from None
