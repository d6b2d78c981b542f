"""The server as code in a child process sees it: what is asked of it goes through a channel."""

import itertools
import os
import threading
from collections import abc
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final

import numpy as np

from repoagent.errors import InternalError, RepoAgentError
from repoagent.serving.backends.python.process.channel import Channel, Kind, Message
from repoagent.serving.backends.python.process.codec import (
    RESCHEDULED,
    Packer,
    error_of,
    request_body,
    response_body,
    response_of,
)
from repoagent.serving.measuring import custom_metrics as metrics
from repoagent.serving.measuring.custom_metrics import MetricKind
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor

_AHEAD_BYTES: Final = 16 << 20
_AHEAD_RESPONSES: Final = 64
"""How much a decoupled model may send before it waits for the server."""


Response = tuple[int, InferResponse | None, int]
Respond = Callable[[int, InferResponse | None, int], None]
"""Takes a response to the request of that number, and whether it is the last one."""


class RemoteCore:
    """Everything a model may ask of the server, by messages. Safe to use from any thread."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers: Final = itertools.count(1)
        self._ahead = 0
        self._ahead_responses = 0
        self._calls: dict[int, InferRequest] = {}
        self._questions: dict[int, SimpleQueue[list[Any]]] = {}
        self.on_ready_question: Callable[[int], None] = lambda _number: None
        """Called, and must return at once, when the server asks whether the model is ready."""
        self.on_return: Callable[[int], None] = lambda _number: None
        """Called when the requests up to that number that have not begun must not begin any more."""

    def submit(self, request: InferRequest) -> None:
        """Have the server run ``request``; the responses come to its sender, from :meth:`listen`."""
        number = next(self._numbers)
        packer = Packer()
        body = request_body(number, request, packer)
        self._calls[number] = request
        self._channel.send(Kind.CALL, body, packer)

    def cancel(self, request: InferRequest) -> None:
        for number, asked in list(self._calls.items()):
            if asked is request:
                self.ask("cancel", [number])

    def load(self, name: str, *, config: str | None = None, files: abc.Mapping[str, bytes] | None = None) -> None:
        packer = Packer()
        tensors = [packer.add(path, Tensor.of(np.frombuffer(data, np.uint8))) for path, data in (files or {}).items()]
        self.ask("load", [name, config, None if files is None else tensors], packer)

    def unload(self, name: str, *, unload_dependents: bool = False, wait: bool = True) -> None:
        self.ask("unload", [name, unload_dependents, wait])

    def model_ready(self, name: str, version: str = "") -> bool:
        return bool(self.ask("model_ready", [name, version]))

    def ask(self, question: str, arguments: list[Any], packer: Packer | None = None) -> Any:
        """The server's answer, which is raised if it is an error."""
        number = next(self._numbers)
        answer: SimpleQueue[list[Any]] = SimpleQueue()
        self._questions[number] = answer
        self._channel.send(Kind.ASK, [number, question, arguments], packer)
        value, error = answer.get()
        if error is not None:
            raise error_of(error)
        return value

    def respond(self, number: int, response: InferResponse | None, final: int) -> None:
        """Send a response at once: one of a decoupled model, or a late one."""
        packer = Packer()
        try:
            body = response_body(number, response, final, packer)
            self._throttle(packer.size)
            self._channel.send(Kind.RESPONSE, body, packer)
        except (RepoAgentError, OSError, TypeError, ValueError) as error:
            failure = InferResponse("", "", error=InternalError(f"the response cannot be sent: {error}"))
            self._channel.send(Kind.RESPONSE, response_body(number, failure, final, Packer()))

    def _throttle(self, size: int) -> None:
        """Before a response of ``size`` bytes is sent: let the server take in what it has not yet.

        Without that, a model could fill the machine's memory while the server is busy, or holds it back.
        """
        self._ahead += size
        self._ahead_responses += 1
        if self._ahead > _AHEAD_BYTES or self._ahead_responses > _AHEAD_RESPONSES:
            self._ahead, self._ahead_responses = size, 1
            self.ask("heard", [])

    def report_metric(self, number: int, operation: str, value: float) -> None:
        """Report to a metric; the server has heard of it before it hears of any later answer."""
        self._channel.send(Kind.METRIC, [number, operation, value])

    def listen(self) -> None:
        """Take in what the server sends, for good: when it has gone, this process ends, whatever it is doing."""
        while (message := self._channel.receive()) is not None:
            self._take(message)
            del message  # It may be the last one for a while, and holds memory of the server.
            self._channel.send_releases()
        os._exit(1)

    def start(self) -> None:
        threading.Thread(target=self.listen, name="repoagent-listener", daemon=True).start()

    def _take(self, message: Message) -> None:
        if message.kind == Kind.CALL_RESPONSE:
            number, response, final = response_of(message.body, message.payload)
            request = self._calls.pop(number) if final else self._calls[number]
            if response is not None:
                response.id = request.asked.id
            request.send(response, bool(final))
        elif message.kind == Kind.ANSWER:
            number, value, error = message.body
            self._questions.pop(number).put([value, error])
        elif message.kind == Kind.READY:
            self.on_ready_question(message.body)
        elif message.kind == Kind.RETURN:
            self.on_return(message.body)


