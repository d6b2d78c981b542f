"""What a client wants done with outputs before they are sent; the same for HTTP and gRPC."""

from dataclasses import dataclass, field

from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.requests.class_labels import OutputClasses
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.senders import LayerSender
from repoagent_server.codec.shared_memory_outputs import store
from repoagent_server.handlers.classification import classify
from repoagent_server.handlers.shared_memory import Span

__all__ = ["RequestedOutputs"]


@dataclass(slots=True)
class RequestedOutputs:
    """By the output's name; most requests have none."""

    classes: dict[str, int] = field(default_factory=dict)
    """Outputs to be classified, and how many classes are wanted (at least 1)."""
    max_elements: int = field(default=DEFAULT_LIMITS.classes, compare=False)
    """How many values an output that is classified may have."""
    spans: dict[str, Span] = field(default_factory=dict)
    """Outputs that go to shared memory instead of into the response."""

    def attend(self, request: InferRequest) -> None:
        """Have what is wanted done on the thread that answers ``request``, before its answers go on.

        What executes the request may put outputs into their places by itself.
        """
        request.output_places = self.spans
        if self.classes or self.spans:
            _OutputsSender(self, request)

    def fulfil(self, response: InferResponse, classes: OutputClasses) -> None:
        """Put classes in the label of outputs, and outputs into shared memory.

        Raises:
            InvalidArgumentError: a type cannot be classified, or a region has become too small.
            InternalError: an output needs more room than the client gave it.
        """
        for name, count in self.classes.items():
            if name in response.outputs:
                self._check_size(name, response.outputs[name].array.size)
                response.outputs[name] = classify(name, response.outputs[name], count, classes)
        for name, span in self.spans.items():
            if name in response.outputs:
                store(name, response.outputs[name], span)

    def _check_size(self, name: str, size: int) -> None:
        if size > self.max_elements:
            raise InvalidArgumentError(
                f"output '{name}' has {size} elements, and at most {self.max_elements} can be classified "
                f"({Limits.flag('classes')})"
            )


class _OutputsSender(LayerSender):
    """Does to the answers to one request what is wanted of its outputs."""

    __slots__ = ("_requested",)

    def __init__(self, requested: RequestedOutputs, request: InferRequest) -> None:
        super().__init__(request)
        self._requested = requested

    def send(self, response: InferResponse | None, final: bool) -> None:
        if response is not None and response.error is None:
            try:
                self._requested.fulfil(response, self._request.classes or OutputClasses(batching=False))
            except RepoAgentError as error:
                response = InferResponse(response.model_name, response.model_version, response.id, error=error)
        super().send(response, final)
