"""A child process: one instance of a Python model, which does what the server says until that goes away."""

import ctypes
import faulthandler
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections import abc
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from repoagent.errors import InternalError, RepoAgentError
from repoagent.serving.backends.python.model.context import ModelContext
from repoagent.serving.backends.python.model.instance import PythonInstance
from repoagent.serving.backends.python.model.metrics import MetricFamily
from repoagent.serving.backends.python.model.model_start import completed, started
from repoagent.serving.backends.python.process.channel import Channel, Kind, Message, PeerGoneError
from repoagent.serving.backends.python.process.codec import Packer, error_body, request_of, response_body
from repoagent.serving.backends.python.process.executions import Batch, Executions, Response
from repoagent.serving.backends.python.process.memory import Allowance, Arena, Mapping, Memory
from repoagent.serving.backends.python.process.packets import encoded
from repoagent.serving.backends.python.process.remote import RemoteCore, RemoteRequest, Stream
from repoagent.serving.measuring import custom_metrics as metrics
from repoagent.serving.measuring.custom_metrics import MetricKind
from repoagent.serving.requests.request import InferResponse

__all__ = ["RemoteRegistry", "main"]


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
        self._core.tell_metric(self._number, "increment", float(amount))

    def set(self, value: float) -> None:
        super().set(value)
        self._core.tell_metric(self._number, "set", float(value))

    def observe(self, value: float) -> None:
        super().observe(value)
        self._core.tell_metric(self._number, "observe", float(value))


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


_PR_SET_PDEATHSIG: Final = 1
_models: Final = logging.getLogger("repoagent.models")


def main(
    work_fd: int, side_fd: int, progress_fd: int, parent: int, segments: int, shared_bytes: int, message_bytes: int
) -> int:
    """Serve the process ``parent`` over two sockets: the one for work to be done here, the other for all else.

    What has been begun of the work is noted in the file ``progress_fd``. The other numbers are what the server takes.
    """
    _end_with(parent)
    sys.argv = [""]  # As under Triton: what parses the command line for a model finds none.
    faulthandler.enable()
    # Who stops the server signals its whole group or container: its children finish what it still wants of them.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    # Copies that nothing closes: the server takes the end of a connection for the end of the process.
    for fd in (work_fd, side_fd):
        os.dup(fd)
    arena, mapping = Arena(allowance=Allowance(segments, shared_bytes)), Mapping()
    side = Channel(socket.socket(fileno=side_fd), arena, mapping, longest_sent=message_bytes)
    core = RemoteCore(side)
    core.start()
    MetricFamily.registry = RemoteRegistry(core)
    handler = _LogSender(side)
    logging.getLogger().addHandler(handler)
    work = Channel(socket.socket(fileno=work_fd), arena, mapping, longest_sent=message_bytes)
    os.register_at_fork(after_in_child=partial(_be_a_fork, (work, side), handler))
    _Child(work, side, core, progress_fd).serve()
    return 0


