"""The process between ``repoagent run`` and its command: it passes signals on, and ends all that the command started.

Run as a program: it imports nothing of this project, has one thread, and stays when ``run`` is killed. Processes whose
parent ends become its children (``PR_SET_CHILD_SUBREAPER``), whatever session they have, so it finds and reaps them. If
``run`` ends it stops the command (``PR_SET_PDEATHSIG``); if it is killed itself, so is the command, and ``run`` ends
the rest.
"""

import ctypes
import errno
import math
import os
import signal
import sys
import time
from collections.abc import Set
from contextlib import suppress
from typing import Final, NoReturn

_PDEATHSIG: Final = 1
_CHILD_SUBREAPER: Final = 36
_STOPPING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_FROM_TERMINAL: Final = frozenset({signal.SIGINT, signal.SIGQUIT})
"""A terminal sends them to every process of the group by itself."""
_WATCHED: Final = _STOPPING | {signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD}
_LONGEST_WAIT: Final = 3600.0
_LEFT_SECONDS: Final = 5.0
"""How long what the command left running has to end by itself."""

_KILLED_SECONDS: Final = 10.0
"""How long killed processes may take; those of another user cannot be killed at all."""


def supervise(parent: int, patience: float, report: int, shared: bool, program: str, command: list[str]) -> int:
    """Run ``command`` to its end, and return the status for the shell.

    Args:
        parent: The process whose end stops the command.
        patience: Seconds between the first signal to stop and SIGKILL.
        report: A descriptor that gets the error number if the command cannot be started, and is closed if it was.
        shared: Whether the command stays in the process group, to which a terminal sends its signals.
        program: The file to execute.
        command: What it is called, and its arguments.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    adopt_orphans()
    _prctl(_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return 128 + signal.SIGTERM
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        _become(program, command, supervisor, report, shared)
    os.close(report)
    status = _wait(child, patience, _FROM_TERMINAL if shared else frozenset())
    end_the_rest(patience)
    return status


def adopt_orphans() -> None:
    """From now on processes below this one whose parents end become its children."""
    _prctl(_CHILD_SUBREAPER, 1)


def _become(program: str, command: list[str], supervisor: int, report: int, shared: bool) -> NoReturn:
    """Replace this process by the command."""
    try:
        _prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # it was killed before that held
            os.kill(os.getpid(), signal.SIGKILL)
        if not shared:
            os.setpgid(0, 0)
        os.set_inheritable(report, False)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execv(program, command)  # noqa: S606 - the operator's command
    except OSError as error:
        os.write(report, str(error.errno).encode())
        os._exit(127 if error.errno in (errno.ENOENT, errno.ENOTDIR) else 126)


def _wait(child: int, patience: float, dropped: frozenset[signal.Signals]) -> int:
    deadline, stopping = math.inf, False
    while True:
        seconds = max(0.0, min(deadline - time.monotonic(), _LONGEST_WAIT))
        info: signal.struct_siginfo | None = signal.sigtimedwait(_WATCHED, seconds)
        if info is None:
            if time.monotonic() < deadline:
                continue
            deadline = math.inf
            _signal_all(descendants(), signal.SIGKILL)
        elif info.si_signo == signal.SIGCHLD:
            status = _reap().get(child)
            if status is not None:
                return status
        else:
            if info.si_signo not in dropped:
                with suppress(ProcessLookupError):
                    os.kill(child, info.si_signo)
            if info.si_signo in _STOPPING and not stopping:
                stopping = True
                deadline = time.monotonic() + patience


def end_the_rest(patience: float, spared: Set[tuple[int, str]] = frozenset()) -> None:
    """End what the command has left, but for ``spared``: SIGTERM first, then SIGKILL until nothing is there."""
    asked: set[tuple[int, str]] = set()
    end = time.monotonic() + min(patience, _LEFT_SECONDS)
    while (left := descendants() - spared) and time.monotonic() < end + _KILLED_SECONDS:
        if time.monotonic() < end:
            _signal_all(left - asked, signal.SIGTERM)
            asked |= left
        else:
            _signal_all(left, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)
        _reap()


def _reap() -> dict[int, int]:
    """Collect every child that has ended: its status for the shell by its number."""
    ended = {}
    with suppress(ChildProcessError):
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            code = os.waitstatus_to_exitcode(status)
            ended[process] = 128 - code if code < 0 else code
    return ended


def descendants() -> set[tuple[int, str]]:
    """Every process below this one, with the time of its start, which distinguishes two with one number."""
    parents = {}
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            _, parent, started = _stat(int(entry))
            parents[int(entry), started] = parent
    found: set[tuple[int, str]] = set()
    above = {os.getpid()}
    while new := {process for process, parent in parents.items() if parent in above} - found:
        found |= new
        above = {number for number, _ in new}
    return found


def _stat(process: int) -> tuple[str, int, str]:
    """State, parent and time of the start."""
    with open(f"/proc/{process}/stat", "rb") as file:
        # The name of the program, in brackets, may hold anything.
        fields = file.read().rpartition(b")")[2].split()
    return fields[0].decode(), int(fields[1]), fields[19].decode()


def _signal_all(processes: set[tuple[int, str]], number: signal.Signals) -> None:
    for process, started in processes:
        with suppress(OSError):  # it has ended
            held = os.pidfd_open(process)
            try:
                if _stat(process)[2] == started:
                    signal.pidfd_send_signal(held, number)
            finally:
                os.close(held)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    _parent, _patience, _report, _shared, _program, *_command = sys.argv[1:]
    sys.exit(supervise(int(_parent), float(_patience), int(_report), _shared == "shared", _program, _command))
