"""The door for inference requests: HTTP's ``infer`` and ``generate`` and gRPC's call and stream all go through it.

Answers come back from any thread to the front end's event loop, with one wake-up for as many as there are.
"""

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse, ResponseSender
from repoagent_server.access import Access, AccessError, Caller, NotAuthenticatedError, Right
from repoagent_server.access.access import Denials
from repoagent_server.access.credentials import CREDENTIALS
from repoagent_server.access.rights import for_model
from repoagent_server.handlers.headers import HeaderForwarding
from repoagent_server.handlers.requested_outputs import RequestedOutputs
from repoagent_server.handlers.shared_memory import CLOSED_REGIONS, NO_REGIONS, Regions
from repoagent_server.shared.core import Core
from repoagent_server.shared.request_log import RequestLog
from repoagent_server.shared.reserve import WORTH_COUNTING, Reserve, too_much

logger = logging.getLogger(__name__)
_ROOM: Final = 1024
"""Responses that may wait for the loop before senders of more are held up."""
_HOLD_SECONDS: Final = 1.0
"""For how long at most: the sender may hold something that the loop waits for."""


class Mailbox:
    """The way back to ``loop``. Made, and drained, on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._waiting: deque[tuple[Answer, InferResponse | None, bool]] = deque()
        self._woken = False
        self._room = threading.Event()
        self._room.set()

    def post(self, receiver: "Answer", response: InferResponse | None, final: bool) -> None:
        """Hand ``response`` over, from any thread. Waking the loop is what costs, so it is done once per batch."""
        here = threading.get_ident() == self._thread
        if here and not self._waiting:  # else it would overtake what another thread has posted
            receiver.deliver(response, final)
            return
        self._waiting.append((receiver, response, final))
        if not self._woken:
            # Two threads may both get here; the second wake-up then finds nothing, which is harmless.
            self._woken = True
            self._wake()
        if len(self._waiting) > _ROOM and not here:
            if (reader := LoopReader.here()) is None:
                self._hold()
            else:  # One loop does not wait for another.
                reader.overran = True

    def _hold(self) -> None:
        """Let the loop catch up with a model that answers faster than answers are written."""
        self._room.clear()
        if len(self._waiting) > _ROOM:  # else the loop may have been there before the flag fell
            self._room.wait(_HOLD_SECONDS)

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            # The front end has stopped without waiting for this answer: there is no one left to read it.

    def _drain(self) -> None:
        self._woken = False  # before the first look: what comes later wakes the loop again
        waiting = self._waiting
        for _ in range(len(waiting)):  # no more than that, so that connections are read and written in between
            receiver, response, final = waiting.popleft()
            try:
                receiver.deliver(response, final)
            except Exception:  # the others are to be delivered all the same
                logger.exception("a response could not be delivered")
        if waiting and not self._woken:
            self._woken = True
            self._loop.call_soon(self._drain)
        if not self._room.is_set():
            self._room.set()


class Answer(ABC):
    """The sender of one request, whose responses are delivered on the event loop's thread."""

    __slots__ = ("_mailbox",)

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def send(self, response: InferResponse | None, final: bool) -> None:
        """Take a response on any thread; see :class:`~repoagent.serving.requests.request.ResponseSender`."""
        self._mailbox.post(self, response, final)

    @abstractmethod
    def deliver(self, response: InferResponse | None, final: bool) -> None:
        """Take a response, on the event loop's thread."""


ELEMENT_BYTES: Final = 64
"""What a short element of BYTES takes."""
_MAX_VERSION: Final = 2**63 - 1
_TRACE_HEADERS: Final = frozenset({"traceparent", "tracestate"})

Headers = Iterable[tuple[bytes | str, bytes | str]]


@dataclass(frozen=True, slots=True)
class CallContext:
    """What the headers of one call mean for all of its requests."""

    parameters: Mapping[str, str] = field(default_factory=dict)
    """Headers that reach the model."""
    trace_context: Mapping[str, str] | None = None
    client: Caller | None = None
    """Who asks; None without access control."""
    request_id: str = ""
    """What the client, or a proxy before the server, calls it (``x-request-id``)."""


