"""The socket to one other worker, and the requests that cross it.

The messages are those of Python models' processes: CALL and CALL_RESPONSE, and ASK whether a model is ready, or that a
request ends, or gives way while its client does not read.
"""

import itertools
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from repoagent.audit import Actor
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnavailableError
from repoagent.limits import Limits
from repoagent.serving.backends.python.process.channel import (
    DONT_WAIT,
    Kind,
    LongMessageError,
    Message,
    PeerGoneError,
)
from repoagent.serving.backends.python.process.codec import (
    Packer,
    error_body,
    error_of,
    request_body,
    request_of,
    response_of,
)
from repoagent.serving.backends.python.process.memory import Allowance, Arena, Mapping, ProtocolError
from repoagent.serving.backends.python.process.server_channel import ServerChannel
from repoagent.serving.backends.python.process.services import BackgroundCalls, CallSender
from repoagent.serving.ensembles.step_request import StepRequest
from repoagent.serving.instances.instance import as_repoagent_error
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.senders import answer_error
from repoagent.serving.versions.served_model import RetiredError, ServedModel

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 16
"""Messages of one worker that are handled before others, and clients, are heard."""
_FOR_THREAD: Final = 64
"""Messages that the thread reads after one that an event loop should not: those that follow are like it."""
_MOST_CALLS: Final = 1 << 16
"""Requests of one other worker without an answer."""
_NUMBERS: Final = 1 << 64
_READY_SECONDS: Final = 30.0

Find = Callable[[int], ServedModel | None]


class Rights(NamedTuple):
    """How a home finds out that a client has the rights which the worker that passes its request on has checked."""

    credential: Callable[[Actor | None], Any] = lambda _: None
    """What is passed on with a request of that client: a plain value."""
    judge: Callable[[Any, str], Actor | None] = lambda _credential, _model: None
    """Whose request it is that came with this; raises RepoAgentError unless a model may execute it."""


