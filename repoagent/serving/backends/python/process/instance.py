"""One instance of a Python model in a process of its own: hands it requests, on a thread or an event loop."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from repoagent.errors import InternalError, RepoAgentError, UnavailableError
from repoagent.serving.backends.python.process.channel import Kind, Message, PeerGoneError, UndeliveredError
from repoagent.serving.backends.python.process.child_process import ChildProcess
from repoagent.serving.backends.python.process.loop_port import LoopPort
from repoagent.serving.backends.python.process.memory import ProtocolError
from repoagent.serving.backends.python.process.open_requests import (
    Executed,
    OpenRequests,
    Outstanding,
    RequestsAhead,
    Returned,
    UnsentAnswer,
    WorkItem,
    is_last,
)
from repoagent.serving.backends.python.process.server_channel import AskBack, Listener
from repoagent.serving.backends.python.process.supervisor import ProcessSpec, Supervisor
from repoagent.serving.instances.backend import BackendInstance, Capability
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.requests.request import InferRequest

__all__ = ["ProcessInstance"]

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 0.01
"""How long a process may be silent before what was sent ahead is asked back."""
_FOR_THREADS: Final = 64
"""How many items a thread does after one that a loop could not bring to its end: those that follow are like it."""
_SETTLING_SECONDS: Final = 1.0
"""How long an instance counts as busy while its process is started again; until then others get the requests."""


class ProcessInstance(BackendInstance):
    """A :class:`BackendInstance` whose model runs in a child process: ``child``, which runs nothing yet, to begin with.

    Raises:
        InternalError: the model in it cannot be started.
    """

    capabilities = Capability.TAKES_SEVERAL | Capability.CLOSES_SLOWLY

    def __init__(self, spec: ProcessSpec, name: str, arguments: dict[str, str], child: ChildProcess) -> None:
        self._spec = spec
        self._name = name
        self.open_requests: Final = OpenRequests(name, spec.model_version)
        self._requests_ahead = RequestsAhead(spec.ahead)
        self._ports: dict[LoopReader, LoopPort] = {}
        self._for_threads = 0
        """How many items threads do before loops may again."""
        self._supervisor = Supervisor(spec, name, arguments, self.open_requests)
        self._supervisor.start(child)

    @property
    def child(self) -> ChildProcess | None:
        """The process at the moment; None while there is none."""
        return self._supervisor.child

    @property
    def given_up(self) -> bool:
        """Whether no process is going to be started any more."""
        return self._supervisor.given_up

    @property
    def asks(self) -> bool:
        """Whether the model has something to say about its readiness."""
        return self._supervisor.asks

    @property
    def ahead(self) -> int:
        """How many requests :meth:`execute_each` should get at once. A decoupled model gets one: how long its
        ``execute`` takes says nothing about its answers."""
        return 1 if self._spec.decoupled else self._requests_ahead.limit

    @property
    def ready_for_loop(self) -> bool:
        """Whether an event loop should do with :meth:`begin_each`: what needs a thread keeps loops away for a while.

        A decoupled model's responses come on the supervising thread, which a loop must not wait for.
        """
        return self._supervisor.child is not None and not self._spec.decoupled and not self._for_threads

    def execute(self, requests: Sequence[InferRequest]) -> None:
        """Hand the batch to the process. Whatever happens to it, every request is answered."""
        self._perform(WorkItem([requests], self.open_requests.numbers, lambda *_: None, None))

    def execute_each(self, requests: Sequence[InferRequest], executed: Executed, returned: Returned) -> None:
        """Hand them to the process at once, which executes one after the other.

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
        """See :class:`BackendInstance`."""
        child = self._supervisor.child
        if child is None:
            return False
        item = WorkItem([(request,) for request in requests], self.open_requests.numbers, executed, returned)
        item.over = over
        begun = False
        self.open_requests.admit(item)
        try:
            item.write()
            begun = child.work.begin(Kind.EXECUTE, item.body, item.packer)
        except (RepoAgentError, TypeError, ValueError, OSError, PeerGoneError):
            pass  # Who waits for it finds the same, and deals with it.
        finally:
            if not begun:
                self.open_requests.withdraw(item)
        if begun:
            self._port(reader).begin(child, item)
        return begun

    def _port(self, reader: LoopReader) -> LoopPort:
        port = self._ports.get(reader)
        if port is None:
            port = self._ports[reader] = LoopPort(reader, self, lambda: self._ports.pop(reader, None))
        return port

    def _perform(self, item: WorkItem) -> None:
        if self._for_threads:
            self._for_threads -= 1
        self.open_requests.admit(item)
        try:
            item.write()
            child = self._exchange(item)
        except BaseException as error:
            if not self._gave_back(item, error):
                raise
            return
        self.open_requests.free()
        self.settle(item, child)

    def _gave_back(self, item: WorkItem, error: BaseException) -> bool:
        """Nothing was done of it, because of ``error``: by itself, each finds out whether it was the reason."""
        self.open_requests.withdraw(item)
        gives = item.outstanding.divisible and isinstance(error, RepoAgentError | TypeError | ValueError)
        if gives:
            item.outstanding.give_all_back()
        return gives

    def _exchange(self, item: WorkItem) -> ChildProcess:
        """Have some process do it; returns the one that did, or broke down over it."""
        child: ChildProcess | None = None
        while True:
            child = self._supervisor.usable(child)
            if self._has_done(item, child, partial(child.work.exchange, Kind.EXECUTE, item.body, item.packer)):
                return child

    def _has_done(self, item: WorkItem, child: ChildProcess, talk: Callable[[Listener], Message]) -> bool:
        """Have it done by ``talk``; False if nothing of it has reached the process."""
        outstanding = item.outstanding
        hear = partial(self._hear, child, outstanding)
        ask_back = AskBack(_PATIENCE_SECONDS, outstanding.numbers[-1]) if outstanding.divisible else None
        try:
            hear(talk(Listener(is_last, hear, ask_back)))
            if not outstanding.over:
                raise ProtocolError("it ends without having executed all that it was given")
        except UndeliveredError:
            return False  # It ended while it had nothing to do; the next one will do it.
        except (PeerGoneError, ProtocolError) as error:
            self._broken(child, outstanding, error)
        except OSError as error:
            self.open_requests.fail(
                outstanding.numbers, InternalError(f"the inputs of '{self._name}' cannot be handed over: {error}")
            )
        return True

    def conclude(self, item: WorkItem, child: ChildProcess, first: Message | None, fault: ProtocolError | None) -> None:
        """Bring what a loop began to its end, on a thread of its own: whatever is out of the ordinary takes time."""

        def talk(listener: Listener) -> Message:
            if fault is not None:
                child.work.over()
                raise fault
            return child.work.go_on(first, listener)

        self._for_threads = _FOR_THREADS
        failure: Exception | None = None
        try:
            if not self._has_done(item, child, talk):
                child = self._exchange(item)
        except Exception as error:
            failure = None if self._gave_back(item, error) else error
        else:
            self.open_requests.free()
            self.settle(item, child)
        item.over(failure)

    def settle(self, item: WorkItem, child: ChildProcess) -> None:
        """It is done. If the process ends later, that fails what it has not answered."""
        if child.exited.is_set():
            self.open_requests.fail_unhealthy(item.outstanding.numbers)

    def is_ready(self) -> bool:
        """What the model's ``is_ready`` returns; waits for it as long as the process is there.

        Raises:
            InternalError: it raised, or returned something else.
            UnavailableError: the process is not there, or ended meanwhile.
        """
        # Before the process is looked for: the end of that one fails the question.
        number, answer = self.open_requests.ask_ready()
        child = self._supervisor.child
        if child is None:
            self.open_requests.drop_question(number)
            raise UnavailableError(f"Stub process '{self._name}' is not healthy")
        child.tell(Kind.READY, number)
        return answer.result()

    def close(self) -> None:
        """Finalize the model and end the process; one that does not end in time is killed."""
        self._supervisor.close()

    def _hear(self, child: ChildProcess, outstanding: Outstanding, message: Message) -> None:
        """Pass on what the process has done of ``outstanding``."""
        answers: list[UnsentAnswer] = []
        try:
            self.hear(child, outstanding, message, answers)
        finally:
            for answer in answers:
                answer.send()

    def hear(
        self, child: ChildProcess, outstanding: Outstanding, message: Message, answers: list[UnsentAnswer]
    ) -> None:
        """See :class:`Hearing`."""
        if message.kind != Kind.DONE:
            raise ProtocolError(f"a message of kind {message.kind} answers a batch")
        try:
            count, bodies, times, last = message.body
            if type(count) is not int:
                raise TypeError("a count is a whole number")
            if last is False and not times:
                raise ProtocolError("it answers before it has executed anything")
            child.wait_handled(count)
            for number, begin, end in times:
                outstanding.note(number, begin, end)
                self._requests_ahead.note(end - begin)
            for body in bodies:
                answer = self.open_requests.answer(body, message)
                if answer is not None:
                    answers.append(answer)
        except ProtocolError:
            raise
        except Exception as error:  # There is no end of what can be wrong, and none of it may end the caller.
            raise ProtocolError(f"an answer cannot be read: {type(error).__name__}: {error}") from error

    def _broken(self, child: ChildProcess, outstanding: Outstanding, error: Exception) -> None:
        """The process has ended, or must."""
        child.kill()
        child.exited.wait()
        unbegun = self.open_requests.unanswered(outstanding.unbegun(child.begun))
        self.open_requests.fail_unhealthy([number for number in outstanding.numbers if number not in unbegun])
        if unbegun:
            self.open_requests.take_back(unbegun)
        if isinstance(error, ProtocolError):
            logger.error("the process of model instance '%s' was killed: %s", self._name, error)
        self._supervisor.settle(child, _SETTLING_SECONDS)
