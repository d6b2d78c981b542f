"""Calls in both directions over one socket between the keeper and a worker."""

import errno
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final

from repoagent.errors import InvalidArgumentError, RepoAgentError, UnavailableError, error_of
from repoagent.serving.backends.python.process.channel import Channel, Kind, Message, PeerGoneError
from repoagent.serving.backends.python.process.memory import Allowance, Arena
from repoagent.serving.backends.python.process.memory import Mapping as Memory

logger = logging.getLogger(__name__)

Answers = Mapping[str, Callable[..., Any]]

_AT_ONCE: Final = 4096
"""Calls of the other side without an answer yet. Each has a thread, as loads that hang must not block the unload that
cancels them; more are refused. It is clients who make them: their number is no fault of the process."""
_SEND_SECONDS: Final = 10
_SEND_TIMEOUT: Final = struct.pack("@ll", _SEND_SECONDS, 0)
_MESSAGE_BYTES: Final = 256 << 20
_WAITING_BYTES: Final = 4 * _MESSAGE_BYTES
"""Of the other side's long calls without an answer yet: their arguments stay in memory."""
_ERROR_CHARACTERS: Final = 1 << 16
"""Of the text of an error: it is logged, shown to clients and kept with its model."""
_ALLOWANCE: Final = Allowance(64, 4 * _MESSAGE_BYTES)
"""Of the memory that the other side makes this one map: each part takes file descriptors, which others need."""
_UNSENT: Final = (errno.EMSGSIZE, errno.ENOMEM)
"""Errors that concern one message, and not the other side."""


class Ended(UnavailableError):
    """The other process has ended, or does not answer."""


