"""Processes of Python models, without the third of a second that the imports of each take.

A process is forked off one that has run ``stub.py`` up to its call of ``main``, and is a child of this process, as one
that was started: with arguments, descriptors, variables, a working directory and a process group of its own. Tests of
how a process starts, of what an interpreter reads of its variables, and of ``/proc/PID/environ`` start one instead; so
is a model whose interpreter is another.
"""

import contextlib
import ctypes
import gc
import importlib.util
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

_MOST: Final = 1 << 17
"""Bytes of arguments and variables."""
_SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER
_PROCESS: Final = Path(__file__).parents[1] / "repoagent" / "serving" / "backends" / "python" / "process"


class WarmModels:
    """The process that others are forked off; it ends with this one, or when it is closed."""

    def __init__(self) -> None:
        stub = str(_PROCESS / "stub.py")
        self._command = (sys.executable, "-P", "-u", stub)
        self._turn = threading.Lock()
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MOST)
        with theirs:
            self._process = subprocess.Popen(
                [*self._command[:3], __file__, str(theirs.fileno()), self._command[3]],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # its import starts the other threads
            )

    def replace_processes(self, monkeypatch: Any) -> None:
        """Until ``monkeypatch`` undoes it, processes of models in this process's interpreter are forked."""
        names = {name: getattr(subprocess, name) for name in ("DEVNULL", "PIPE")}
        place = "repoagent.serving.backends.python.process.child_process.subprocess"
        monkeypatch.setattr(place, SimpleNamespace(Popen=self._start, **names))

    def _start(self, command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        if (*command[:4],) != self._command:
            return subprocess.Popen(command, **options)
        return _Forked(self, command, **options)

    def fork(self, words: list[str], env: dict[str, str], files: list[int]) -> int:
        """The number of a new child of this process; the words begin with the numbers of ``files[3:]``."""
        order = json.dumps([words, env, os.getcwd()]).encode()
        with self._turn:
            # Whoever forks it ends at once, and the kernel hands it to this process.
            _prctl(_SUBREAPER, 1)
            try:
                socket.send_fds(self._orders, [order], files)
                answer = self._orders.recv(8)
            finally:
                _prctl(_SUBREAPER, 0)
        assert answer, "what processes of models are forked off was killed"
        return int.from_bytes(answer, "little")

    def close(self) -> None:
        """End it."""
        self._orders.close()
        self._process.kill()
        self._process.wait()


class _Forked(subprocess.Popen[bytes]):
    """One that is forked; pipes, the wait for its end and signals are those of the standard library."""

    def __init__(self, models: WarmModels, command: list[str], **options: Any) -> None:
        self._models = models
        super().__init__(command, **options)

    def _execute_child(self, args: list[str], *others: Any) -> None:
        popen: Any = super()  # What the standard library has for itself, by its names.
        given = inspect.signature(popen._execute_child).bind(args, *others).arguments
        pipes = [given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        self.pid = self._models.fork(args[4:], given["env"], [pipes[0], pipes[3], pipes[5], *given["pass_fds"]])
        self._child_created = True
        popen._close_pipe_fds(*pipes)


def _prctl(option: int, value: int) -> None:
    assert ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0


def _serve(orders: socket.socket) -> tuple[list[str], dict[str, str], str, list[int]]:
    """Fork a process for each order, until there are none; returns in the process."""
    while True:
        order, files, _, _ = socket.recv_fds(orders, 2 * _MOST, 16)
        if not order:
            os._exit(0)
        begun, beginning = os.pipe()
        if not os.fork():
            child = os.fork()
            if not child:
                os.close(begun)
                os.close(beginning)
                orders.close()
                words, env, cwd = json.loads(order)
                return words, env, cwd, files
            os.setpgid(child, child)
            os.write(beginning, child.to_bytes(8, "little"))
            os._exit(0)
        os.wait()
        orders.send(os.read(begun, 8))
        for file in (begun, beginning, *files):
            os.close(file)


def _become(words: list[str], env: dict[str, str], cwd: str, files: list[int]) -> list[str]:
    """Take the descriptors and variables; the arguments, with the numbers that the descriptors have here."""
    own = files[3:]
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    arguments = [*map(str, own), *words[len(own) :]]
    while os.getppid() != int(words[len(own)]):  # Its parent is about to end.
        os.sched_yield()
    return arguments


if __name__ == "__main__":
    _stub = importlib.util.spec_from_file_location("stub", sys.argv[2])
    assert _stub is not None
    assert _stub.loader is not None
    _module = importlib.util.module_from_spec(_stub)
    _stub.loader.exec_module(_module)
    _module.load_package()
    from repoagent.serving.backends.python.process.child import main

    gc.freeze()  # Else a process that ends looks through all of it.
    with contextlib.ExitStack() as _end:
        _words = _become(*_serve(_end.enter_context(socket.socket(fileno=int(sys.argv[1])))))
    sys.argv = [sys.argv[2], *_words]
    sys.orig_argv = [*sys.orig_argv[:3], *sys.argv]
    sys.exit(main(*map(int, _words)))
