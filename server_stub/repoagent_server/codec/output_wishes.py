"""What a client wants done with outputs before they are sent; the same for HTTP and gRPC."""

from dataclasses import dataclass, field

from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.requests.class_labels import OutputClasses
from repoagent.serving.requests.request import InferRequest, InferResponse, ResponseSender
from repoagent_server.codec.storing import store
from repoagent_server.handlers.classification import classify
from repoagent_server.handlers.shared_memory import Span

__all__ = ["OutputWishes"]


@dataclass(slots=True)
class OutputWishes:
    """By the output's name; most requests have none."""

    classes: dict[str, int] = field(default_factory=dict)
    """Outputs to be classified, and how many classes are wanted (at least 1)."""
    max_elements: int = field(default=DEFAULT_LIMITS.classes, compare=False)
    """How many values an output that is classified may have."""
    spans: dict[str, Span] = field(default_factory=dict)
    """Outputs that go to shared memory instead of into the response."""

    def sender(self, inner: ResponseSender, request: InferRequest) -> ResponseSender:
        """A sender that does what is wished on the thread that answers ``request``, then hands on to ``inner``.

        Whoever executes the request may put outputs into their places himself; it is told where those are.
        """
        request.output_places = self.spans
        return _WishSender(self, inner, request) if self.classes or self.spans else inner

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


class _WishSender:
    """Fulfils the wishes for the answers to one request."""

    __slots__ = ("_inner", "_request", "_wishes")

    def __init__(self, wishes: OutputWishes, inner: ResponseSender, request: InferRequest) -> None:
        self._wishes = wishes
        self._inner = inner
        self._request: InferRequest | None = request

    def send(self, response: InferResponse | None, final: bool) -> None:
        request = self._request
        if final:
            # The request refers to its sender. Without a circle, memory shared with the client goes at once.
            self._request = None
        if request is not None and response is not None and response.error is None:
            try:
                self._wishes.fulfil(response, request.classes or OutputClasses(batching=False))
            except RepoAgentError as error:
                response = InferResponse(response.model_name, response.model_version, response.id, error=error)
        self._inner.send(response, final)