def _end_with(parent: int) -> None:
    """Have the kernel end this process with its parent, also while no Python code runs here."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _be_a_fork(channels: tuple[Channel, ...], handler: logging.Handler) -> None:
    """Of a model's own making (``multiprocessing``): its messages would be taken for those of the model's process."""
    for channel in channels:
        channel.forked = True
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ``Pool.terminate`` would wait for it without end.
    logging.getLogger().removeHandler(handler)  # Its lines go to standard error, and so into the server's log, too.


class _Child:
    """Does what comes over the channel ``work``, one thing after the other."""

    def __init__(self, work: Channel, side: Channel, core: RemoteCore, progress_fd: int) -> None:
        self._work = work
        self._side = side
        self._core = core
        self._stream = Stream(side, core)
        self._executions = Executions(progress_fd, self._run, self._answer, self._say_returned)
        core.when_asked_back = self._executions.give_back
        self._spin_ns = 0
        self._instance: PythonInstance | None = None
        self._decoupled = False

    def serve(self) -> None:
        actions: dict[int, Callable[[Message], None]] = {
            Kind.COMPLETE: self._complete,
            Kind.INITIALIZE: self._initialize,
            Kind.EXECUTE: self._execute,
            Kind.FINALIZE: self._finalize,
        }
        try:
            while (message := self._next()) is not None:
                try:
                    actions[message.kind](message)
                except RepoAgentError as error:
                    self._work.send(Kind.FAILED, error_body(error))
                if message.kind == Kind.FINALIZE:
                    return
                del message
        except PeerGoneError:
            pass

    def _next(self) -> Message | None:
        """The next message. Looking for it for a while before sleeping saves the time that waking up takes."""
        end = time.monotonic_ns() + self._spin_ns
        while time.monotonic_ns() < end:
            try:
                return self._work.receive(socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
        return self._work.receive()

    def _complete(self, message: Message) -> None:
        context, path, config = self._model(message.body)
        result = completed(path, context, config, alone=True)
        try:
            self._work.send(Kind.DONE, result)
        except (TypeError, ValueError) as error:
            raise InternalError(f"auto_complete_config left something in the configuration: {error}") from error

    def _initialize(self, message: Message) -> None:
        body = message.body
        context, path, _ = self._model(body)
        for name, level in body["log_levels"].items():
            logging.getLogger(name).setLevel(level)
        self._decoupled = body["decoupled"]
        self._spin_ns = body["spin_ns"]
        self._instance = started(path, context, body["arguments"], decoupled=self._decoupled, alone=True)
        self._core.when_asked = self._say_ready
        self._work.send(Kind.DONE, {"asks": self._instance.asks})

    def _say_ready(self, number: int) -> None:
        """Answer the server's question, on a thread of its own: the model may take its time."""
        threading.Thread(target=self._answer_ready, args=(number,), name="repoagent-is-ready", daemon=True).start()

    def _answer_ready(self, number: int) -> None:
        assert self._instance is not None
        try:
            answer = self._instance.is_ready()
            text = (
                ""
                if isinstance(answer, bool)
                else f"TypeError: is_ready must return a bool, not {type(answer).__name__}"
            )
            body = [number, answer is True, text]
        except BaseException as error:
            body = [number, False, f"{type(error).__name__}: {error}"]
        self._side.send(Kind.READY, body)

    def _model(self, body: dict[str, Any]) -> tuple[ModelContext, Path, str]:
        directory = Path(body["model_dir"])
        context = ModelContext(body["model_name"], body["model_version"], directory, self._core)
        return context, directory / body["file"], body.get("config", "")

    def _execute(self, message: Message) -> None:
        level, executions = message.body
        if _models.level != level:
            _models.setLevel(level)
        self._executions.perform(executions, message.payload)

    def _run(self, bodies: list[Any], payload: Memory) -> list[Response]:
        """One execution of the requests of ``bodies``."""
        assert self._instance is not None
        batch = Batch(self._stream.send)
        respond = self._stream.send if self._decoupled else batch.send
        requests = [RemoteRequest(self._core, respond, *request_of(body, payload)) for body in bodies]
        self._instance.execute(requests)
        return batch.close()

    def _answer(self, responses: list[Response], times: list[list[int]], last: bool) -> None:
        """With the number of messages that were sent on the other channel before."""
        while True:
            packer = Packer()
            try:
                bodies = [_body(*response, packer) for response in responses]
                self._work.send(Kind.DONE, [self._side.sent, bodies, times, last], packer)
                return
            except (OSError, TypeError, ValueError) as error:  # Such as a parameter with too many digits.
                responses = _with_failure(responses, error)

    def _say_returned(self, numbers: list[int]) -> None:
        self._side.send(Kind.RETURNED, numbers)

    def _finalize(self, _: Message) -> None:
        if self._instance is not None:
            self._instance.close()
        self._work.send(Kind.DONE)


def _body(number: int, response: InferResponse | None, final: int, packer: Packer) -> list[Any]:
    try:
        return response_body(number, response, final, packer)
    except RepoAgentError as error:
        return response_body(number, InferResponse("", "", error=error), final, packer)


def _with_failure(responses: list[Response], error: Exception) -> list[Response]:
    """``responses``, which could not be sent because of ``error``, with a failure in the place of what was the reason:
    those that cannot be written, else the largest."""
    weights = [_weight(response) for response in responses]
    worst = max(weights, default=0)
    if not worst:
        raise error
    failed = InferResponse("", "", error=InternalError(f"the outputs cannot be handed over: {error}"))
    return [
        (response[0], failed, response[2]) if weight == worst else response
        for response, weight in zip(responses, weights, strict=True)
    ]


def _weight(response: Response) -> float:
    """The bytes that ``response`` takes; nothing if there can be no less of it."""
    if response[1] is None or response[1].error is not None:
        return 0
    packer = Packer()
    try:
        return len(encoded(_body(*response, packer))) + packer.size
    except (TypeError, ValueError):
        return math.inf


class _LogSender(logging.Handler):
    """Hands log records to the server, whose log they appear in."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + self._formatter.formatException(record.exc_info)
            self._channel.send(Kind.LOG, [record.name, record.levelno, record.pathname, record.lineno, text])
        except Exception:  # A line that cannot be logged is not the end of what logs it, as everywhere in logging.
            self.handleError(record)
