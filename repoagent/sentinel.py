"""What ends the processes that a server leaves behind when it has gone, killed or not.

The kernel ends a server's children with it (``PR_SET_PDEATHSIG``), but not theirs, and programs leave their process
group. So whatever the server starts inherits a variable, and hands it on. This file, run as a program beside the
server, waits for the server's end and then kills every process that has it.
"""

import contextlib
import logging
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

NAME: Final = "REPOAGENT_STARTED_BY"
_PATIENCE_SECONDS: Final = 60
_TICK_SECONDS: Final = 0.02
_LIBRARIES: Final = "LD_LIBRARY_PATH"


class _Sentinel(subprocess.Popen[bytes]):
    """Outlives the process that started it, on purpose: that is no resource to warn of when the process ends."""

    def __del__(self) -> None:
        pass


_lock: Final = threading.Lock()
_sentinels: Final[dict[int, tuple[str, _Sentinel | None]]] = {}
"""By the process that started it: a fork of the server is a server of its own."""


def mark() -> dict[str, str]:
    """The variable that what this process starts has to inherit. The first call starts the sentinel."""
    with _lock:
        pid = os.getpid()
        value, sentinel = _sentinels.get(pid) or (secrets.token_hex(16), None)
        if sentinel is None or sentinel.poll() is not None:  # A model may have ended it, or the kernel for its memory.
            _sentinels[pid] = value, _start(pid, value)
        return {NAME: value}


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """The variable in the environment of this process, which code of models and agents in it hands on by itself."""
    before = os.environ.get(NAME)
    os.environ.update(mark())
    try:
        yield
    finally:
        os.environ.pop(NAME, None)
        if before is not None:
            os.environ[NAME] = before


def _start(pid: int, value: str) -> _Sentinel | None:
    try:
        return _Sentinel(
            [sys.executable, "-I", "-S", os.path.abspath(__file__), str(pid), value],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={_LIBRARIES: os.environ[_LIBRARIES]} if _LIBRARIES in os.environ else {},
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        logging.getLogger(__name__).warning(
            "the process that ends what is left of models when this one is killed cannot be started: %s", error
        )
        return None


def _main(server: int, value: str) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # As an init system sends them to every process of a service.
    with contextlib.suppress(ProcessLookupError):
        ended = os.pidfd_open(server)
        if os.getppid() == server:
            select.select([ended], [], [])
    end = time.monotonic() + _PATIENCE_SECONDS
    wanted = f"{NAME}={value}".encode()
    while _kill_all(wanted) and time.monotonic() < end:
        time.sleep(_TICK_SECONDS)


def _kill_all(wanted: bytes) -> int:
    """Kill every process with the variable ``wanted``; how many there were."""
    found = 0
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with contextlib.suppress(OSError):  # It has gone, or is another user's.
            process = os.pidfd_open(int(entry))
            try:
                # Opened before: the number cannot become another process's in between.
                if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    found += 1
            finally:
                os.close(process)
    return found


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
