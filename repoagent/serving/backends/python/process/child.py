"""A child process: one instance of a Python model, which does what the server asks until that goes away."""

import faulthandler
import logging
import math
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from repoagent.errors import InternalError, RepoAgentError
from repoagent.programs import end_with_parent
from repoagent.serving.backends.python.model.context import ModelContext
from repoagent.serving.backends.python.model.instance import PythonInstance, completed, started
from repoagent.serving.backends.python.model.utils import MetricFamily
from repoagent.serving.backends.python.process.channel import Channel, Kind, Message, PeerGoneError, encoded
from repoagent.serving.backends.python.process.codec import Packer, error_body, request_of, response_body
from repoagent.serving.backends.python.process.memory import Allowance, Arena, Mapping, Memory
from repoagent.serving.backends.python.process.remote import (
    RemoteCore,
    RemoteRegistry,
    RemoteRequest,
    Respond,
    Response,
)
from repoagent.serving.requests.request import InferResponse

_NUMBER: Final = struct.Struct("Q")
"""In the machine's own order: so it is written in one step."""
_KEEP_NS: Final = 1_000_000
"""How long an answer may wait for those of the next executions."""
_KEEP_BYTES: Final = 256 << 10
_models: Final = logging.getLogger("repoagent.models")


def main(
    work_fd: int, side_fd: int, progress_fd: int, parent: int, segments: int, shared_bytes: int, message_bytes: int
) -> int:
    """Serve the process ``parent`` over two sockets: the one for work to be done here, the other for all else.

    What has been begun of the work is noted in the file ``progress_fd``. The other numbers are what the server takes.
    """
    end_with_parent(parent)
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
    os.register_at_fork(after_in_child=partial(_mark_as_fork, (work, side), handler))
    _Child(work, side, core, progress_fd).serve()
    return 0


def _mark_as_fork(channels: tuple[Channel, ...], handler: logging.Handler) -> None:
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
        self._executions = Executions(progress_fd, self._run, self._answer, partial(side.send, Kind.RETURNED))
        core.on_return = self._executions.give_back
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
        self._core.on_ready_question = self._start_ready_check
        self._work.send(Kind.DONE, {"asks": self._instance.asks})

    def _start_ready_check(self, number: int) -> None:
        """Answer the server's question, on a thread of its own: the model may take its time."""
        threading.Thread(target=self._answer_ready, args=(number,), name="repoagent-is-ready", daemon=True).start()

    def _answer_ready(self, number: int) -> None:
        assert self._instance is not None
        try:
            body = [number, self._instance.is_ready(), ""]
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
        batch = Batch(self._core.respond)
        respond = self._core.respond if self._decoupled else batch.send
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


class Batch:
    """The responses that go back when ``execute`` has returned; ``late`` sends those that come after that."""

    __slots__ = ("_late", "_lock", "_responses")

    def __init__(self, late: Respond) -> None:
        self._late = late
        self._lock = threading.Lock()
        self._responses: list[Response] | None = []

    def send(self, number: int, response: InferResponse | None, final: int) -> None:
        """Take one."""
        with self._lock:
            if self._responses is not None:
                self._responses.append((number, response, final))
                return
        self._late(number, response, final)

    def close(self) -> list[Response]:
        """What there is; whatever comes now is late."""
        with self._lock:
            responses, self._responses = self._responses, None
        return responses or []


class Executions:
    """What the server has sent at once. ``run`` executes one of them, ``returned`` sends the numbers of requests that
    are not going to be executed. ``answer`` sends responses, numbers and moments of executions, whether all have ended.

    The first begins at once; the others can be given back until they begin. With several, each is noted in the file
    ``progress_fd`` before it begins: if this process ends meanwhile, the server knows which ones another one may do.
    """

    def __init__(
        self,
        progress_fd: int,
        run: Callable[[list[Any], Any], list[Response]],
        answer: Callable[[list[Response], list[list[int]], bool], None],
        returned: Callable[[list[int]], None],
    ) -> None:
        self._progress = mmap.mmap(progress_fd, _NUMBER.size)
        self._run = run
        self._answer = answer
        self._returned = returned
        self._waiting: deque[list[Any]] = deque()
        self._wanted_back = 0
        """The last request that the server has asked back; it may not have arrived yet."""
        self._lock = threading.Lock()
        """Held while answers are sent, and what goes back: the answers that end a message must be the last ones."""
        self._ready: list[Response] = []
        self._times: list[list[int]] = []
        self._size = 0

    def perform(self, executions: list[list[Any]], payload: Any) -> None:
        """Do all, except what is given back meanwhile, and answer what is ready about every millisecond."""
        several = len(executions) > 1
        self._waiting.extend(executions[1:])
        if several and executions[-1][0][0] <= self._wanted_back:
            self._give_back()
        bodies: list[Any] | None = executions[0]
        while bodies is not None:
            number = bodies[0][0]
            if several:
                _NUMBER.pack_into(self._progress, 0, number)
            begin = time.monotonic_ns()
            responses = self._run(bodies, payload)
            end = time.monotonic_ns()
            with self._lock:
                self._ready += responses
                self._times.append([number, begin, end])
                if self._waiting:
                    self._size += _size(responses)
                    if end - self._times[0][1] > _KEEP_NS or self._size > _KEEP_BYTES:
                        self._send(last=False)
            bodies = self._next()
        with self._lock:
            self._send(last=True)

    def _next(self) -> list[Any] | None:
        try:
            return self._waiting.popleft()
        except IndexError:  # Also if it was given back just now.
            return None

    def _send(self, *, last: bool) -> None:
        """Answer what is ready. Holds the lock."""
        responses, times = self._ready, self._times
        self._ready, self._times, self._size = [], [], 0
        self._answer(responses, times, last)

    def give_back(self, last: int) -> None:
        """Begin nothing more up to request ``last``, also of what arrives later: the server asks on another channel
        than it sends executions on. Answers what is ready, too. On any thread.

        The server asks for it when an execution takes long.
        """
        self._wanted_back = last  # Before looking: what arrives meanwhile is compared with it.
        self._give_back()

    def _give_back(self) -> None:
        with self._lock:
            numbers = self._withdraw()
            if self._times:
                self._send(last=False)
            if numbers:
                self._returned(numbers)

    def _withdraw(self) -> list[int]:
        """The numbers of what waits and is wanted back, in order; none of it waits any more. Holds the lock."""
        numbers: list[int] = []
        try:
            while self._waiting[-1][0][0] <= self._wanted_back:
                numbers += [body[0] for body in self._waiting.pop()]
        except IndexError:  # There is nothing left, also if it has begun just now.
            pass
        return numbers[::-1]


def _size(responses: list[Response]) -> int:
    return sum(
        tensor.array.nbytes
        for _, response, _ in responses
        if response is not None
        for tensor in response.outputs.values()
    )


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
