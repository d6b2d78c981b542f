"""One message of work for a process and its answers, which a thread or an event loop receives in the same way."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from repoagent.serving.backends.python.process.channel import Kind, LongMessageError, Message, PeerGoneError
from repoagent.serving.backends.python.process.child_process import ChildProcess
from repoagent.serving.backends.python.process.memory import ProtocolError
from repoagent.serving.backends.python.process.open_requests import OpenRequests, RequestsAhead, UnsentAnswer, WorkItem
from repoagent.serving.instances.loop_reader import LoopReader

if TYPE_CHECKING:
    from repoagent.serving.backends.python.process.instance import ProcessInstance

logger = logging.getLogger(__name__)
_PATIENCE_SECONDS: Final = 0.01
"""How long a process may be silent before what was sent ahead is asked back."""


class Exchange:
    """``item`` on its way through ``child``: :meth:`begin`, :meth:`take` with each answer, and the end of the exchange.

    :meth:`complete` does all of it, or what is left, on one thread. An event loop calls the steps itself.
    """

    def __init__(self, item: WorkItem, child: ChildProcess, requests: OpenRequests, ahead: RequestsAhead) -> None:
        self.item: Final = item
        self.child: Final = child
        self._requests = requests
        self._ahead = ahead
        self.begun = False
        """Whether the message was sent, and the exchange has not ended."""
        self.received: Message | None = None
        """An answer that was received and not taken."""
        self.fault: ProtocolError | None = None
        """What is wrong with an answer."""

    def begin(self, *, wait: bool) -> bool:
        """Send the message. Returns and raises as :meth:`WorkChannel.begin` does."""
        self.begun = self.child.work.begin(Kind.EXECUTE, self.item.body, self.item.packer, wait=wait)
        return self.begun

    def end(self) -> None:
        """Let others send to the process."""
        self.begun = False
        self.child.work.end()

    def take(self, message: Message, answers: list[UnsentAnswer]) -> bool:
        """Note what the process has executed, and add the answers to be sent. True if the message is the last one.
        Raises ``ProtocolError`` if it makes no sense."""
        if message.kind != Kind.DONE:
            raise ProtocolError(f"a message of kind {message.kind} answers a batch")
        try:
            self._take(message, answers)
        except ProtocolError:
            raise
        except Exception as error:  # There is no end of what can be wrong, and none of it may end the caller.
            raise ProtocolError(f"an answer cannot be read: {type(error).__name__}: {error}") from error
        last = message.body[3] is not False
        if last and not self.item.complete:
            raise ProtocolError("it ends without having executed all that it was given")
        return last

    def _take(self, message: Message, answers: list[UnsentAnswer]) -> None:
        count, bodies, times, last = message.body
        if type(count) is not int:
            raise TypeError("a count is a whole number")
        if last is False and not times:
            raise ProtocolError("it answers before it has executed anything")
        self.child.wait_handled(count)
        for number, begin, end in times:
            self.item.note(number, begin, end)
            self._ahead.note(end - begin)
        for body in bodies:
            answer = self._requests.answer(body, message)
            if answer is not None:
                answers.append(answer)

    def complete(self) -> None:
        """Do what is left of the exchange, on this thread; it has ended then, whatever this raises.

        Raises:
            UndeliveredError: the process had ended before the message was sent.
            PeerGoneError: it has ended since.
            ProtocolError: an answer makes no sense.
            OSError: there is no memory for the tensors.
        """
        if not self.begun:
            self.begin(wait=True)
        try:
            if self.fault is not None:
                raise self.fault
            self._receive_all()
        finally:
            self.end()

    def _receive_all(self) -> None:
        work = self.child.work
        work.flush(wait=True)
        patient = not self.item.divisible
        last = False
        while not last:
            message, self.received = self.received, None
            if message is None:
                if not patient and not work.wait(_PATIENCE_SECONDS):
                    self.ask_back()
                    patient = True
                message = work.answer(wait=True)
            answers: list[UnsentAnswer] = []
            try:
                last = self.take(message, answers)
            finally:
                send_all(answers)
            del message, answers  # They hold memory of the process.

    def ask_back(self) -> None:
        """Ask the process to give back what it has not begun."""
        self.child.send(Kind.RETURN, self.item.numbers[-1])

    def settle(self) -> None:
        """All answers have been sent. If the process ends later, that fails what it has not answered."""
        if self.child.exited.is_set():
            self._requests.fail_unhealthy(self.item.numbers)


def send_all(answers: list[UnsentAnswer]) -> None:
    """Send each, also if the sender of another one raises."""
    for answer in answers:
        try:
            answer.send()
        except Exception:
            logger.exception("the sender of a request raised")


class LoopReceiver:
    """Receives the answers of one instance on one event loop. Everything happens on the loop's thread.

    It waits for nothing: an exchange that would make it wait is completed by a thread of its own. Between two exchanges
    the loop still watches the descriptor, because to stop that and to begin again would cost more than all else.
    """

    def __init__(self, reader: LoopReader, instance: "ProcessInstance", closed: Callable[[], object]) -> None:
        self._reader = reader
        self._instance = instance
        self._open_requests = instance.open_requests
        self._closed = closed
        self._watched: tuple[ChildProcess, int] | None = None
        self._current: Exchange | None = None
        self._received = 0.0
        self._timed = False
        self._asked = False

    def start(self, exchange: Exchange) -> None:
        """Receive the answers of ``exchange``, which has begun."""
        self._current = exchange
        child = exchange.child
        try:
            if self._watched is None or self._watched[0] is not child:
                self._watch(child)
        except Exception as error:  # There is no descriptor left.
            logger.warning("answers of '%s' cannot be read on an event loop: %s", child.name, error)
            self._hand_over()
            return
        if child.work.backlogged:
            self._hand_over()
        elif exchange.item.divisible:
            self._asked = False
            self._received = time.monotonic()
            self._start_timer()

    def readable(self) -> None:
        """There is an answer, or the end has come. One message a turn: the loop has others to serve."""
        exchange = self._current
        if exchange is None:
            self._unwatch()  # A thread receives the answers now, or the process has ended.
            return
        try:
            message = exchange.child.work.answer(wait=False)
        except BlockingIOError:
            return
        except (LongMessageError, PeerGoneError):
            self._hand_over()
        except ProtocolError as fault:
            self._hand_over(fault=fault)
        else:
            self._take(exchange, message)

    def abandoned(self) -> None:
        """The loop ends, and watches nothing any more."""
        self._watched = None
        self._closed()
        if self._current is not None:
            self._hand_over()

    def _take(self, exchange: Exchange, message: Message) -> None:
        if not _can_be_taken(exchange.child, message):
            self._hand_over(message)
            return
        answers: list[UnsentAnswer] = []
        try:
            last = exchange.take(message, answers)
        except ProtocolError as fault:
            send_all(answers)
            self._hand_over(fault=fault)
            return
        del message
        self._received = time.monotonic()
        if not last:
            send_all(answers)
            return
        early = [answer for answer in answers if not answer.final]
        if early:
            send_all(early)  # Their final answers may come from another thread from now on.
        self._current = None
        exchange.end()
        self._open_requests.free()
        try:
            exchange.item.over(None)  # The process is given what comes next before the answers are written.
        finally:
            send_all(answers if not early else [answer for answer in answers if answer.final])
            exchange.settle()

    def _hand_over(self, received: Message | None = None, fault: ProtocolError | None = None) -> None:
        """Have a thread complete the exchange."""
        exchange, self._current = self._current, None
        assert exchange is not None
        exchange.received, exchange.fault = received, fault
        self._unwatch()
        complete = self._instance.complete
        name = f"repoagent-{exchange.child.name}-exchange"
        thread = threading.Thread(target=complete, args=(exchange,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # The machine has no thread left.
            complete(exchange)

    def _watch(self, child: ChildProcess) -> None:
        self._unwatch()
        self._watched = child, self._reader.watch(child.work.fileno(), self.readable, self.abandoned)

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._reader.forget(self._watched[1])
            self._watched = None

    def _start_timer(self) -> None:
        """Have :meth:`_check_silence` called in time. There is one timer: most exchanges are over long before."""
        if not self._timed:
            self._timed = True
            self._reader.later(self._received + _PATIENCE_SECONDS - time.monotonic(), self._check_silence)

    def _check_silence(self) -> None:
        self._timed = False
        exchange = self._current
        if exchange is None or self._asked or not exchange.item.divisible:
            return
        if time.monotonic() - self._received >= _PATIENCE_SECONDS:
            self._asked = True
            exchange.ask_back()
        else:
            self._start_timer()


def _can_be_taken(child: ChildProcess, message: Message) -> bool:
    """Whether all that the process sent before has been handled; what is not a number is for others to complain of."""
    body = message.body
    if message.kind != Kind.DONE or not isinstance(body, list) or not body:
        return True
    return not isinstance(body[0], int) or child.has_handled(body[0])
