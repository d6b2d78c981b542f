"""Keeps the process of one instance running: starts another one when it ends, and gives up when that fails."""

import logging
import subprocess
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from repoagent.errors import InternalError, RepoAgentError, UnavailableError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.backends.python.model.context import CoreAccess
from repoagent.serving.backends.python.process.channel import Kind, PeerGoneError
from repoagent.serving.backends.python.process.child_process import ChildProcess, Program
from repoagent.serving.backends.python.process.codec import error_of
from repoagent.serving.backends.python.process.memory import ProtocolError
from repoagent.serving.backends.python.process.open_requests import OpenRequests
from repoagent.serving.backends.python.process.services import Services
from repoagent.serving.instances.left_behind import unless_cancelled

_models: Final = logging.getLogger("repoagent.models")
_UNREADABLE: Final = "its answer cannot be read"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What every process of a version of a model is made from."""

    program: Program
    core: CoreAccess
    model_name: str
    model_version: str
    model_dir: str
    """The directory of the version."""
    file: str
    decoupled: bool
    grace_seconds: float
    """How long a process may take to end."""
    limits: Limits = DEFAULT_LIMITS
    """What each process may take of the server."""
    ahead: int = 1
    """How many requests a process is given at once, at most."""
    spin_ns: int = 0
    """How long a process that has nothing to do looks for more before it sleeps."""

    def description(self) -> dict[str, Any]:
        """The body of the first message to a process."""
        names = ("model_name", "model_version", "model_dir", "file", "decoupled", "spin_ns")
        # What the server's log shows: a child process sends it nothing else.
        levels = {"": logging.getLogger().getEffectiveLevel(), "repoagent.models": _models.getEffectiveLevel()}
        return {name: getattr(self, name) for name in names} | {"log_levels": levels}


def new_child(spec: ProcessSpec, name: str) -> ChildProcess:
    """A process, in which nothing of the model has been run yet; ``InternalError`` if it cannot be started."""
    try:
        return ChildProcess(spec.program, spec.model_name, name, spec.limits)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        command = spec.program.command[0]
        raise InternalError(f"the process '{command}' of model instance '{name}' cannot be started: {error}") from error


def first_answer(child: ChildProcess, kind: Kind, body: Any, what: str) -> Any:
    """What the process answers to the message that makes it a model's.

    When this raises, the process is gone.

    Raises:
        RepoAgentError: it failed, with the error of the model's code.
        CancelledError: the load that waits for it was cancelled, whatever the model's code was at.
        InternalError: it ended, cannot be given the message, or its answer cannot be read.
    """
    try:
        answer = unless_cancelled(partial(child.work.call, kind, body))
        if answer.kind == Kind.DONE:
            return answer.body
        if answer.kind == Kind.FAILED:
            raise error_of(answer.body)
        raise ProtocolError(f"a message of kind {answer.kind} answers it")
    except Exception as error:
        _end(child)
        if isinstance(error, RepoAgentError):
            raise
        if isinstance(error, PeerGoneError):
            reason = child.post_mortem()
        elif isinstance(error, OSError):
            reason = f"it cannot be given its configuration: {error}"
        else:  # There is no end of what can be wrong with an answer.
            reason = _UNREADABLE
        raise InternalError(f"Stub process '{child.name}' is not healthy: in {what}, {reason}") from error


def _end(child: ChildProcess) -> None:
    child.kill()
    child.exited.wait()


def completed_in_child(spec: ProcessSpec, config: str) -> Any:
    """What the model's ``auto_complete_config`` makes of ``config``, both JSON; None if there is no such function.
    Raises ``InternalError`` if it failed, or its process ended."""
    name = f"{spec.model_name}_autocomplete"
    services = Services(spec.core, OpenRequests(name, spec.model_version), spec.model_name, spec.limits)
    child = new_child(spec, name)
    child.set_handlers(services.handle, lambda _: services.abandon())
    result = first_answer(child, Kind.COMPLETE, {**spec.description(), "config": config}, "auto_complete_config")
    # No one need wait for its end.
    ending = threading.Thread(target=child.finish, args=(spec.grace_seconds,), name=f"{child.name}-end", daemon=True)
    try:
        ending.start()
    except RuntimeError:  # The machine has no thread left.
        _end(child)
    if not (result is None or isinstance(result, dict)):
        raise InternalError(f"Stub process '{name}' is not healthy: in auto_complete_config, {_UNREADABLE}")
    return result


_ATTEMPTS: Final = 5
"""How often in a row a process may fail to start again before its instance is given up."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


