"""A request on its way through the core, and the responses that come back.

A decoder makes an :class:`Asked` of what a client sent. A front end makes an :class:`InferRequest` of that and a sender
for the answers, and submits it; what executes the model answers through :meth:`InferRequest.send`. One request has one
or more responses, the last one marked final, so decoupled models, streaming and cancellation need no second road.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypedDict

from repoagent.audit import Actor
from repoagent.errors import InternalError, InvalidArgumentError, NotFoundError, RepoAgentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.measuring.statistics import ExecutionTimes
from repoagent.serving.requests.tensor import Tensor

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.storage.files.files import ModelFiles

Labels = Mapping[str, tuple[bytes, ...]]
"""Output -> labels of its classes, by index. They are bytes because the encoding of the file is unknown."""

NO_LABELS: Final[Labels] = {}


@dataclass(frozen=True, slots=True)
class OutputClasses:
    """How the values of a version's outputs become classes, and the receipt of the load that made it."""

    batching: bool
    """The first dimension of every output is that of the batch."""
    labels: Labels = field(default_factory=dict)
    receipt: str = ""
    """Its digest, ``sha256:...``; empty if there is none."""

    def label(self, output: str, index: int) -> bytes:
        """The label of class ``index`` of ``output``; empty if it has none."""
        labels = self.labels.get(output, ())
        return labels[index] if index < len(labels) else b""


def read_labels(config: "ModelConfig", files: "ModelFiles", limits: Limits = DEFAULT_LIMITS) -> Labels:
    """The labels of all outputs of ``config`` that have a file.

    Raises:
        InternalError: a file is not there; the text is Triton's, with the path in the model's directory.
        RepoAgentError: it cannot be read.
    """
    return {
        item.name: _lines(item.label_filename, files, limits.text_file_bytes)
        for item in config.output
        if item.label_filename
    }


def _lines(path: str, files: "ModelFiles", limit: int) -> tuple[bytes, ...]:
    try:
        with files.open(path) as stream:
            content = stream.read(limit + 1)
    except NotFoundError:
        raise InternalError(f"failed to open text file for read {path}: No such file or directory") from None
    if len(content) > limit:
        raise InvalidArgumentError(f"'{path}' has more than {limit} bytes ({Limits.flag('text_file_bytes')})")
    return tuple(content.removesuffix(b"\n").split(b"\n")) if content else ()


class ModelId(str):
    """A model's name, or ``NAMESPACE::NAME``: a text that knows its parts.

    The namespace is the URL of the repository; it is empty without namespacing, and for a model that lies in none.
    """

    __slots__ = ("name", "namespace")

    name: str
    namespace: str

    def __new__(cls, name: str, namespace: str = "") -> "ModelId":
        self = super().__new__(cls, f"{namespace}::{name}" if namespace else name)
        self.name = name
        self.namespace = namespace
        return self

    @classmethod
    def of(cls, text: str) -> "ModelId":
        """``text`` itself if it is one, else the model of that name without a namespace."""
        return text if isinstance(text, ModelId) else cls(text)


ParameterValue = bool | int | float | str


@dataclass(slots=True)
class InferResponse:
    """One answer. With ``error`` set there are no outputs."""

    model_name: str
    model_version: str
    id: str = ""
    outputs: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    error: RepoAgentError | None = None
    output_start_ns: int = 0
    """When the model began to make its outputs of what it had computed (``time.monotonic_ns``), if it reports that."""
    receipt: str = ""
    """The digest of the receipt of the version that answers, if answers are to name it."""


class ResponseSender(Protocol):
    """Where the answers to one request go."""

    def send(self, response: InferResponse | None, final: bool) -> None:
        """Take one response; None with ``final`` is an empty end of a decoupled answer.

        Called from any thread, never twice at once for one request, never after ``final``. Must not raise. It returns
        soon, but an ensemble with ``max_inflight_requests`` may hold back who answers more than once.
        """


class RequestTrace(Protocol):
    """Follows one request: called from any thread, never twice at once. Must not raise."""

    def begin(self, request: "InferRequest", version: int, now_ns: int) -> None:
        """That version of the model has accepted the request. Times are ``time.monotonic_ns``."""

    def answer(self, response: InferResponse) -> None:
        """A response is about to be sent."""

    def end(self, request: "InferRequest", now_ns: int) -> None:
        """The final response is about to be sent; ``request.times`` has the moments of its execution, if any."""

    def child(self) -> "RequestTrace":
        """A trace for a request that is made for this one: that of an ensemble to a member."""


class OutputPlace(Protocol):
    """Memory of the caller's for one output."""

    def room(self, byte_size: int) -> memoryview | None:
        """The first ``byte_size`` of its bytes, writable; None if fewer; ``InvalidArgumentError`` if they are gone."""