_NO_CONTEXT: Final = CallContext()
_NEEDS: Final = for_model(Right.INFER)


class Served:
    """A core, and what all front ends of a server have in common."""

    def __init__(
        self,
        core: Core,
        *,
        regions: Regions = NO_REGIONS,
        limits: Limits = DEFAULT_LIMITS,
        access: Access | None = None,
        request_log: RequestLog | None = None,
        denials: Denials | None = None,
        reserve: Reserve | None = None,
        allow_load_parameters: bool = False,
    ) -> None:
        self.core: Final = core
        self.regions: Final = regions
        """The shared memory that clients may register."""
        self.limits: Final = limits
        """How much one request may hold."""
        self.access: Final = access
        """Who may do what; None lets everybody do everything."""
        self.request_log: Final = request_log
        """Gets a line for each request to a model."""
        self.denials: Final = denials or Denials(core.audit)
        """Counts and records what is refused for its headers."""
        self.reserve: Final = reserve or Reserve(limits.held_bytes)
        """Of the memory for bodies and answers."""
        self.allow_load_parameters: Final = allow_load_parameters
        """Whether load requests may bring a configuration and files."""


class Inference:
    """Prepares requests and hands them to the core. Belongs to the event loop that ``mailbox`` leads to, over which the
    answers come."""

    def __init__(
        self,
        served: Served,
        mailbox: Mailbox,
        forwarding: HeaderForwarding | None = None,
        *,
        protocol: str = "http",
        route: str = "infer",
    ) -> None:
        """``protocol`` and ``route`` are what denied requests are reported with where no more is known."""
        self.core = served.core
        self._protocol = protocol
        self._route = route
        self._access = served.access
        self.mailbox = mailbox
        self._regions = served.regions
        self.limits = served.limits
        self.reserve = served.reserve
        forwarding = forwarding or HeaderForwarding()
        # A model is no one to be given the keys of its clients.
        self._forwarding = forwarding if served.access is None else forwarding.without(CREDENTIALS)

    def hold(self, asked: Asked) -> None:
        """Count the tensors of a long request that are no views of its body, until they are gone.

        Raises:
            UnavailableError: the reserve has no room for them.
        """
        for tensor in asked.inputs.values():
            array = tensor.array
            size = array.size * ELEMENT_BYTES if array.dtype.hasobject else array.nbytes
            is_view = array.base is not None and not isinstance(array.base, np.ndarray)
            if not is_view and size >= WORTH_COUNTING and not self.reserve.hold(array).resize(size):
                raise too_much()

    def unreadable(self, error: RepoAgentError, client: Caller | None, model: str, version: str) -> None:
        """Take note of a request of ``client`` that cannot be read. Triton complains of its model first.

        Raises:
            NotFoundError: there is no such model or version.
        """
        if isinstance(error, AccessError) and self._access is not None:
            error.client = self.name_now(client)
            self._denied(self._access, error, client, self._route)
        self.core.model_metadata(model, version)

    def context(
        self, headers: Callable[[], Headers], client: Caller | None = None, request_id: str = ""
    ) -> CallContext:
        """What the ``headers`` of a call of ``client`` mean; they are asked for only if they can mean something."""
        tracer = self.core.tracer
        forwards, propagates = self._forwarding.enabled, tracer.enabled and tracer.propagates
        if not (forwards or propagates):
            if request_id:
                return CallContext(client=client, request_id=request_id)
            return _NO_CONTEXT if client is None else _context_of(client)
        found = list(headers() or ())
        return CallContext(
            self._forwarding.chosen(found) if forwards else {},
            trace_context(found) if propagates else None,
            client,
            request_id,
        )

    def name_now(self, client: Caller | None) -> str:
        """The name of ``client`` by the rules of now, for logs: a key may belong to another one since its call began.

        Empty without access control, and if it belongs to no client any more.
        """
        if client is None or self._access is None:
            return ""
        try:
            return self._access.current(client).name
        except AccessError:
            return ""

    def admit(self, client: Caller | None, model: str, *, route: str = "") -> Caller | None:
        """Check that ``client`` may infer with ``model``: before anything of the answer depends on the model.

        Returns who it is by the rules of now; None without access control.

        Raises:
            AccessError: it may not, or not any more.
        """
        access = self._access
        if access is None:
            return None
        try:
            if client is None:
                raise NotAuthenticatedError("the request has no client", given=False)
            current = access.current(client)
            access.require(current, _NEEDS, model)
            return current
        except AccessError as error:
            self._denied(access, error, client, route or self._route)
            raise

    def _denied(self, access: Access, error: AccessError, client: Caller | None, route: str) -> None:
        address, request = (client.address, client.request) if client is not None else ("", "")
        access.denied(error, route, self._protocol, address=address, request=request)

    def regions(self, client: Caller | None) -> Regions:
        """The shared memory that requests of ``client`` may name: what others may have in it is for those alone who
        manage all models, by the rules of now.

        Raises:
            AccessError: there is no such client any more.
        """
        if client is None or self._access is None:
            return self._regions
        try:
            return self._regions if self._access.current(client).may_all(Right.MANAGE) else CLOSED_REGIONS
        except AccessError as error:
            self._denied(self._access, error, client, self._route)
            raise

    def prepare(
        self,
        asked: Asked,
        sender: ResponseSender,
        context: CallContext = _NO_CONTEXT,
        requested: RequestedOutputs | None = None,
        refuses_decoupled: str = "",
    ) -> InferRequest:
        """A request for the core.

        Args:
            asked: What was read from the client's message.
            sender: Takes the answers.
            context: What its call's headers mean.
            requested: What is to be done with outputs before ``sender`` gets them.
            refuses_decoupled: Why a decoupled model cannot answer it; empty if it can.

        Raises:
            AccessError: the client may not infer with the model.
        """
        current = self.admit(context.client, asked.model_name) if self._access is not None else None
        if context.parameters:
            asked = replace(asked, parameters={**asked.parameters, **context.parameters})
        request = InferRequest(asked, sender, trace_context=context.trace_context, refuses_decoupled=refuses_decoupled)
        if current is not None:
            request.asker = current.asker
        if context.request_id:
            request.call_id = context.request_id
        if requested is not None:
            request.output_places = requested.spans  # what executes the request may put outputs there by itself
            if requested.classes or requested.spans:
                requested.attend(request)
        return request