class RemoteRequest(InferRequest):
    """A request that the server handed over. Whether it is cancelled, only the server knows.

    It has no sender: that would lead back to it, and keep its tensors in memory until the garbage collector comes by.
    """

    __slots__ = ("_respond", "core", "number")

    def __init__(self, core: RemoteCore, respond: Respond, number: int, asked: Asked, placeholder: bool) -> None:
        super().__init__(asked, placeholder=placeholder)
        self._respond = respond
        self.core: Final = core
        self.number: Final = number
        """What it is called in messages."""

    def send(self, response: InferResponse | None, final: bool) -> None:
        self._respond(self.number, response, RESCHEDULED if self.rescheduled else final)

    @property
    def cancelled(self) -> bool:
        return bool(self.core.ask("cancelled", [self.number]))

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        """No one sets it on this side; the constructor does."""


class _RemoteMetric(metrics.Metric):
    """A series of the server. What makes no sense for its kind is refused before it is sent."""

    def __init__(
        self, core: RemoteCore, number: int, kind: MetricKind, labels: abc.Mapping[str, str], buckets: Sequence[float]
    ) -> None:
        super().__init__(kind, labels, buckets)
        self._core = core
        self._number = number

    @property
    def value(self) -> float:
        assert super().value is not None  # Refuses kinds that have none.
        return float(self._core.ask("metric_value", [self._number]))

    def increment(self, amount: float) -> None:
        super().increment(amount)
        self._core.report_metric(self._number, "increment", float(amount))

    def set(self, value: float) -> None:
        super().set(value)
        self._core.report_metric(self._number, "set", float(value))

    def observe(self, value: float) -> None:
        super().observe(value)
        self._core.report_metric(self._number, "observe", float(value))


class _RemoteFamily(metrics.MetricFamily):
    def __init__(self, core: RemoteCore, number: int, name: str, description: str, kind: MetricKind) -> None:
        super().__init__(name, description, kind)
        self._core = core
        self._number = number

    def add(self, labels: abc.Mapping[str, str], buckets: Sequence[float] = ()) -> metrics.Metric:
        number = self._core.ask("metric", [self._number, dict(labels), list(buckets)])
        return _RemoteMetric(self._core, number, self.kind, labels, buckets)


class RemoteRegistry(metrics.MetricRegistry):
    """The families of the server's process."""

    def __init__(self, core: RemoteCore) -> None:
        super().__init__()
        self._core = core

    def family(self, name: str, description: str, kind: MetricKind) -> metrics.MetricFamily:
        number = self._core.ask("metric_family", [name, description, int(kind)])
        return _RemoteFamily(self._core, number, name, description, kind)