class Link:
    """The socket to one other worker: requests for the models whose home is there, and its requests for those here."""

    def __init__(
        self, worker: int, sock: socket.socket, find: Find, wake: Callable[[], None], limits: Limits, rights: Rights
    ) -> None:
        allowance = Allowance.of(limits)
        self.worker: Final = worker
        self.fault = ""
        """Why it cannot be used any more, though the other worker may well live."""
        self.fd: Final = sock.fileno()
        self.lent: LoopReader | None = None
        """The event loop that reads the socket; None: the thread of all links does."""
        self.watched: int | None = None
        """What that loop watches."""
        self.for_thread = 0
        """How many messages the thread reads before a loop may again."""
        self._arena = Arena(allowance=allowance.with_margin())
        self._mapping = Mapping(allowance)
        self._channel = ServerChannel(
            sock,
            self._arena,
            self._mapping,
            longest_received=limits.python_message_bytes,
            most_unread=limits.python_unread_bytes,
            on_backlog=wake,
            on_overflow=self._overflow,
        )
        self._find = find
        self._rights = rights
        self._numbers: Final = itertools.count(1)
        self._open: dict[int, InferRequest] = {}
        """Requests that are there."""
        self._calls: dict[int, InferRequest] = {}
        """Those of the other worker, which are here."""
        self._questions: dict[int, Future[bool]] = {}
        self._in_background = BackgroundCalls(f"of worker {worker}", limits)
        self._late: dict[int, SimpleQueue[Callable[[], None] | None]] = {}
        self._ended = False

    @property
    def backlogged(self) -> bool:
        """Whether there is something that the other side did not take."""
        return self._channel.backlogged

    # -- requests that are passed on -----------------------------------------------------------------------------

    def submit(self, handed: int, request: InferRequest) -> None:
        """Pass ``request`` on to the version ``handed``. Never raises."""
        number, packer = next(self._numbers), Packer()
        try:
            body = [handed, self._rights.credential(request.asker), *request_body(number, request, packer)]
            self._open[number] = request
            request.on_cancel = partial(self._cancel, number)
            request.on_behind = partial(self._fall_behind, number)
            self._channel.send(Kind.CALL, body, packer)
        except PeerGoneError:
            self._fail(number, self._gone(request))
        except (OSError, TypeError, ValueError, RepoAgentError) as error:
            failure = error if isinstance(error, RepoAgentError) else UnavailableError(f"it cannot be sent: {error}")
            self._open[number] = request
            self._fail(number, failure)
        else:
            if request.cancelled:
                self._cancel(number)
            if request.behind:
                self._fall_behind(number, True)
            if self._ended:
                self._fail(number, self._gone(request))

    def ready(self, handed: int) -> bool:
        """Whether the version ``handed`` is ready there. Takes its time."""
        number = next(self._numbers)
        answer = self._questions[number] = Future[bool]()
        try:
            self.send(Kind.ASK, [number, "ready", handed])
            return not self._ended and answer.result(_READY_SECONDS)
        except TimeoutError:
            return False
        finally:
            self._questions.pop(number, None)

    def _cancel(self, number: int) -> None:
        if number in self._open:
            self.send(Kind.ASK, [number, "cancel", number])

    def _fall_behind(self, number: int, behind: bool) -> None:
        if number in self._open:
            self.send(Kind.ASK, [number, "hold" if behind else "go on", number])

    def _fail(self, number: int, error: RepoAgentError) -> None:
        request = self._open.pop(number, None)
        if request is not None:
            request.on_cancel = request.on_behind = None
            self._deliver_late(number, partial(answer_error, request, error), last=True)

    def _gone(self, request: InferRequest) -> RepoAgentError:
        return UnavailableError(f"the process that has model '{request.model_name}' has ended; another one loads it")

    def _answered(self, message: Message) -> None:
        number, response, final = response_of(message.body, message.payload)
        request = self._open.pop(number, None) if final else self._open.get(number)
        if request is None:
            return
        if response is not None:
            response.id = request.asked.id
        if final:
            request.on_cancel = request.on_behind = None
        if isinstance(request, StepRequest):  # An ensemble may hold who answers back until other answers come.
            self._deliver_late(number, partial(request.send, response, bool(final)), last=bool(final))
        else:
            request.send(response, bool(final))

    def _deliver_late(self, number: int, call: Callable[[], None], *, last: bool) -> None:
        """Have ``call`` called on a thread that a request has for itself, unless all its answers have come."""
        queue = self._late.pop(number, None) if last else self._late.get(number)
        if queue is None and last:
            call()
            return
        if queue is None:
            queue = self._late[number] = SimpleQueue()
            threading.Thread(target=_call_each, args=(queue,), name="repoagent-held-back", daemon=True).start()
        queue.put(call)
        if last:
            queue.put(None)

    # -- requests of the other worker ----------------------------------------------------------------------------

    def send(self, kind: Kind, body: Any, payload: Packer | None = None) -> None:
        """Send something, without waiting. Nothing is sent to a worker that has gone.

        Raises:
            OSError: ``payload`` cannot be handed over.
        """
        with suppress(PeerGoneError):
            self._channel.send(kind, body, payload)

    def _call(self, message: Message) -> None:
        handed, credential, *body = message.body
        number, asked, placeholder = request_of(body, message.payload)
        if type(number) is not int or number in self._calls:
            raise ProtocolError("a request has no number of its own")
        request = InferRequest(asked, placeholder=placeholder)
        sender = CallSender(self.send, number, request, partial(self._calls.pop, number, None))
        request.redirect(sender)
        try:
            if not _has_types(asked):  # Schedulers compare and keep them.
                raise InvalidArgumentError("a request has fields of other types")
            if len(self._calls) >= _MOST_CALLS:
                raise UnavailableError(f"{_MOST_CALLS} requests of another process wait already")
            self._calls[number] = request
            served = self._version(handed)
            request.asker = self._rights.judge(credential, served.name)
            served.submit(request)
        except Exception as error:
            failure: RepoAgentError = as_repoagent_error(error, asked.model_name)
            if isinstance(error, RetiredError):
                failure = UnavailableError(f"model '{asked.model_name}' is being unloaded")
            sender.send(InferResponse(asked.model_name, asked.model_version, error=failure), True)

    def _version(self, handed: Any) -> ServedModel:
        served = self._find(handed)
        if served is None:
            raise UnavailableError("the process that has the model is loading it again")
        return served

    def _ask(self, message: Message) -> None:
        number, question, about = message.body
        if question in ("cancel", "hold", "go on"):
            request = self._calls.get(about)
            if request is not None and question == "cancel":
                request.cancel()
            elif request is not None:
                request.fall_behind(question == "hold")
        elif question == "ready":
            self._in_background.run(partial(self._answer_ready, number, about))
        else:
            raise ProtocolError(f"there is no question {str(question)[:64]!r}")

    def _answer_ready(self, number: int, handed: Any) -> None:
        try:
            served = self._find(handed)
            answer: list[Any] = [number, served is not None and served.ready and served.check_ready(), None]
        except Exception as error:
            answer = [number, False, error_body(as_repoagent_error(error, "model"))]
        self.send(Kind.ANSWER, answer)

    # -- the socket ----------------------------------------------------------------------------------------------

    def read(self, loop: LoopReader | None = None) -> bool:
        """Handle what has come, at most so much that the others have their turn; False if nothing more can come.

        ``loop`` is the event loop that reads, if one does. It leaves to the thread what takes a while: a long message,
        and answers of which there are more than the loop that they are for has written.
        """
        try:
            for _ in range(_AT_ONCE):
                if self.fault:
                    return False
                message = self._channel.receive(DONT_WAIT, brief=loop is not None)
                if message is None:
                    return False
                self._take(message)
                del message  # It holds memory of the other worker.
                self._channel.send_releases()
                if loop is None:
                    self.for_thread = max(self.for_thread - 1, 0)
                elif loop.overran:
                    loop.overran, self.for_thread = False, _FOR_THREAD
                    break
        except BlockingIOError:
            pass
        except LongMessageError:
            self.for_thread = _FOR_THREAD
        except PeerGoneError:
            return False
        except Exception as error:  # There is no end of what can be wrong.
            self.fault = f"{type(error).__name__}: {error}"
            return False
        return True

    def _take(self, message: Message) -> None:
        if message.kind == Kind.CALL:
            self._call(message)
        elif message.kind == Kind.CALL_RESPONSE:
            self._answered(message)
        elif message.kind == Kind.ASK:
            self._ask(message)
        elif message.kind == Kind.ANSWER:
            number, ready, error = message.body
            question = self._questions.pop(int(number), None)
            if question is not None and error is not None:
                question.set_exception(error_of(error))
            elif question is not None:
                question.set_result(ready is True)
        elif message.kind != Kind.RELEASE:
            raise ProtocolError(f"there is no message of kind {message.kind}")

    def flush(self) -> None:
        """Send what the other side did not take before."""
        self._channel.flush()

    def _overflow(self) -> None:
        self.fault = f"more than {Limits.flag('python_unread_bytes')} are unread"
        self.end()

    def end(self) -> None:
        """Have it read its end."""
        self._channel.shutdown()

    def close(self) -> None:
        """The other worker has gone, or cannot be talked to: its requests end, and those that it had fail."""
        if self.fault:
            logger.error("the connection to worker %d has ended: %s", self.worker, self.fault)
        self._ended = True
        self._channel.shutdown()
        for number, request in list(self._open.items()):
            self._fail(number, self._gone(request))
        for request in list(self._calls.values()):
            request.cancel()
        for number in list(self._questions):
            if (question := self._questions.pop(number, None)) is not None:
                question.set_result(False)
        self._in_background.forget()
        self._channel.close()
        self._arena.close()
        self._mapping.close()


def _has_types(asked: Asked) -> bool:
    texts = (asked.model_name, asked.model_version, asked.id, *asked.requested_outputs)
    numbers = (asked.priority, asked.timeout_us)
    return (
        all(type(text) is str for text in texts)
        and all(type(number) is int and 0 <= number < _NUMBERS for number in numbers)
        and type(asked.correlation_id) in (int, str)
    )


def _call_each(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := queue.get()) is not None:
        call()