class Supervisor:
    """Supervises one process after the other, each with the same model in it, until it is closed.

    ``requests`` takes what a process reports of them, and learns of its end before another one is started.
    """

    def __init__(self, spec: ProcessSpec, name: str, arguments: dict[str, str], requests: OpenRequests) -> None:
        self._spec = spec
        self._name = name
        self._arguments = arguments
        self._requests = requests
        self._state = threading.Condition()
        self._closing = threading.Event()
        self._starting: ChildProcess | None = None
        self._restarter: threading.Thread | None = None
        self._given_up = ""
        self._ended_unused = 0
        """How many processes in a row ended without having answered a request."""
        self.child: ChildProcess | None = None
        """The process at the moment; None while there is none."""
        self.asks = False
        """Whether the model has a function for its readiness."""

    @property
    def given_up(self) -> bool:
        """Whether no process is going to be started any more."""
        return bool(self._given_up)

    def start(self, child: ChildProcess) -> None:
        """Begin with ``child``, which runs nothing yet; ``InternalError`` if the model cannot be started in it."""
        self._initialize(child)
        if not self._install(child):
            raise InternalError(f"Stub process '{self._name}' is not healthy: {child.post_mortem()}")

    def usable(self, gone: ChildProcess | None) -> ChildProcess:
        """The process, once there is another one than ``gone``; ``UnavailableError`` if there is not going to be."""
        with self._state:
            self._await_child(gone, None)
            if self.child in (None, gone):
                reason = self._given_up or "it is being unloaded"
                raise UnavailableError(f"Stub process '{self._name}' is not healthy: {reason}")
            assert self.child is not None
            return self.child

    def wait_for_another(self, gone: ChildProcess, seconds: float) -> None:
        """Wait up to ``seconds`` for another process than ``gone``, or until none will come."""
        with self._state:
            self._await_child(gone, seconds)

    def close(self) -> None:
        """Finalize the model and end the process; one that does not end in time is killed."""
        with self._state:
            self._closing.set()
            self._state.notify_all()
            child, starting, restarter = self.child, self._starting, self._restarter
        if child is not None:
            child.finish(self._spec.grace_seconds)
        elif starting is not None:
            starting.kill()
        if restarter is not None:
            restarter.join()

    def _await_child(self, gone: ChildProcess | None, timeout: float | None) -> None:
        """Wait for another process than ``gone``, or until none will come. Holds the lock."""
        self._state.wait_for(
            lambda: self.child not in (None, gone) or self._given_up or self._closing.is_set(), timeout
        )

    def _initialize(self, child: ChildProcess) -> None:
        """Have the model initialised in ``child``; nothing is left of the process if this raises."""
        services = Services(self._spec.core, self._requests, self._spec.model_name, self._spec.limits)

        def ended(child: ChildProcess) -> None:
            try:
                services.abandon()
            finally:
                self._ended(child)

        child.set_handlers(services.handle, ended)
        with self._state:
            self._starting = child
            if self._closing.is_set():
                child.kill()
        body = {**self._spec.description(), "arguments": self._arguments}
        answer = first_answer(child, Kind.INITIALIZE, body, "initialize")
        self.asks = isinstance(answer, dict) and answer.get("asks") is True

    def _install(self, child: ChildProcess) -> bool:
        """Let requests go to ``child``; False if it has ended already and no one else has noticed."""
        with self._state:
            self._starting = None
            closing = self._closing.is_set()
            if not closing:
                if child.exited.is_set():
                    return False
                self.child = child
                self._state.notify_all()
        if closing:
            child.finish(self._spec.grace_seconds)
        return True

    def _ended(self, child: ChildProcess) -> None:
        """A process is gone: if no one wanted that, start another one."""
        with self._state:
            if self.child is not child:
                return
            self.child = None
            closing = self._closing.is_set()
            self._restarter = None if closing else threading.current_thread()
        self._requests.process_ended()
        if closing:
            return
        try:
            _models.error(
                "Stub process '%s' is unhealthy and it will be restarted: %s", self._name, child.post_mortem()
            )
            self._start_again()
        except Exception as error:  # Such as one of the operator's log handlers; requests wait for the next process.
            self._give_up(f"{type(error).__name__}: {error}")
            raise

    def _start_again(self) -> None:
        failures = 0
        while failures < _ATTEMPTS:
            if self._closing.wait(self._pause()):
                return
            try:
                child = new_child(self._spec, self._name)
                self._initialize(child)
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

    def _pause(self) -> float:
        """Seconds to wait before the next start: none if the last process had answered a request."""
        if self._requests.answered:
            self._requests.answered, self._ended_unused = False, 0
        earlier, self._ended_unused = self._ended_unused, self._ended_unused + 1
        return 0.0 if not earlier else min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(earlier - 1, 10))

    def _give_up(self, reason: str) -> None:
        with self._state:
            self._given_up = (
                f"it could not be started again, {_ATTEMPTS} times in a row; load the model again. At last: {reason}"
            )
            self._state.notify_all()
