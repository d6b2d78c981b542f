"""What the server does for a child process: other models' answers, questions, logs, metrics."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError, UnavailableError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.public_text import writable
from repoagent.serving.backends.python.model.context import CoreAccess
from repoagent.serving.backends.python.process.channel import Kind, Message
from repoagent.serving.backends.python.process.child_process import ChildProcess
from repoagent.serving.backends.python.process.codec import Packer, error_body, request_of, response_body, tensors_of
from repoagent.serving.backends.python.process.memory import ProtocolError
from repoagent.serving.backends.python.process.open_requests import OpenRequests
from repoagent.serving.instances.instance import as_repoagent_error
from repoagent.serving.measuring import custom_metrics as metrics
from repoagent.serving.requests.request import InferRequest, InferResponse


class BackgroundCalls:
    """Calls for one process that take a while, on threads that end when there is nothing to do."""

    def __init__(self, model_name: str, limits: Limits) -> None:
        self._model_name = model_name
        self._most_threads: Final = limits.python_threads
        self._most_waiting: Final = limits.python_calls
        self._lock: Final = threading.Lock()
        self._threads = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def run(self, call: Callable[[], None]) -> None:
        """Have ``call``, which raises nothing, called on some thread, perhaps later. ``UnavailableError`` if too many
        wait, or the machine has no thread left."""
        with self._lock:
            if self._threads >= self._most_threads:
                self._enqueue(call)
                return
            self._threads += 1
        thread = threading.Thread(
            target=self._work, args=(call,), name=f"repoagent-{self._model_name}-calls", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            with self._lock:
                self._threads -= 1
            raise UnavailableError(f"the server has no thread for what model '{self._model_name}' asks") from error

    def forget(self) -> None:
        """Begin nothing of what waits: there is no one left to answer."""
        with self._lock:
            self._waiting.clear()

    def _enqueue(self, call: Callable[[], None]) -> None:
        if len(self._waiting) >= self._most_waiting:
            raise UnavailableError(
                f"a process of model '{self._model_name}' waits for {self._most_waiting} loads, unloads and answers "
                f"about models already ({Limits.flag('python_calls')})"
            )
        self._waiting.append(call)

    def _work(self, call: Callable[[], None]) -> None:
        following: Callable[[], None] | None = call
        while following is not None:
            following()
            with self._lock:
                following = self._waiting.popleft() if self._waiting else None
                self._threads -= following is None


_models: Final = logging.getLogger("repoagent.models")
_LONGEST_NAME: Final = 200
_LONGEST_PATH: Final = 4096
_LONGEST_TEXT: Final = 1 << 16
_MOST_LINES: Final = 1 << 31


def log_record(model_name: str, body: Any) -> None:
    """Log what the process sends; raises ``ProtocolError`` if it is not a log record.

    All goes to the logger of models: a logger is kept for good, and another one would write as someone else.
    """
    try:
        name, level, path, line, text = body
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"a log record cannot be read: {error}") from error
    if not (
        all(type(number) is int for number in (level, line)) and all(type(one) is str for one in (name, path, text))
    ):
        raise ProtocolError("a log record is made of two numbers and three texts")
    level = max(logging.NOTSET, min(level, logging.CRITICAL))  # Each level that is asked for is kept, too.
    if not _models.isEnabledFor(level):
        return
    text = _plain(text, _LONGEST_TEXT)
    if name != _models.name:
        if not logging.getLogger().isEnabledFor(level):
            return
        name = f"{_models.name}.{_plain(name, _LONGEST_NAME)}"
        text = f"model '{model_name}', {name.removeprefix(_models.name + '.')}: {text}"
    line = max(0, min(line, _MOST_LINES))
    _models.handle(_models.makeRecord(name, level, _plain(path, _LONGEST_PATH), line, "%s", (text,), None))


def _plain(text: str, longest: int) -> str:
    """``text`` as any log file can hold it."""
    cut = text if len(text) <= longest else f"{text[:longest]} ..."
    return writable(cut)


class Services:
    """Serves one child process, on the thread that supervises it. Nothing here waits for anybody, but for an ensemble
    that holds a decoupled model back: then the child waits, too."""

    def __init__(
        self, core: CoreAccess, requests: OpenRequests, model_name: str, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._core = core
        self._requests = requests
        self._model_name = model_name
        self._most_calls = limits.python_calls
        self._calls: dict[int, InferRequest] = {}
        self._calls_in_background = BackgroundCalls(model_name, limits)
        self._metrics = ReportedMetrics(limits)

    def handle(self, child: ChildProcess, message: Message) -> None:
        """Do what ``message`` asks for; raises ``ProtocolError`` if it makes no sense."""
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
                self._requests.answer_ready(number, bool(ready), str(text))
            elif kind == Kind.RETURNED:
                self._requests.take_back(body)
            elif kind == Kind.LOG:
                log_record(self._model_name, body)
            elif kind == Kind.METRIC:
                number, operation, value = body
                _REPORTS[operation](self._metrics.metric(number), value)
            elif kind != Kind.RELEASE:
                raise ProtocolError(f"there is no message of kind {kind}")
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise ProtocolError(f"a message of kind {kind} cannot be understood: {error}") from error

    def abandon(self) -> None:
        """The child has gone: give up what was being done for it."""
        for request in list(self._calls.values()):
            request.cancel()
        self._calls.clear()
        self._calls_in_background.forget()
        self._metrics.release()

    def _call(self, child: ChildProcess, message: Message) -> None:
        number, asked, placeholder = request_of(message.body, message.payload)
        if type(number) is not int or number in self._calls:
            raise ProtocolError("a request to another model has no number of its own")
        request = InferRequest(asked, placeholder=placeholder)
        sender = CallSender(child.send, number, request, lambda: self._calls.pop(number, None))
        request.redirect(sender)
        try:
            self._admit(number, request)
            self._core.submit(request)
        except Exception as error:
            failure = InferResponse(request.model_name, "", error=as_repoagent_error(error, self._model_name))
            sender.send(failure, True)

    def _admit(self, number: int, request: InferRequest) -> None:
        if len(self._calls) >= self._most_calls:
            raise UnavailableError(
                f"a process of model '{self._model_name}' waits for {self._most_calls} answers of other models "
                f"already ({Limits.flag('python_calls')})"
            )
        self._calls[number] = request

    def _cancel(self, number: int) -> None:
        request = self._calls.get(number)
        if request is not None:
            request.cancel()

    def _ask(self, child: ChildProcess, message: Message) -> None:
        number, question, arguments = message.body
        if question not in ("load", "unload", "model_ready"):
            self._answer(child, number, lambda: self._quick(question, arguments))
            return
        # These may take as long as they like: also a question may ask the code of a model.
        work: Callable[[], Any]
        if question == "load":
            work = self._load(message)
        elif question == "unload":
            name, dependents, wait = arguments
            work = partial(self._core.unload, name, unload_dependents=bool(dependents), wait=bool(wait))
        else:
            work = partial(self._core.model_ready, *arguments)
        try:
            self._calls_in_background.run(partial(self._answer, child, number, work))
        except UnavailableError as error:
            child.send(Kind.ANSWER, [number, None, error_body(error)])

    def _load(self, message: Message) -> Callable[[], None]:
        name, config, tensors = message.body[2]
        found = None if tensors is None else tensors_of(tensors, message.payload)

        def load() -> None:
            files = None if found is None else {path: tensor.array.tobytes() for path, tensor in found.items()}
            self._core.load(name, config=config, files=files)

        return load

    def _answer(self, child: ChildProcess, number: int, work: Callable[[], Any]) -> None:
        try:
            answer = [number, work(), None]
        except Exception as error:
            answer = [number, None, error_body(as_repoagent_error(error, self._model_name))]
        try:
            child.send(Kind.ANSWER, answer)
        except OSError as error:  # It is long, and the process holds all the memory that it may.
            child.send(Kind.ANSWER, [number, None, error_body(InternalError(f"the answer cannot be sent: {error}"))])

    def _quick(self, question: str, arguments: list[Any]) -> Any:
        if question == "heard":
            return None  # Everything before it has been.
        if question == "cancelled":
            return self._requests.is_cancelled(arguments[0])
        if question == "cancel":
            return self._cancel(arguments[0])
        if question == "metric_family":
            name, description, kind = arguments
            return self._metrics.family(name, description, metrics.MetricKind(kind))
        if question == "metric":
            family, labels, buckets = arguments
            return self._metrics.series(family, labels, buckets)
        if question == "metric_value":
            return self._metrics.metric(arguments[0]).value
        raise InternalError(f"there is no question '{question}'")


_REPORTS: Final[dict[str, Callable[[metrics.Metric, float], None]]] = {
    "increment": metrics.Metric.increment,
    "set": metrics.Metric.set,
    "observe": metrics.Metric.observe,
}


class CallSender:
    """Sends the answers to a request that another process made back to that process."""

    def __init__(
        self, send: Callable[..., object], number: int, request: InferRequest, done: Callable[[], object]
    ) -> None:
        """``send``: as :meth:`ChildProcess.send`, to who asks."""
        self._send = send
        self._number = number
        self._request = request
        self._done = done

    def send(self, response: InferResponse | None, final: bool) -> None:
        if final:
            self._done()
        packer = Packer()
        try:
            self._send(Kind.CALL_RESPONSE, response_body(self._number, response, final, packer), packer)
        except (RepoAgentError, OSError) as error:
            failure = InternalError(f"the answer of model '{self._request.model_name}' cannot be handed over: {error}")
            body = response_body(self._number, InferResponse("", "", error=failure), final, Packer())
            self._send(Kind.CALL_RESPONSE, body)


_LONGEST_LABELS: Final = 8192
"""Characters of a family's name and description, or of the labels of a series."""


