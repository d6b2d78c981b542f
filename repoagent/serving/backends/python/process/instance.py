"""One instance of a Python model in a process of its own: sends it requests, on a thread or an event loop."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from repoagent.errors import InternalError, RepoAgentError, UnavailableError
from repoagent.serving.backends.python.process.channel import Kind, PeerGoneError, UndeliveredError
from repoagent.serving.backends.python.process.child_process import ChildProcess
from repoagent.serving.backends.python.process.exchange import Exchange, LoopReceiver
from repoagent.serving.backends.python.process.memory import ProtocolError
from repoagent.serving.backends.python.process.open_requests import (
    Executed,
    OpenRequests,
    RequestsAhead,
    Returned,
    WorkItem,
)
from repoagent.serving.backends.python.process.supervisor import ProcessSpec, Supervisor
from repoagent.serving.instances.backend import BackendInstance, Capability
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.requests.request import InferRequest

logger = logging.getLogger(__name__)

_FOR_THREADS: Final = 64
"""How many items a thread does after one that a loop could not bring to its end: those that follow are like it."""
_SETTLING_SECONDS: Final = 1.0
"""How long an instance counts as busy while its process is started again; until then others get the requests."""


class ProcessInstance(BackendInstance):
    """A :class:`BackendInstance` whose model runs in a child process, at first in ``child``, which runs nothing yet.
    Raises ``InternalError`` if the model cannot be started in it."""

    capabilities = Capability.TAKES_SEVERAL | Capability.CLOSES_SLOWLY

    def __init__(self, spec: ProcessSpec, name: str, arguments: dict[str, str], child: ChildProcess) -> None:
        self._spec = spec
        self._name = name
        self.open_requests: Final = OpenRequests(name, spec.model_version)
        self._requests_ahead = RequestsAhead(spec.ahead)
        self._receivers: dict[LoopReader, LoopReceiver] = {}
        self._for_threads = 0
        """How many items threads do before loops may again."""
        self.supervisor: Final = Supervisor(spec, name, arguments, self.open_requests)
        self.supervisor.start(child)

    @property
    def ahead(self) -> int:
        """How many requests :meth:`execute_each` should get at once. A decoupled model gets one: how long its
        ``execute`` takes gives no hint of its answers."""
        return 1 if self._spec.decoupled else self._requests_ahead.limit

    @property
    def ready_for_loop(self) -> bool:
        """Whether an event loop should do with :meth:`begin_each`: what needs a thread keeps loops away for a while.

        A decoupled model's responses come on the supervising thread, which a loop must not wait for.
        """
        return self.supervisor.child is not None and not self._spec.decoupled and not self._for_threads

    def execute(self, requests: Sequence[InferRequest]) -> None:
        """Send the batch to the process. Whatever happens to it, every request is answered."""
        self._perform(WorkItem([requests], self.open_requests.numbers, lambda *_: None, None))

    def execute_each(self, requests: Sequence[InferRequest], executed: Executed, returned: Returned) -> None:
        """Send them to the process at once, which executes one after the other.

        Each is answered, or comes back: if the one before takes long, or the process ends before it begins.
        """
        self._perform(WorkItem([(request,) for request in requests], self.open_requests.numbers, executed, returned))

    def begin_each(
        self,
        requests: Sequence[InferRequest],
        executed: Executed,
        returned: Returned,
        over: Callable[[Exception | None], None],
        reader: LoopReader,
    ) -> bool:
        child = self.supervisor.child
        if child is None:
            return False
        item = WorkItem([(request,) for request in requests], self.open_requests.numbers, executed, returned)
        item.over = over
        exchange = self._exchange(item, child)
        self.open_requests.admit(item)
        try:
            item.write()
            exchange.begin(wait=False)
        except (RepoAgentError, TypeError, ValueError, OSError, PeerGoneError):
            pass  # A caller that waits for it finds the same, and deals with it.
        finally:
            if not exchange.begun:
                self.open_requests.withdraw(item)
        if exchange.begun:
            self._receiver(reader).start(exchange)
        return exchange.begun

    def _receiver(self, reader: LoopReader) -> LoopReceiver:
        receiver = self._receivers.get(reader)
        if receiver is None:
            receiver = LoopReceiver(reader, self, lambda: self._receivers.pop(reader, None))
            self._receivers[reader] = receiver
        return receiver

    def _exchange(self, item: WorkItem, child: ChildProcess) -> Exchange:
        return Exchange(item, child, self.open_requests, self._requests_ahead)

    def _perform(self, item: WorkItem) -> None:
        """Have a process execute ``item``, on this thread."""
        if self._for_threads:
            self._for_threads -= 1
        self.open_requests.admit(item)
        failure = self._completed(item, None)
        if failure is not None:
            raise failure

    def complete(self, exchange: Exchange) -> None:
        """Complete what a loop began, on a thread of its own: whatever is out of the ordinary takes time."""
        self._for_threads = _FOR_THREADS
        item = exchange.item
        item.over(self._completed(item, exchange))

    def _completed(self, item: WorkItem, exchange: Exchange | None) -> Exception | None:
        """Have ``item`` executed, by ``exchange`` if a loop began that; returns why nothing was done of it, if it does
        not come back."""
        try:
            if exchange is None:
                item.write()
            while exchange is None or not self._reached(exchange):
                gone = None if exchange is None else exchange.child
                exchange = self._exchange(item, self.supervisor.usable(gone))
        except BaseException as error:
            self.open_requests.withdraw(item)
            if item.divisible and isinstance(error, RepoAgentError | TypeError | ValueError):
                item.give_all_back()  # By itself, each finds out whether it was the reason.
                return None
            if isinstance(error, Exception):
                return error
            raise
        self.open_requests.free()
        exchange.settle()
        return None

    def _reached(self, exchange: Exchange) -> bool:
        """Complete ``exchange``; False if the process had ended before it got anything of it."""
        numbers = exchange.item.numbers
        try:
            exchange.complete()
        except UndeliveredError:
            return False  # It ended while it had nothing to do; the next one will do it.
        except (PeerGoneError, ProtocolError) as error:
            self._broken(exchange, error)
        except OSError as error:
            failure = InternalError(f"the inputs of '{self._name}' cannot be handed over: {error}")
            self.open_requests.fail(numbers, failure)
        return True

    def is_ready(self) -> bool:
        """What the model's ``is_ready`` returns; waits for it as long as the process is there.

        Raises ``InternalError`` if it raised, or returned something else, and ``UnavailableError`` if the process is
        gone.
        """
        # Before the process is looked for: the end of that one fails the question.
        number, answer = self.open_requests.ask_ready()
        child = self.supervisor.child
        if child is None:
            self.open_requests.drop_question(number)
            raise UnavailableError(f"Stub process '{self._name}' is not healthy")
        child.send(Kind.READY, number)
        return answer.result()

    def close(self) -> None:
        """Finalize the model and end the process; one that does not end in time is killed."""
        self.supervisor.close()

    def _broken(self, exchange: Exchange, error: Exception) -> None:
        """The process has ended, or must."""
        child, item = exchange.child, exchange.item
        child.kill()
        child.exited.wait()
        not_begun = self.open_requests.unanswered(item.not_begun(child.begun))
        self.open_requests.fail_unhealthy([number for number in item.numbers if number not in not_begun])
        if not_begun:
            self.open_requests.take_back(not_begun)
        if isinstance(error, ProtocolError):
            logger.error("the process of model instance '%s' was killed: %s", self._name, error)
        self.supervisor.wait_for_another(child, _SETTLING_SECONDS)
