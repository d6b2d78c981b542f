"""``repoagent`` as a process of its own, without the second that its imports take.

A program is forked off a process that has imported them, and is otherwise as one that was started: with arguments,
variables, a working directory, descriptors and a number of its own. Its parent is a process that waits for it. Tests of
how a program starts, or of what it shows of itself in ``/proc``, start an interpreter instead; so do those whose
variables an interpreter reads.
"""

import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import importlib.metadata
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Final

_MOST: Final = 1 << 17
"""Bytes of arguments and variables."""

_IMPORTED: Final = (
    "repoagent.cli.check",
    "repoagent.cli.fetch",
    "repoagent.cli.prepare",
    "repoagent.cli.run",
    "repoagent.converters.onnx.optimized",
    "repoagent.handover.command",
    "repoagent.loader.assembly",
    "repoagent_server.grpc.frontend",
    "repoagent_server.program.serve_command",
    "repoagent_server.program.front_ends",
    "repoagent_server.program.program",
    "repoagent_server.program.worker",
)
_MOST_FILES: Final = 32


class Program:
    """One that runs: what tests use of ``subprocess.Popen``, and the same exit status."""

    def __init__(
        self, args: Sequence[str], pid: int, report: int, stdout: IO[str] | None, stderr: IO[str] | None
    ) -> None:
        self.args, self.pid, self._report = args, pid, report
        self.stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None
        self._reading = threading.Lock()  # As for ``subprocess``, several threads may wait.
        weakref.finalize(self, os.close, report)

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: if it runs for longer than ``timeout`` seconds.
        """
        if self.returncode is None and not select.select([self._report], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with self._reading:
            if self.returncode is None:
                self.returncode = _number(self._report)
        return self.returncode

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        """What it writes from now on to the pipes that are open, until all of them are closed and it has ended.

        Raises:
            TimeoutError: that takes more than ``timeout`` seconds; it is killed.
        """
        with ThreadPoolExecutor(2) as pool:
            reads = [pool.submit(one.read) if one and not one.closed else None for one in (self.stdout, self.stderr)]
            try:
                output, errors = [read.result(timeout) if read else "" for read in reads]
            except TimeoutError:
                self.kill()
                raise
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait(timeout)
        return output, errors

    def send_signal(self, number: int) -> None:
        """Send the signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """``SIGTERM``."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """``SIGKILL``."""
        self.send_signal(signal.SIGKILL)


class Warm:
    """The process that programs are forked off; it ends with this one, or when it is closed."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MOST)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=theirs.fileno(),  # not a file, of which a stream remembers that it can be sought in
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # its import starts the other threads
            )

    def start(
        self,
        words: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | str = ".",
        stdin: int | None = None,
        stdout: int | IO[Any] = 1,
        stderr: int | IO[Any] = 2,
    ) -> Program:
        """``repoagent WORDS``, with nothing to read unless ``stdin`` is given.

        It writes where this process does, unless files or ``subprocess.PIPE`` are given.
        """
        texts = [*map(str, words)]
        (out, output), (err, errors) = map(_written_to, (stdout, stderr))
        order = ["repoagent.cli.main", texts, dict(os.environ if env is None else env), str(Path(cwd).resolve())]
        pid, report = _ordered(self._orders, order, (out, err, self._orders.fileno()), stdin)
        for number in (*([out] if output else []), *([err] if errors else [])):
            os.close(number)
        return Program(texts, pid, report, output, errors)

    def run(
        self,
        words: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | str = ".",
        timeout: float = 120,
    ) -> "subprocess.CompletedProcess[str]":
        """``repoagent WORDS`` to its end, as ``subprocess.run`` with what it prints."""
        program = self.start(words, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output, errors = program.communicate(timeout)
        return subprocess.CompletedProcess(program.args, program.wait(), output, errors)

    def close(self) -> None:
        """End it."""
        self._orders.close()
        self._process.kill()
        self._process.wait()


def _written_to(file: int | IO[Any]) -> tuple[int, IO[str] | None]:
    """The descriptor that a program gets for ``file``, and what reads it if that is a pipe."""
    if file == subprocess.PIPE:
        reading, writing = os.pipe()
        return writing, os.fdopen(reading)
    return file if isinstance(file, int) else file.fileno(), None


def _ordered(
    orders: socket.socket, order: Sequence[Any], files: Sequence[int], stdin: int | None = None
) -> tuple[int, int]:
    """Have a program forked; its number, and the descriptor from which its status will be read."""
    report, writing = os.pipe()
    with open(os.devnull, "rb") as nothing:
        read = nothing.fileno() if stdin is None else stdin
        socket.send_fds(orders, [json.dumps(order).encode()], [writing, read, *files])
    os.close(writing)
    return _number(report), report


def _start_worker(orders: socket.socket, args: Sequence[str], **more: Any) -> Any:
    """What a keeper calls in the place of ``subprocess.Popen``: the worker is forked off the warm process, too."""
    if "user" in more:
        return subprocess.Popen(args, **more)
    *_, module, number = args
    numbers, most = more["pass_fds"], resource.getrlimit(resource.RLIMIT_NOFILE)
    order = [module, [number], more["env"], os.getcwd(), [os.getpid(), numbers, most]]
    pid, report = _ordered(orders, order, (1, 2, *numbers))
    return Program(args, pid, report, None, None)


def _state(report: int, number: int) -> None:
    os.write(report, number.to_bytes(4, "little", signed=True))


def _number(report: int) -> int:
    stated = os.read(report, 4)
    assert stated, "what waits for the program was killed"
    return int.from_bytes(stated, "little", signed=True)


def _serve(orders: socket.socket) -> None:
    """Fork a program for each order, until there are none; returns in the program as well."""
    importlib.import_module("tests.installed").keep_entry_points()
    for name in _IMPORTED:
        importlib.import_module(name)
    for group in ("repoagent", "repoagent.agents"):
        for entry in importlib.metadata.entry_points(group=group):
            entry.load()
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked"
    gc.freeze()
    while True:
        order, files, _, _ = socket.recv_fds(orders, 2 * _MOST, _MOST_FILES)
        if not order:
            return
        if not os.fork():
            _begin(orders, json.loads(order), *files)
            return
        for file in files:
            os.close(file)
        os.wait()


def _begin(orders: socket.socket, order: Sequence[Any], report: int, *files: int) -> None:
    """Become the program, while another process reports its number and its status."""
    if os.fork():
        os._exit(0)
    orders.close()
    program = os.fork()
    if program:
        with contextlib.suppress(BrokenPipeError):  # It is not waited for any more.
            _state(report, program)
            for file in (*files, 0, 1, 2):
                os.close(file)
            _state(report, os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
        os._exit(0)
    os.close(report)
    module, words, env, cwd, *of_worker = order
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["repoagent", *words]
    if of_worker:
        ((keeper, numbers, most),) = of_worker
        _take(files, [0, 1, 2, *numbers])
        os.setsid()
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
        ctypes.CDLL(None).prctl(15, worker_name(keeper).encode(), 0, 0, 0)
    else:
        _take(files[:3], [0, 1, 2])
        _fork_workers(files[3])
    importlib.import_module(module).main()


def _take(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Give descriptors the ``numbers``, of which others may have some."""
    away = [fcntl.fcntl(file, fcntl.F_DUPFD, max(*files, *numbers) + 1) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(away, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def _fork_workers(orders: int) -> None:
    """Have this program's workers forked, if it is a server that has some."""
    os.set_inheritable(orders, False)
    start = functools.partial(_start_worker, socket.socket(fileno=orders))
    process = importlib.import_module("repoagent_server.processes.worker_process")
    process.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": start})  # type: ignore[attr-defined]


def worker_name(keeper: int) -> str:
    """What the kernel calls the forked workers of a process: their parents wait for them only."""
    return f"worker {keeper}"


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    with socket.socket(fileno=int(sys.argv[1])) as _orders:
        _serve(_orders)