class Calls:
    """What this process asks of the other, and its answers to what that asks.

    Arguments and results are plain values. ``answers`` has what the other may call, by name: each runs on a thread of
    its own, raises RepoAgentError for a refusal, and must not trust its arguments. ``on_end`` is called once, on the
    reading thread, when the other has gone or broken the rules.
    """

    def __init__(self, sock: socket.socket, answers: Answers, on_end: Callable[[str], None], name: str) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        arena, memory = Arena(allowance=_ALLOWANCE.with_margin()), Memory(_ALLOWANCE)
        self._channel = Channel(sock, arena, memory, longest_sent=_MESSAGE_BYTES, longest_received=_MESSAGE_BYTES)
        self._answers = answers
        self._on_end = on_end
        self._name = name
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._number = 0
        self._ended = False
        self._failed: set[str] = set()
        """Calls of the other side whose failure has been logged."""
        self._inside = self._inside_bytes = 0
        """Calls of the other side without an answer yet, and the bytes of the long ones."""

    def start(self) -> None:
        """Take calls and answers from now on."""
        threading.Thread(target=self._read, name=f"{self._name}-calls", daemon=True).start()

    def call(self, name: str, *arguments: Any, timeout: float | None = None) -> Any:
        """What the other answers.

        Raises:
            Ended: it has gone, or has not answered within ``timeout`` seconds.
            RepoAgentError: it refused.
        """
        try:
            return self.begin(name, *arguments).result(timeout)
        except FutureTimeoutError:
            raise Ended(f"{self._name} has not answered '{name}' for {timeout:g} seconds") from None

    def begin(self, name: str, *arguments: Any) -> "Future[Any]":
        """Make a call without waiting; the result has its answer, or its error."""
        future: Future[Any] = Future()
        with self._lock:
            if self._ended:
                future.set_exception(self._gone())
                return future
            self._number = number = self._number + 1
            self._waiting[number] = future
        try:
            self._channel.send(Kind.ASK, [number, name, list(arguments)])
        except (PeerGoneError, OSError) as error:
            if isinstance(error, OSError) and error.errno in _UNSENT:
                self._settle(number, _unsent(name, error), None)
                return future
            logger.debug("%s: '%s' could not be sent: %s", self._name, name, error)
            self.close()
            self._settle(number, self._gone(), None)
        return future

    def close(self) -> None:
        """Let the other know that this is the end, and fail the calls that wait."""
        self._channel.shutdown()

    def _gone(self) -> Ended:
        return Ended(f"{self._name} has ended")

    def _settle(self, number: int, error: BaseException | None, value: Any) -> None:
        with self._lock:
            future = self._waiting.pop(number, None)
        if future is None:
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    def _read(self) -> None:
        why = ""
        try:
            while (message := self._channel.receive()) is not None:
                self._take(message)
        except Exception as error:  # There is no end of what can be wrong, and others wait for the end.
            why = f"it broke the rules: {error}"
            logger.error("%s: %s", self._name, why)
        with self._lock:
            self._ended = True
            waiting = list(self._waiting)
        self._channel.shutdown()
        for number in waiting:
            self._settle(number, self._gone(), None)
        self._on_end(why)
        self._channel.close()

    def _take(self, message: Message) -> None:
        if message.kind == Kind.ANSWER:
            number, code, value = message.body
            error = None if code is None else error_of(int(code), str(value)[:_ERROR_CHARACTERS])
            self._settle(int(number), error, value)
            return
        if message.kind != Kind.ASK:
            return  # Memory that may be used again.
        number, name, arguments = message.body
        answer = self._answers.get(name) if isinstance(name, str) else None
        if answer is None or not isinstance(arguments, list):
            raise ValueError(f"there is no call {str(name)[:64]!r}")
        number = int(number)
        size = self._channel.long_bytes
        with self._lock:
            if self._inside >= _AT_ONCE or (size and self._inside_bytes + size > _WAITING_BYTES):
                size = -1
            else:
                self._inside += 1
                self._inside_bytes += size
        if size < 0:
            self._refuse(number, f"{_AT_ONCE} calls of one process, or {_WAITING_BYTES} bytes of them, wait already")
            return
        arguments_of_thread = (number, name, answer, arguments, size)
        thread = threading.Thread(
            target=self._answer, args=arguments_of_thread, name=f"{self._name}-{name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            self._left(size)
            self._refuse(number, "the machine has no thread left")

    def _left(self, size: int) -> None:
        with self._lock:
            self._inside -= 1
            self._inside_bytes -= size

    def _refuse(self, number: int, why: str) -> None:
        self._reply(number, [number, int(UnavailableError.code), why])

    def _answer(self, number: int, name: str, answer: Callable[..., Any], arguments: list[Any], size: int) -> None:
        body: list[Any]
        try:
            body = [number, None, answer(*arguments)]
        except RepoAgentError as error:
            body = [number, int(error.code), str(error)]
        except Exception as error:
            log = logger.debug if name in self._failed else logger.error  # A worker may have it fail without end.
            log("%s: '%s' failed", self._name, name, exc_info=True)
            self._failed.add(name)
            body = [number, int(RepoAgentError.code), f"{type(error).__name__}: {error}"]
        finally:
            self._left(size)
        self._reply(name, body)

    def _reply(self, call: object, body: list[Any]) -> None:
        try:
            self._channel.send(Kind.ANSWER, body)
        except PeerGoneError:
            pass  # The reading thread sees it, too.
        except (OSError, TypeError, ValueError) as error:
            logger.error("%s: the answer to '%s' could not be sent: %s", self._name, call, error)
            self.close()


class CallsUntil:
    """Calls of which all must be answered within the same ``seconds``, as others wait for the last one."""

    def __init__(self, calls: Calls, seconds: float) -> None:
        self._calls = calls
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def call(self, name: str, *arguments: Any) -> Any:
        """See :meth:`Calls.call`."""
        try:
            return self._calls.begin(name, *arguments).result(max(0.0, self._end - time.monotonic()))
        except FutureTimeoutError:
            text = f"it has not answered '{name}' within the {self._seconds:g} seconds for all that it is given at once"
            raise Ended(text) from None


def _unsent(name: str, error: OSError) -> RepoAgentError:
    if error.errno != errno.EMSGSIZE:
        return UnavailableError(f"there is no memory for '{name}': {error.strerror}")
    return InvalidArgumentError(
        f"'{name}' is too large for a server of several processes: a message between them has at most {_MESSAGE_BYTES} "
        "bytes, with files as base64"
    )