class ReportedMetrics:
    """Families and series under numbers that the process refers to. For one thread."""

    def __init__(self, limits: Limits) -> None:
        self._most: Final = limits.python_series
        self._count = 0
        self._families: list[metrics.MetricFamily] = []
        self._family_numbers: dict[metrics.MetricFamily, int] = {}
        self._series: list[tuple[metrics.MetricFamily, metrics.Metric]] = []
        self._series_numbers: dict[metrics.Metric, int] = {}

    def family(self, name: str, description: str, kind: metrics.MetricKind) -> int:
        """The number of that family; raises if there cannot be such a family, or not a further one."""
        _check_length(name, description)
        family = metrics.REGISTRY.family(name, description, kind)
        if family in self._family_numbers:
            metrics.REGISTRY.release(family)
        else:
            self._add(1, lambda: metrics.REGISTRY.release(family))
            self._family_numbers[family] = len(self._families)
            self._families.append(family)
        return self._family_numbers[family]

    def series(self, family_number: int, labels: Mapping[str, str], buckets: Sequence[float]) -> int:
        """The number of the series of these labels. Raises as :meth:`family` does."""
        family = self._families[family_number]
        _check_length(*labels, *labels.values())
        if len(buckets) > self._most:
            raise self._too_many()
        metric = family.add(labels, buckets)
        if metric in self._series_numbers:
            family.remove(metric)
        else:
            self._add(1 + len(buckets), lambda: family.remove(metric))
            self._series_numbers[metric] = len(self._series)
            self._series.append((family, metric))
        return self._series_numbers[metric]

    def metric(self, number: int) -> metrics.Metric:
        """The series of that number; raises a LookupError or TypeError."""
        return self._series[number][1]

    def release(self) -> None:
        """The process has gone: no calls need answers."""
        for family, metric in self._series:
            family.remove(metric)
        for family in self._families:
            metrics.REGISTRY.release(family)
        for kept in (self._families, self._family_numbers, self._series, self._series_numbers):
            kept.clear()
        self._count = 0

    def _add(self, weight: int, undo: Callable[[], None]) -> None:
        if self._count + weight > self._most:
            undo()
            raise self._too_many()
        self._count += weight

    def _too_many(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"a process of a model reports to at most {self._most} metrics: families, series, and buckets of "
            f"histograms ({Limits.flag('python_series')})"
        )


def _check_length(*texts: object) -> None:
    """Whether they are text at all is for others to find."""
    length = sum(len(text) for text in texts if isinstance(text, str))
    if length > _LONGEST_LABELS:
        raise InvalidArgumentError(
            f"the name and description of a metric, and its labels, may have {_LONGEST_LABELS} characters together, "
            f"not {length}"
        )