def _context_of(client: Caller) -> CallContext:
    """The context of a call whose headers mean nothing but who asks."""
    context: CallContext | None = client.kept
    if context is None:
        context = client.kept = CallContext(client=client)
    return context


def trace_context(headers: Iterable[tuple[bytes | str, bytes | str]]) -> dict[str, str] | None:
    """Those of ``headers`` by their lower-case names, or None. Of HTTP, or of gRPC's metadata."""
    found = {}
    for name, value in headers:
        key = _text(name).lower()
        if key in _TRACE_HEADERS:
            found[key] = _text(value)
    return found or None


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def check_version(version: str) -> str:
    """``version`` as the core wants it.

    Raises:
        InvalidArgumentError: it is not a number, or too large a one (Triton's texts).
    """
    if version == "":
        return version
    if version.startswith("-") and version[1:].isascii() and version[1:].isdigit():
        raise InvalidArgumentError(
            f"invalid model version specified '{version}' , version should be an integral value > 0"
        )
    wrong = f"failed to get model version from specified version string '{version}'"
    if not (version.isascii() and version.isdigit() and _fits(version.lstrip("0"))):
        raise InvalidArgumentError(f"{wrong} (details: stol), version should be an integral value > 0")
    return version


def _fits(digits: str) -> bool:
    """Whether the number is none too large; Python refuses to look at one of more than 4,300 digits."""
    return len(digits) <= len(str(_MAX_VERSION)) and int(digits or "0") <= _MAX_VERSION
