"""Starting a process of a model, and the first thing that it is asked to do."""

import contextlib
import logging
import subprocess
import threading
from dataclasses import dataclass
from typing import Any, Final

from repoagent.errors import InternalError, RepoAgentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.backends.python.model.context import CoreAccess
from repoagent.serving.backends.python.process.channel import Kind, Message, PeerGoneError
from repoagent.serving.backends.python.process.child_process import ChildProcess, Program
from repoagent.serving.backends.python.process.codec import error_of
from repoagent.serving.backends.python.process.memory import ProtocolError
from repoagent.serving.backends.python.process.services import Services

__all__ = ["ProcessSpec", "completed_in_child", "first_answer", "new_child"]

_models: Final = logging.getLogger("repoagent.models")


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
        return {name: getattr(self, name) for name in names} | {"log_levels": _log_levels()}


def _log_levels() -> dict[str, int]:
    """What the server's log shows: a child process sends it nothing else."""
    return {"": logging.getLogger().getEffectiveLevel(), "repoagent.models": _models.getEffectiveLevel()}


def new_child(spec: ProcessSpec, name: str) -> ChildProcess:
    """A process of a model, in which nothing of the model has been run yet.

    Raises:
        InternalError: it cannot be started.
    """
    try:
        return ChildProcess(spec.program, spec.model_name, name, spec.limits)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        command = spec.program.command[0]
        raise InternalError(f"the process '{command}' of model instance '{name}' cannot be started: {error}") from error


def first_answer(child: ChildProcess, kind: Kind, body: Any, what: str) -> Any:
    """What the process answers to the message that makes it a model's.

    Raises:
        RepoAgentError: it failed, with the error of the model's code.
        InternalError: it ended, cannot be given the message, or answers with nonsense. In each case it is gone.
    """
    place = f"Stub process '{child.name}' is not healthy: in {what}, "
    try:
        answer = child.work.exchange(kind, body)
    except PeerGoneError as error:
        _end(child)
        raise InternalError(place + child.post_mortem()) from error
    except ProtocolError as error:
        _end(child)
        raise _unreadable(child, what) from error
    except OSError as error:
        _end(child)
        raise InternalError(f"{place}it cannot be given its configuration: {error}") from error
    if answer.kind == Kind.DONE:
        return answer.body
    _end(child)
    raise _failure(answer) or _unreadable(child, what)


def _failure(answer: Message) -> RepoAgentError | None:
    """The error that a process reports, unless it is nonsense."""
    if answer.kind == Kind.FAILED:
        with contextlib.suppress(Exception):  # There is no end of what can be wrong.
            return error_of(answer.body)
    return None


def _unreadable(child: ChildProcess, what: str) -> InternalError:
    return InternalError(f"Stub process '{child.name}' is not healthy: in {what}, its answer cannot be read")


def _end(child: ChildProcess) -> None:
    child.kill()
    child.exited.wait()


def completed_in_child(spec: ProcessSpec, config: str) -> Any:
    """What the model's ``auto_complete_config`` makes of ``config``, both JSON; None if there is no such function.

    Raises:
        InternalError: it failed, or its process ended.
    """
    services = Services(spec.core, _NoRequests(), spec.model_name, spec.limits)
    child = new_child(spec, f"{spec.model_name}_autocomplete")
    child.attend(services.handle, lambda _: services.abandon())
    result = first_answer(child, Kind.COMPLETE, {**spec.description(), "config": config}, "auto_complete_config")
    # Nobody need wait for its end.
    ending = threading.Thread(target=child.finish, args=(spec.grace_seconds,), name=f"{child.name}-end", daemon=True)
    try:
        ending.start()
    except RuntimeError:  # The machine has no thread left.
        _end(child)
    if not (result is None or isinstance(result, dict)):
        raise _unreadable(child, "auto_complete_config")
    return result


class _NoRequests:
    """The requests of a process that gets none."""

    def respond(self, body: list[Any], message: Message) -> None:
        raise ProtocolError("there is no request to respond to")

    def is_cancelled(self, number: int) -> bool:
        return False

    def take_back(self, numbers: list[int]) -> None:
        raise ProtocolError("there is no request to give back")

    def heard_ready(self, number: int, ready: bool, error: str) -> None:
        raise ProtocolError("its readiness was not asked for")
