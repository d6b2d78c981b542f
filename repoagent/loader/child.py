"""Running a program for an agent, with an end when nobody waits any more."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from repoagent.errors import CancelledError, InternalError, UnavailableError

__all__ = ["run_child"]

_TICK_SECONDS = 0.05
_STDERR_LINES = 10


def run_child(
    argv: Sequence[str],
    *,
    timeout: float | None,
    env: Mapping[str, str] | None,
    cancelled: Callable[[], bool],
) -> "subprocess.CompletedProcess[str]":
    """Run ``argv`` to its end; see :meth:`repoagent.api.AgentModel.run_child`.

    The program gets a process group of its own, and whatever ends the wait early (``cancelled``, the timeout, an
    exception) kills the whole group and collects it.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    process = _start(argv, env)
    try:
        output, errors = _wait(process, argv, deadline, timeout, cancelled)
    except BaseException:
        _kill(process)
        raise
    if process.returncode != 0:
        raise InternalError(_failure(argv, process.returncode, errors))
    return subprocess.CompletedProcess(list(argv), process.returncode, output, errors)


def _start(argv: Sequence[str], env: Mapping[str, str] | None) -> "subprocess.Popen[str]":
    try:
        return subprocess.Popen(  # noqa: S603 - an agent is trusted code, and no shell is involved
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=None if env is None else {**os.environ, **env},
            start_new_session=True,
        )
    except OSError as error:
        raise InternalError(f"cannot run '{argv[0]}': {error.strerror or error}") from error


def _wait(
    process: "subprocess.Popen[str]",
    argv: Sequence[str],
    deadline: float | None,
    timeout: float | None,
    cancelled: Callable[[], bool],
) -> tuple[str, str]:
    while True:
        try:
            return process.communicate(timeout=_TICK_SECONDS)
        except subprocess.TimeoutExpired:
            if cancelled():
                raise CancelledError(f"'{argv[0]}' was killed because the load was cancelled") from None
            if deadline is not None and time.monotonic() >= deadline:
                raise UnavailableError(f"'{argv[0]}' was killed after {timeout:g} s") from None


def _kill(process: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.__exit__(None, None, None)  # closes the pipes and collects the process, without reading to their end


def _failure(argv: Sequence[str], status: int, errors: str) -> str:
    how = f"was ended by signal {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    last = "\n".join(errors.strip().splitlines()[-_STDERR_LINES:])
    return f"'{argv[0]}' {how}: {last}" if last else f"'{argv[0]}' {how} and wrote nothing to stderr"