@dataclass(slots=True)
class Asked:
    """What a client asks of a model: what it sent, and nothing that it left out. No layer changes it.

    The type checker sees to that: with ``frozen=True`` each would take a microsecond more to make.
    """

    model_name: Final[str]
    inputs: Final[Mapping[str, Tensor]]
    model_version: Final[str] = ""
    """A decimal number, or empty for what the version policy prefers."""
    requested_outputs: Final[tuple[str, ...]] = ()
    """Names of the outputs wanted, empty for all."""
    id: Final[str] = ""
    parameters: Final[Mapping[str, ParameterValue]] = field(default_factory=dict)
    correlation_id: Final[int | str] = 0
    sequence_start: Final[bool] = False
    sequence_end: Final[bool] = False
    priority: Final[int] = 0
    timeout_us: Final[int] = 0
    volatile: Final[bool] = False
    """The inputs lie in memory that the client can change meanwhile: what is remembered of them must be a copy."""


class AskedFields(TypedDict, total=False):
    """The fields of :class:`Asked` that a decoder finds one by one, by their names."""

    id: str
    correlation_id: int | str
    sequence_start: bool
    sequence_end: bool
    priority: int
    timeout_us: int


class _Discard:
    """Takes the answers to a request that nothing waits for."""

    def send(self, response: InferResponse | None, final: bool) -> None:
        pass


DISCARD: Final[ResponseSender] = _Discard()


class InferRequest:
    """One execution of what a client asked, on its way through the core: each serves once.

    ``asked`` is the client's; all else belongs to the layers. ``model_name``, ``inputs`` and ``requested_outputs``
    begin as the client's, and are what the model gets: a layer may put others in their place.
    """

    __slots__ = (
        "_sender",
        "arrival_ns",
        "asked",
        "asker",
        "behind",
        "call_id",
        "cancelled",
        "classes",
        "inputs",
        "model_name",
        "on_behind",
        "on_cancel",
        "output_places",
        "placeholder",
        "refuses_decoupled",
        "requested_outputs",
        "rescheduled",
        "times",
        "trace",
        "trace_context",
    )

    def __init__(
        self,
        asked: Asked,
        sender: ResponseSender = DISCARD,
        *,
        trace_context: Mapping[str, str] | None = None,
        refuses_decoupled: str = "",
        output_places: Mapping[str, OutputPlace] | None = None,
        placeholder: bool = False,
    ) -> None:
        self.asked = asked
        self._sender = sender
        self.model_name = asked.model_name
        self.inputs = asked.inputs
        self.requested_outputs = asked.requested_outputs
        self.trace_context: Final = trace_context
        """The client's headers ``traceparent`` and ``tracestate``, if a tracer asks for them."""
        self.refuses_decoupled: Final = refuses_decoupled
        """Why a decoupled model cannot answer it, whatever it would answer; empty if it can."""
        self.output_places = output_places
        """Where the caller wants outputs. What executes may make them there; the caller puts the others there."""
        self.placeholder: Final = placeholder
        """Fills an empty slot of a sequence batch: nothing waits for its answer and it is not counted."""
        self.call_id = ""
        """What its caller calls it, for logs and traces: ``x-request-id`` of the front ends, unlike the id in it."""
        self.cancelled = False
        """Set by :meth:`cancel`; checked before the execution and, if that is long, during it."""
        self.on_cancel: Callable[[], None] | None = None
        """Called by :meth:`cancel`. A layer that lets the request wait sets it, before a last look at ``cancelled``, in
        order to answer it at once; it is called from any thread, perhaps long after the wait, and must return soon."""
        self.behind = False
        """Whether the client has left more of the answer unread than its front end lets run ahead."""
        self.on_behind: Callable[[bool], None] | None = None
        """Called by :meth:`fall_behind`. What executes a stream may set it, before a look at ``behind``, to let others
        go first meanwhile; it is called from any thread and must return soon."""
        self.asker: Actor | None = None
        """The client, for a load on demand; None without access control, and of the server's own requests."""
        self.arrival_ns = 0
        """``time.monotonic_ns()`` when a version of the model took it; that sets it."""
        self.classes: OutputClasses | None = None
        """How its outputs are classified; set by the version that takes it."""
        self.trace: RequestTrace | None = None
        """Follows the request from its acceptance by a model to its final answer; then it is None again."""
        self.times: ExecutionTimes | None = None
        """When its execution was where; set before the answer by what executed it, if it was executed."""
        self.rescheduled = False
        """Set, before its empty end, by a model that wants to execute it again: see :class:`IterativeScheduler`."""

    def send(self, response: InferResponse | None, final: bool) -> None:
        """Answer it: see :meth:`ResponseSender.send`."""
        self._sender.send(response, final)

    def redirect(self, sender: ResponseSender) -> ResponseSender:
        """Have answers go to ``sender`` from now on; returns what they went to.

        A layer that puts its own sender first passes answers on to that one, and puts it back with the final answer:
        else the request and the sender would keep each other, and the client's tensors, in memory.
        """
        previous = self._sender
        self._sender = sender
        return previous

    def cancel(self) -> None:
        """Give the request up. It still gets exactly one final response (usually a CancelledError)."""
        self.cancelled = True
        if (on_cancel := self.on_cancel) is not None:
            on_cancel()

    def fall_behind(self, behind: bool) -> None:
        """The client does not read its stream, or with False, reads it again. Nothing of it is lost either way."""
        self.behind = behind
        if (on_behind := self.on_behind) is not None:
            on_behind(behind)
