"""``repoagent`` as a process of its own, without the second that its imports take.

A program is forked off a process that has imported them, and is otherwise as one that was started: with arguments,
variables, a working directory, descriptors and a number of its own. Tests of how a program starts, or of what it shows
of itself in ``/proc``, start an interpreter instead.
"""

import gc
import importlib.metadata
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_MOST: Final = 1 << 17
"""Bytes of arguments and variables."""


class Warm:
    """The process that programs are forked off; it ends with this one, or when it is closed."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MOST)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def run(
        self,
        words: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | str = ".",
        timeout: float = 120,
    ) -> "subprocess.CompletedProcess[str]":
        """``repoagent WORDS`` to its end, with nothing to read, as ``subprocess.run`` with what it prints."""
        texts = [*map(str, words)]
        order = json.dumps([texts, dict(os.environ if env is None else env), str(Path(cwd).resolve())]).encode()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            reading, writing = os.pipe()
            with open(reading, encoding="ascii") as report, open(os.devnull, "rb") as nothing:
                files = [nothing.fileno(), out.fileno(), errors.fileno(), writing]
                socket.send_fds(self._orders, [order], files)
                os.close(writing)
                program = int(report.readline())
                if not select.select([report], [], [], timeout)[0]:
                    os.kill(program, signal.SIGKILL)
                    raise subprocess.TimeoutExpired(texts, timeout)
                status = int(report.readline())
            printed = []
            for file in (out, errors):
                file.seek(0)
                printed.append(file.read().decode())
        return subprocess.CompletedProcess(texts, status, *printed)

    def close(self) -> None:
        """End it."""
        self._orders.close()
        self._process.kill()
        self._process.wait()


def _serve(orders: socket.socket) -> None:
    """Fork a program for each order, until there are none; returns in the program as well."""
    import repoagent.cli.check
    import repoagent.cli.fetch
    import repoagent.cli.prepare
    import repoagent.cli.run
    import repoagent.loader.assembly  # noqa: F401

    for group in ("repoagent", "repoagent.agents"):
        for entry in importlib.metadata.entry_points(group=group):
            entry.load()
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked"
    gc.freeze()
    while True:
        order, files, _, _ = socket.recv_fds(orders, 2 * _MOST, 4)
        if not order:
            return
        if not os.fork():
            _begin(orders, *json.loads(order), *files)
            return
        for file in files:
            os.close(file)
        os.wait()


def _begin(orders: socket.socket, words: Any, env: Any, cwd: str, *files: int) -> None:
    """Become the program, while another process reports its number and its status."""
    if os.fork():
        os._exit(0)
    orders.close()
    *standard, report = files
    program = os.fork()
    if program:
        os.write(report, b"%d\n" % program)
        for file in (*standard, 0, 1, 2):
            os.close(file)
        os.write(report, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
        os._exit(0)
    os.close(report)
    for number, file in enumerate(standard):
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["repoagent", *words]
    from repoagent.cli.main import main

    main()


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    with socket.socket(fileno=int(sys.argv[1])) as _orders:
        _serve(_orders)
