"""One instance of a Python model in a process of its own, which is started again when it breaks down."""

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from repoagent.errors import InternalError, RepoAgentError, UnavailableError
from repoagent.serving.backends.python.process.channel import Kind, Message, PeerGoneError, UndeliveredError
from repoagent.serving.backends.python.process.codec import response_of
from repoagent.serving.backends.python.process.loop_port import LoopPort
from repoagent.serving.backends.python.process.memory import ProtocolError
from repoagent.serving.backends.python.process.orders import Order, Ready, is_last
from repoagent.serving.backends.python.process.packets import Executed, Pace, Packet, Returned
from repoagent.serving.backends.python.process.services import Services
from repoagent.serving.backends.python.process.starting import Blueprint, first_answer, new_child
from repoagent.serving.backends.python.process.supervisor import AskBack, ChildProcess
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.senders import answer_error

__all__ = ["ProcessInstance"]

logger = logging.getLogger(__name__)
_models: Final = logging.getLogger("repoagent.models")

_ATTEMPTS: Final = 5
"""How often in a row a process may fail to start again before its instance is given up."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_PATIENCE_SECONDS: Final = 0.01
"""How long a process may be silent before what was sent ahead is asked back."""
_FOR_THREADS: Final = 64
"""How many orders a thread does after one that a loop could not bring to its end: those that follow are like it."""
_SETTLING_SECONDS: Final = 1.0
"""How long an instance counts as busy while its process is started again; until then others get the requests."""


class ProcessInstance:
    """A :class:`BackendInstance` whose model runs in a child process: ``child``, which runs nothing yet, to begin with.

    Raises:
        InternalError: the model in it cannot be started.
    """

    def __init__(self, blueprint: Blueprint, name: str, arguments: dict[str, str], child: ChildProcess) -> None:
        self._blueprint = blueprint
        self._name = name
        self._arguments = arguments
        self._numbers = itertools.count(1)
        self._open: dict[int, InferRequest] = {}
        self._packet: Packet | None = None
        """Those of the open requests that :meth:`execute` is going to answer if the process cannot."""
        self._pace = Pace(blueprint.ahead)
        self._ports: dict[LoopReader, LoopPort] = {}
        self._for_threads = 0
        """How many orders threads do before loops may again."""
        self._state = threading.Condition()
        self._closing = threading.Event()
        self._given_up = ""
        self._fruitless = 0
        """How many processes in a row ended without having answered a request."""
        self._child: ChildProcess | None = None
        self.asks = False
        """Whether the model has something to say about its readiness."""
        self._asked: dict[int, Future[bool]] = {}
        self._starting: ChildProcess | None = None
        self._restarter: threading.Thread | None = None
        self._start(child)
        if not self._install(child):
            raise InternalError(f"Stub process '{name}' is not healthy: {child.post_mortem()}")

    @property
    def child(self) -> ChildProcess | None:
        """The process at the moment; None while there is none."""
        return self._child

    @property
    def given_up(self) -> bool:
        """Whether no process is going to be started any more."""
        return bool(self._given_up)

    @property
    def ahead(self) -> int:
        """How many requests :meth:`execute_each` should get at once. A decoupled model gets one: how long its
        ``execute`` takes says nothing about its answers."""
        return 1 if self._blueprint.decoupled else self._pace.ahead

    @property
    def ready_for_loop(self) -> bool:
        """Whether an event loop should do with :meth:`begin_each`: what needs a thread keeps loops away for a while.

        A decoupled model's responses come on the supervising thread, which a loop must not wait for.
        """
        return self._child is not None and not self._blueprint.decoupled and not self._for_threads

    def execute(self, requests: Sequence[InferRequest]) -> None:
        """Hand the batch to the process. Whatever happens to it, every request is answered."""
        self._perform(Order([requests], self._numbers, lambda *_: None, None))

    def execute_each(self, requests: Sequence[InferRequest], executed: Executed, returned: Returned) -> None:
        """Hand them to the process at once, which executes one after the other.

        Each is answered, or comes back: if the one before takes long, or the process ends before it begins.
        """
        self._perform(Order([(request,) for request in requests], self._numbers, executed, returned))

    def begin_each(
        self,
        requests: Sequence[InferRequest],
        executed: Executed,
        returned: Returned,
        over: Callable[[Exception | None], None],
        reader: LoopReader,
    ) -> bool:
        """See :class:`QueueingInstance`."""
        child = self._child
        if child is None:
            return False
        order = Order([(request,) for request in requests], self._numbers, executed, returned)
        order.over = over
        begun = False
        self._admit(order)
        try:
            order.write()
            begun = child.begin(Kind.EXECUTE, order.body, order.packer)
        except (RepoAgentError, TypeError, ValueError, OSError, PeerGoneError):
            pass  # Who waits for it finds the same, and deals with it.
        finally:
            if not begun:
                self._withdraw(order)
        if begun:
            self._port(reader).begin(child, order)
        return begun

    def _port(self, reader: LoopReader) -> LoopPort:
        port = self._ports.get(reader)
        if port is None:
            port = self._ports[reader] = LoopPort(reader, self, lambda: self._ports.pop(reader, None))
        return port

    def _perform(self, order: Order) -> None:
        if self._for_threads:
            self._for_threads -= 1
        self._admit(order)
        try:
            order.write()
            child = self._exchange(order)
        except BaseException as error:
            if not self._gave_back(order, error):
                raise
            return
        self.free()
        self.settle(order, child)

    def _admit(self, order: Order) -> None:
        self._packet = order.packet
        self._open.update(order.requests)

    def _withdraw(self, order: Order) -> None:
        """Nothing was done of it."""
        for number in order.packet.numbers:
            self._open.pop(number, None)
        self._packet = None

    def _gave_back(self, order: Order, error: BaseException) -> bool:
        """Nothing was done of it, because of ``error``: by itself, each finds out whether it was the reason."""
        self._withdraw(order)
        gives = order.packet.divisible and isinstance(error, RepoAgentError | TypeError | ValueError)
        if gives:
            order.packet.give_all_back()
        return gives

    def _exchange(self, order: Order) -> ChildProcess:
        """Have some process do it; returns the one that did, or broke down over it."""
        child: ChildProcess | None = None
        while True:
            child = self._usable(child)
            if self._has_done(order, child, partial(child.converse, Kind.EXECUTE, order.body, order.packer)):
                return child

    def _has_done(self, order: Order, child: ChildProcess, talk: Callable[..., Message]) -> bool:
        """Have it done by ``talk``; False if nothing of it has reached the process."""
        packet = order.packet
        hear = partial(self._hear, child, packet)
        ask_back = AskBack(_PATIENCE_SECONDS, packet.numbers[-1]) if packet.divisible else None
        try:
            hear(talk(ends=is_last, heard=hear, ask_back=ask_back))
            if not packet.over:
                raise ProtocolError("it ends without having executed all that it was given")
        except UndeliveredError:
            return False  # It ended while it had nothing to do; the next one will do it.
        except (PeerGoneError, ProtocolError) as error:
            self._broken(child, packet, error)
        except OSError as error:
            self._fail(packet.numbers, InternalError(f"the inputs of '{self._name}' cannot be handed over: {error}"))
        return True

    def conclude(self, order: Order, child: ChildProcess, first: Message | None, fault: ProtocolError | None) -> None:
        """Bring what a loop began to its end, on a thread of its own: whatever is out of the ordinary takes time."""

        def talk(**how: Any) -> Message:
            if fault is not None:
                child.over()
                raise fault
            return child.go_on(first, **how)

        self._for_threads = _FOR_THREADS
        failure: Exception | None = None
        try:
            if not self._has_done(order, child, talk):
                child = self._exchange(order)
        except Exception as error:
            failure = None if self._gave_back(order, error) else error
        else:
            self.free()
            self.settle(order, child)
        order.over(failure)

    def settle(self, order: Order, child: ChildProcess) -> None:
        """It is done. If the process ends later, that fails what it has not answered."""
        if child.exited.is_set():
            self._fail(order.packet.numbers, self._unhealthy())

    def free(self) -> None:
        """What was begun is over, and something else can be."""
        self._packet = None

    def respond(self, body: list[Any], message: Message) -> None:
        """Pass a response on to whoever waits for it; one that nobody waits for any more is dropped."""
        answer = self._answer(body, message)
        if answer is not None:
            answer.send()

    def _answer(self, body: list[Any], message: Message) -> Ready | None:
        number, response, final = response_of(body, message.payload)
        request = self._open.pop(number, None) if final else self._open.get(number)
        if request is None:
            return None
        if response is not None:
            response.id, response.model_name = request.asked.id, request.model_name
            response.model_version = self._blueprint.model_version
            self._fruitless = 0
        return Ready(request, response, final)

    def is_cancelled(self, number: int) -> bool:
        request = self._open.get(number)
        return request is not None and request.cancelled

    def is_ready(self) -> bool:
        """What the model's ``is_ready`` returns; waits for it as long as the process is there.

        Raises:
            InternalError: it raised, or returned something else.
            UnavailableError: the process is not there, or ended meanwhile.
        """
        number, answer = next(self._numbers), Future[bool]()
        with self._state:
            child = self._child
            if child is None:
                raise UnavailableError(f"Stub process '{self._name}' is not healthy")
            self._asked[number] = answer
        child.tell(Kind.READY, number)
        return answer.result()

    def heard_ready(self, number: int, ready: bool, error: str) -> None:
        with self._state:
            answer = self._asked.pop(number, None)
        if answer is None:
            return
        if error:
            answer.set_exception(InternalError(error))
        else:
            answer.set_result(ready)

    def close(self) -> None:
        """Finalize the model and end the process; one that does not end in time is killed."""
        with self._state:
            self._closing.set()
            self._state.notify_all()
            child, starting, restarter = self._child, self._starting, self._restarter
        if child is not None:
            child.finish(self._blueprint.grace_seconds)
        elif starting is not None:
            starting.kill()
        if restarter is not None:
            restarter.join()

    def _usable(self, gone: ChildProcess | None) -> ChildProcess:
        """The process, once it is there and not the one that is known to have ``gone``.

        Raises:
            UnavailableError: it is not going to be.
        """
        with self._state:
            self._await_child(gone, None)
            if self._child in (None, gone):
                reason = self._given_up or "it is being unloaded"
                raise UnavailableError(f"Stub process '{self._name}' is not healthy: {reason}")
            assert self._child is not None
            return self._child

    def _await_child(self, gone: ChildProcess | None, timeout: float | None) -> None:
        """Wait for another process than ``gone``, or until none will come. Holds the lock."""
        self._state.wait_for(
            lambda: self._child not in (None, gone) or self._given_up or self._closing.is_set(), timeout
        )

    def _hear(self, child: ChildProcess, packet: Packet, message: Message) -> None:
        """Pass on what the process has done of ``packet``."""
        answers: list[Ready] = []
        try:
            self.hear(child, packet, message, answers)
        finally:
            for answer in answers:
                answer.send()

    def hear(self, child: ChildProcess, packet: Packet, message: Message, answers: list[Ready]) -> None:
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
                packet.note(number, begin, end)
                self._pace.note(end - begin)
            for body in bodies:
                answer = self._answer(body, message)
                if answer is not None:
                    answers.append(answer)
        except ProtocolError:
            raise
        except Exception as error:  # There is no end of what can be wrong, and none of it may end the caller.
            raise ProtocolError(f"an answer cannot be read: {type(error).__name__}: {error}") from error

    def take_back(self, numbers: list[int]) -> None:
        packet = self._packet
        if packet is None:
            raise ProtocolError("requests come back that were not sent ahead")
        packet.give_back(numbers)
        for number in numbers:
            self._open.pop(number, None)

    def _broken(self, child: ChildProcess, packet: Packet, error: Exception) -> None:
        """The process has ended, or must."""
        child.kill()
        child.exited.wait()
        unbegun = packet.unbegun(child.begun)
        self._fail([number for number in packet.numbers if number not in unbegun], self._unhealthy())
        if unbegun:
            self.take_back(unbegun)
        if isinstance(error, ProtocolError):
            logger.error("the process of model instance '%s' was killed: %s", self._name, error)
        with self._state:
            self._await_child(child, _SETTLING_SECONDS)

    def _unhealthy(self) -> InternalError:
        return InternalError(
            f"Failed to process the request(s) for model instance '{self._name}', message: Stub process "
            f"'{self._name}' is not healthy."
        )

    def _fail(self, numbers: Sequence[int], error: RepoAgentError) -> None:
        for number in numbers:
            request = self._open.pop(number, None)
            if request is not None:
                answer_error(request, error, self._blueprint.model_version)

    def _start(self, child: ChildProcess) -> None:
        """Have the model initialised in ``child``.

        Raises:
            InternalError: that failed; nothing is left of the process.
        """
        services = Services(self._blueprint.core, self, self._blueprint.model_name)

        def ended(child: ChildProcess) -> None:
            services.abandon()
            self._ended(child)

        child.attend(services.handle, ended)
        with self._state:
            self._starting = child
            if self._closing.is_set():
                child.kill()
        body = {**self._blueprint.description(), "arguments": self._arguments}
        answer = first_answer(child, Kind.INITIALIZE, body, "initialize")
        self.asks = isinstance(answer, dict) and answer.get("asks") is True

    def _install(self, child: ChildProcess) -> bool:
        """Let requests go to ``child``; False if it has ended already and nobody else has noticed."""
        with self._state:
            self._starting = None
            closing = self._closing.is_set()
            if not closing:
                if child.exited.is_set():
                    return False
                self._child = child
                self._state.notify_all()
        if closing:
            child.finish(self._blueprint.grace_seconds)
        return True

    def _ended(self, child: ChildProcess) -> None:
        """A process is gone: answer what it worked on and, if nobody wanted that, start another one."""
        with self._state:
            if self._child is not child:
                return
            self._child = None
            closing = self._closing.is_set()
            asked, self._asked = self._asked, {}
            self._restarter = None if closing else threading.current_thread()
        for answer in asked.values():
            answer.set_exception(UnavailableError(f"Stub process '{self._name}' is not healthy"))
        packet = self._packet
        kept = set(packet.numbers if packet is not None else ())
        self._fail([number for number in list(self._open) if number not in kept], self._unhealthy())
        if not closing:
            _models.error(
                "Stub process '%s' is unhealthy and it will be restarted: %s", self._name, child.post_mortem()
            )
            self._start_again()

    def _start_again(self) -> None:
        failures = 0
        while failures < _ATTEMPTS:
            self._fruitless += 1
            if self._closing.wait(_pause(self._fruitless - 1)):
                return
            try:
                child = new_child(self._blueprint, self._name)
                self._start(child)
            except Exception as error:
                if self._closing.is_set():
                    return
                failures += 1
                reason = str(error)
                _models.error("the process of model instance '%s' did not start again: %s", self._name, reason)
            else:
                if self._install(child):
                    return
        self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        with self._state:
            self._given_up = (
                f"it could not be started again, {_ATTEMPTS} times in a row; load the model again. At last: {reason}"
            )
            self._state.notify_all()


def _pause(failures: int) -> float:
    """Seconds to wait before the next start: none the first time."""
    return 0.0 if failures <= 0 else min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(failures - 1, 10))
