"""An event loop that takes a process's answers itself, as long as they are what they usually are."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from repoagent.serving.backends.python.process.channel import Kind, LongMessageError, Message
from repoagent.serving.backends.python.process.child_process import ChildProcess
from repoagent.serving.backends.python.process.memory import ProtocolError
from repoagent.serving.backends.python.process.open_requests import (
    OpenRequests,
    Outstanding,
    UnsentAnswer,
    WorkItem,
    is_last,
)
from repoagent.serving.instances.loop_reader import LoopReader

__all__ = ["Hearing", "LoopPort"]

logger = logging.getLogger(__name__)
_PATIENCE_SECONDS: Final = 0.01
"""How long a process may be silent before what was sent ahead is asked back."""


class Hearing(Protocol):
    """The instance whose process it is."""

    @property
    def open_requests(self) -> OpenRequests:
        """What the process has not answered."""

    def hear(
        self, child: ChildProcess, outstanding: Outstanding, message: Message, answers: list[UnsentAnswer]
    ) -> None:
        """Take note of what the process has done of ``outstanding``, and add the answers to be sent.

        Raises:
            ProtocolError: it makes no sense.
        """

    def settle(self, item: WorkItem, child: ChildProcess) -> None:
        """All answers to ``item`` have been sent."""

    def conclude(self, item: WorkItem, child: ChildProcess, first: Message | None, fault: ProtocolError | None) -> None:
        """Bring it to its end in the place of the loop, and wait for that. ``first`` has been received, or ``fault``
        found."""


class LoopPort:
    """Where one loop takes the answers of one instance. Everything happens on the loop's thread.

    It waits for nothing: what would make it wait goes to a thread of its own. Between two exchanges the loop still
    watches the descriptor, because to stop that and to begin again would cost more than all else.
    """

    def __init__(self, reader: LoopReader, instance: Hearing, closed: Callable[[], object]) -> None:
        self._reader = reader
        self._instance = instance
        self._open_requests = instance.open_requests
        self._closed = closed
        self._watched: tuple[ChildProcess, int] | None = None
        self._current: tuple[ChildProcess, WorkItem] | None = None
        self._heard = 0.0
        self._timed = False
        self._asked = False

    def begin(self, child: ChildProcess, item: WorkItem) -> None:
        """Take the answers to ``item``, which has been sent."""
        self._current = child, item
        try:
            if self._watched is None or self._watched[0] is not child:
                self._watch(child)
        except Exception as error:  # There is no descriptor left.
            logger.warning("answers of '%s' cannot be read on an event loop: %s", child.name, error)
            self._hand_over()
            return
        if child.work.takes_slowly:
            self._hand_over()
        elif item.outstanding.divisible:
            self._asked = False
            self._heard = time.monotonic()
            self._look_after()

    def readable(self) -> None:
        """See :class:`Source`. One message a turn: the loop has others to serve."""
        if self._current is None:
            self._unwatch()  # A thread takes the answers now, or the process has ended.
            return
        child, item = self._current
        try:
            message = child.work.answer()
        except BlockingIOError:
            return
        except LongMessageError:
            self._hand_over()
        except ProtocolError as fault:
            self._hand_over(fault=fault)
        else:
            if message is None:
                self._hand_over()
            else:
                self._take(child, item, message)

    def abandoned(self) -> None:
        """See :class:`Source`."""
        self._watched = None
        self._closed()
        if self._current is not None:
            self._hand_over()

    def _take(self, child: ChildProcess, item: WorkItem, message: Message) -> None:
        body = message.body
        last = is_last(message)
        if message.kind == Kind.DONE and isinstance(body, list) and body and not _handled(child, body[0]):
            self._hand_over(message)
            return
        answers: list[UnsentAnswer] = []
        try:
            self._instance.hear(child, item.outstanding, message, answers)
            if last and not item.outstanding.over:
                raise ProtocolError("it ends without having executed all that it was given")
        except ProtocolError as fault:
            _send(answers)
            self._hand_over(fault=fault)
            return
        del message, body
        self._heard = time.monotonic()
        if not last:
            _send(answers)
            return
        early = [answer for answer in answers if not answer.final]
        if early:
            _send(early)  # Their final answers may come from another thread from now on.
        self._current = None
        child.work.over()
        self._open_requests.free()
        try:
            item.over(None)  # The process is given what comes next before the answers are written.
        finally:
            _send(answers if not early else [answer for answer in answers if answer.final])
            self._instance.settle(item, child)

    def _hand_over(self, first: Message | None = None, fault: ProtocolError | None = None) -> None:
        assert self._current is not None
        child, item = self._current
        self._current = None
        self._unwatch()
        work = self._instance.conclude
        thread = threading.Thread(
            target=work, args=(item, child, first, fault), name=f"repoagent-{child.name}-exchange", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # The machine has no thread left.
            work(item, child, first, fault)

    def _watch(self, child: ChildProcess) -> None:
        self._unwatch()
        self._watched = child, self._reader.watch(child.work.fd, self)

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._reader.forget(self._watched[1])
            self._watched = None

    # -- what stands behind something slow -------------------------------------------------------------------------

    def _look_after(self) -> None:
        """Have :meth:`_look` called in time. There is one timer, as most exchanges are over long before."""
        if not self._timed:
            self._timed = True
            self._reader.later(self._heard + _PATIENCE_SECONDS - time.monotonic(), self._look)

    def _look(self) -> None:
        self._timed = False
        if self._current is None or self._asked:
            return
        child, item = self._current
        if not item.outstanding.divisible:
            return
        if time.monotonic() - self._heard >= _PATIENCE_SECONDS:
            self._asked = True
            child.ask_back(item.outstanding.numbers[-1])
        else:
            self._look_after()


def _handled(child: ChildProcess, count: object) -> bool:
    """Whether what the process said before has been heard; what is not a number is for others to complain of."""
    return not isinstance(count, int) or child.has_handled(count)


def _send(answers: list[UnsentAnswer]) -> None:
    for answer in answers:
        try:
            answer.send()
        except Exception:  # The others are to be sent all the same.
            logger.exception("the sender of a request raised")
