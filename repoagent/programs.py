"""Starting programs: their environment, and an end when no one waits any more."""

import contextlib
import ctypes
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from repoagent.errors import CancelledError, InvalidArgumentError, UnavailableError
from repoagent.sentinel import mark

_OWN_PREFIX: Final = "REPOAGENT_"
"""Settings of this program: flags given as variables, some of which are secrets."""

_NEVER_KEYS: Final = frozenset(
    {"CUDA_VISIBLE_DEVICES", "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PWD", "PYTHONHOME"}
    | {"PYTHONPATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV"}
)
"""Without these programs do not run; a model that names one as its key must not take it from the others."""

_PYTHONS: Final = frozenset({"LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "SYSTEMROOT", "TZ", "VIRTUAL_ENV"})
"""What an interpreter needs of the environment."""

_PR_SET_PDEATHSIG: Final = 1
_lock: Final = threading.Lock()
_secret: Final[set[str]] = set()


def mark_secret(name: str) -> None:
    """From now on no program that the server starts inherits the variable ``name``."""
    if name not in _NEVER_KEYS and not name.startswith("LC_"):
        with _lock:
            _secret.add(name)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without variables of this program and without those that held a key.

    What is started with it ends with the server, see :mod:`repoagent.sentinel`.
    """
    with _lock:
        hidden = frozenset(_secret)
    kept = {
        name: value for name, value in environment.items() if name not in hidden and not name.startswith(_OWN_PREFIX)
    }
    return kept | mark()


def child_environment(added: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a program inherits from the server now, and ``added``, which its caller chose."""
    return without_secrets(os.environ) | dict(added or {})


def program_path(word: str) -> str:
    """The absolute path of the program that a command begins with; one that is not there stays as it is.

    Directories of PATH that are not absolute have nothing: what lies where this was started may be anyone's. The last
    part is not followed if it is a link, as one file can be many programs by its names.
    """
    if os.sep not in word:
        directories = os.pathsep.join(filter(os.path.isabs, os.get_exec_path()))
        word = shutil.which(word, path=directories) or word
    directory, name = os.path.split(word)
    try:
        return os.path.join(os.path.realpath(directory), name) if directory else word
    except FileNotFoundError:  # the working directory has been removed
        return word


def start_python(
    program: Path, stdin: int | IO[bytes], what: str, *, stdout: int = subprocess.DEVNULL
) -> "subprocess.Popen[bytes]":
    """Start a file of ours that may be spoiled, or has to be ended: ``what`` names it in errors.

    It finds the modules that this process finds, and gets nothing else of its environment, descriptors and directory.

    Raises:
        UnavailableError: it cannot be started.
    """
    if not sys.executable:
        raise UnavailableError(f"{what} needs a Python interpreter, and sys.executable names none")
    inherited = {name: value for name, value in os.environ.items() if name in _PYTHONS}
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    try:
        return subprocess.Popen(  # noqa: S603 - a program of ours
            [sys.executable, "-P", str(program)],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
            env=inherited | mark() | {"PYTHONPATH": path},
            cwd="/",
            process_group=0,
        )
    except OSError as error:
        raise UnavailableError(f"{what} cannot be started: {error.strerror}") from error


def end_with_parent(parent: int) -> None:
    """In a child of ``parent``: have the kernel end this process with it, also while no Python code runs here."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


_TICK_SECONDS: Final = 0.05
_PIECE: Final = 1 << 16


def run_program(
    argv: Sequence[str],
    *,
    timeout: float | None,
    cancelled: Callable[[], bool],
    env: Mapping[str, str] | None = None,
    capture_errors: bool = True,
    most: int | None = None,
) -> "subprocess.CompletedProcess[bytes]":
    """Run ``argv`` to its end and return what it wrote and its status.

    It inherits the server's environment without secrets (:func:`without_secrets`), and ``env``.

    The program gets a process group of its own, and whatever ends the wait early (``cancelled``, the timeout, an
    exception) kills the whole group and collects it.

    Raises:
        OSError: it cannot be started.
        InvalidArgumentError: it was killed because it wrote more than ``most`` bytes.
        subprocess.TimeoutExpired: it was killed after ``timeout`` seconds.
        CancelledError: it was killed because ``cancelled`` became true.
    """
    started = time.monotonic()
    process = subprocess.Popen(  # noqa: S603 - no shell is involved
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if capture_errors else None,
        env=child_environment(env),
        start_new_session=True,
    )
    written = {pipe: bytearray() for pipe in (process.stdout, process.stderr) if pipe is not None}
    try:
        for _ in _pieces(process, written):
            if most is not None and sum(map(len, written.values())) > most:
                raise InvalidArgumentError(f"'{argv[0]}' was killed, as it wrote more than {most} bytes")
            if cancelled():
                raise CancelledError(f"'{argv[0]}' was killed because the load was cancelled")
            if timeout is not None and time.monotonic() >= started + timeout:
                raise subprocess.TimeoutExpired(list(argv), timeout)
    except BaseException:
        _kill(process)
        raise
    process.__exit__(None, None, None)
    output, errors = (None if pipe is None else bytes(written[pipe]) for pipe in (process.stdout, process.stderr))
    return subprocess.CompletedProcess(list(argv), process.returncode, output, errors)


def _pieces(process: "subprocess.Popen[bytes]", written: Mapping[IO[bytes], bytearray]) -> Iterator[None]:
    """Add to ``written`` what comes from each pipe, until all are closed and the process has ended.

    Yields after each piece, and after a moment in which nothing came.
    """
    with selectors.DefaultSelector() as open_pipes:
        for pipe, kept in written.items():
            open_pipes.register(pipe, selectors.EVENT_READ, kept)
        while open_pipes.get_map():
            for key, _ in open_pipes.select(_TICK_SECONDS):
                piece = os.read(key.fd, _PIECE)
                key.data.extend(piece)
                if not piece:
                    open_pipes.unregister(key.fileobj)
            yield
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TICK_SECONDS)
        yield


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.__exit__(None, None, None)  # closes the pipes and collects the process, without reading to their end
