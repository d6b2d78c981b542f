"""Running a program for an agent."""

import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from repoagent.errors import InternalError, InvalidArgumentError, UnavailableError
from repoagent.storage.secrets.programs import run_program

__all__ = ["run_child"]

_STDERR_LINES: Final = 10


def run_child(
    argv: Sequence[str],
    *,
    timeout: float | None,
    env: Mapping[str, str] | None,
    cancelled: Callable[[], bool],
) -> "subprocess.CompletedProcess[str]":
    """Run ``argv`` to its end; see :meth:`repoagent.api.AgentModel.run_child`."""
    if isinstance(argv, str) or not argv:
        raise InvalidArgumentError("run_child takes a list, the program and its arguments: ['openssl', 'version']")
    try:
        done = run_program(argv, timeout=timeout, env=env, cancelled=cancelled)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"'{argv[0]}' was killed after {timeout:g} s") from None
    except OSError as error:
        raise InternalError(f"cannot run '{argv[0]}': {error.strerror or error}") from error
    output, errors = _text(done.stdout), _text(done.stderr)
    if done.returncode != 0:
        raise InternalError(_failure(argv, done.returncode, errors))
    return subprocess.CompletedProcess(done.args, done.returncode, output, errors)


def _text(data: bytes) -> str:
    return data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def _failure(argv: Sequence[str], status: int, errors: str) -> str:
    how = f"was ended by signal {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    last = "\n".join(errors.strip().splitlines()[-_STDERR_LINES:])
    return f"'{argv[0]}' {how}: {last}" if last else f"'{argv[0]}' {how} and wrote nothing to stderr"
