"""What the server does for a child process: other models' answers, questions, logs, metrics."""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from repoagent.errors import InternalError, RepoAgentError
from repoagent.serving.backends.python.model.context import CoreAccess
from repoagent.serving.backends.python.process.channel import Kind, Message
from repoagent.serving.backends.python.process.child_process import ChildProcess
from repoagent.serving.backends.python.process.codec import Packer, error_body, request_of, response_body, tensors_of
from repoagent.serving.backends.python.process.memory import ProtocolError
from repoagent.serving.instances.base import as_repoagent_error
from repoagent.serving.measuring import custom_metrics as metrics
from repoagent.serving.requests.request import InferRequest, InferResponse

__all__ = ["Requests", "Services"]


class Requests(Protocol):
    """The requests that a child is working on."""

    def respond(self, body: list[Any], message: Message) -> None:
        """Pass a response of a decoupled model on."""

    def is_cancelled(self, number: int) -> bool: ...

    def take_back(self, numbers: list[int]) -> None:
        """The child has not begun these, and is not going to."""

    def heard_ready(self, number: int, ready: bool, error: str) -> None:
        """The answer to the question ``number`` whether the model is ready; ``error``: what its code raised."""


class Services:
    """Serves one child process, on the thread that supervises it. Nothing here waits for anybody, but for an ensemble
    that holds a decoupled model back: then the child waits, too."""

    def __init__(self, core: CoreAccess, requests: Requests, model_name: str) -> None:
        self._core = core
        self._requests = requests
        self._model_name = model_name
        self._calls: dict[int, InferRequest] = {}
        self._families: list[metrics.MetricFamily] = []
        self._metrics: list[metrics.Metric] = []

    def handle(self, child: ChildProcess, message: Message) -> None:
        """Do what ``message`` says.

        Raises:
            ProtocolError: it makes no sense.
        """
        kind, body = message.kind, message.body
        try:
            if kind == Kind.RESPONSE:
                self._requests.respond(body, message)
            elif kind == Kind.CALL:
                self._call(child, message)
            elif kind == Kind.ASK:
                self._ask(child, message)
            elif kind == Kind.READY:
                number, ready, text = body
                self._requests.heard_ready(number, bool(ready), str(text))
            elif kind == Kind.RETURNED:
                self._requests.take_back(body)
            elif kind == Kind.LOG:
                _log(*body)
            elif kind == Kind.METRIC:
                number, operation, value = body
                _REPORTS[operation](self._metrics[number], value)
            elif kind != Kind.RELEASE:
                raise ProtocolError(f"there is no message of kind {kind}")
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise ProtocolError(f"a message of kind {kind} cannot be understood: {error}") from error

    def abandon(self) -> None:
        """The child has gone: give up what was being done for it."""
        for request in list(self._calls.values()):
            request.cancel()
        self._calls.clear()
        self._families.clear()
        self._metrics.clear()

    def _call(self, child: ChildProcess, message: Message) -> None:
        number, request = request_of(message.body, message.payload)
        self._calls[number] = request
        request.redirect(_CallSender(child, number, request, lambda: self._calls.pop(number, None)))
        try:
            self._core.submit(request)
        except Exception as error:
            failure = InferResponse(request.model_name, "", error=as_repoagent_error(error, self._model_name))
            _CallSender(child, number, request, lambda: self._calls.pop(number, None)).send(failure, True)

    def _cancel(self, number: int) -> None:
        request = self._calls.get(number)
        if request is not None:
            request.cancel()

    def _ask(self, child: ChildProcess, message: Message) -> None:
        number, question, arguments = message.body
        if question == "model_ready":
            # It may ask the code of a model, which may take its time.
            name = f"repoagent-{self._model_name}-{question}"
            ask = partial(self._answer, child, number, lambda: self._core.model_ready(*arguments))
            threading.Thread(target=ask, name=name, daemon=True).start()
        elif question in ("load", "unload"):
            # These may take as long as they like.
            work = (
                self._load(message)
                if question == "load"
                else lambda: self._core.unload(
                    arguments[0], unload_dependents=bool(arguments[1]), wait=bool(arguments[2])
                )
            )
            name = f"repoagent-{self._model_name}-{question}"
            threading.Thread(target=self._answer, args=(child, number, work), name=name, daemon=True).start()
        else:
            self._answer(child, number, lambda: self._quick(question, arguments))

    def _load(self, message: Message) -> Callable[[], None]:
        name, config, tensors = message.body[2]
        found = None if tensors is None else tensors_of(tensors, message.payload)
        files = None if found is None else {path: tensor.array.tobytes() for path, tensor in found.items()}

        def load() -> None:
            self._core.load(name, config=config, files=files)

        return load

    def _answer(self, child: ChildProcess, number: int, work: Callable[[], Any]) -> None:
        try:
            answer = [number, work(), None]
        except Exception as error:
            answer = [number, None, error_body(as_repoagent_error(error, self._model_name))]
        child.tell(Kind.ANSWER, answer)

    def _quick(self, question: str, arguments: list[Any]) -> Any:
        if question == "heard":
            return None  # Everything before it has been.
        if question == "cancelled":
            return self._requests.is_cancelled(arguments[0])
        if question == "cancel":
            return self._cancel(arguments[0])
        if question == "metric_family":
            name, description, kind = arguments
            self._families.append(metrics.REGISTRY.family(name, description, metrics.MetricKind(kind)))
            return len(self._families) - 1
        if question == "metric":
            family, labels, buckets = arguments
            self._metrics.append(self._families[family].add(labels, buckets))
            return len(self._metrics) - 1
        if question == "metric_value":
            return self._metrics[arguments[0]].value
        raise InternalError(f"there is no question '{question}'")


_REPORTS: Final[dict[str, Callable[[metrics.Metric, float], None]]] = {
    "increment": metrics.Metric.increment,
    "set": metrics.Metric.set,
    "observe": metrics.Metric.observe,
}


class _CallSender:
    """Sends the answers to a request that a model made of another one back to the model's process."""

    def __init__(self, child: ChildProcess, number: int, request: InferRequest, done: Callable[[], object]) -> None:
        self._child = child
        self._number = number
        self._request = request
        self._done = done

    def send(self, response: InferResponse | None, final: bool) -> None:
        if final:
            self._done()
        packer = Packer()
        try:
            self._child.tell(Kind.CALL_RESPONSE, response_body(self._number, response, final, packer), packer)
        except (RepoAgentError, OSError) as error:
            failure = InternalError(f"the answer of model '{self._request.model_name}' cannot be handed over: {error}")
            body = response_body(self._number, InferResponse("", "", error=failure), final, Packer())
            self._child.tell(Kind.CALL_RESPONSE, body)


def _log(name: str, level: int, path: str, line: int, text: str) -> None:
    logger = logging.getLogger(name)
    if logger.isEnabledFor(level):
        logger.handle(logger.makeRecord(name, level, path, line, "%s", (text,), None))
