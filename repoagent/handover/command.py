"""A command that has a model: its words, its processes, when it is ready, and a path that is the same each time."""

import errno
import fcntl
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from repoagent.errors import AlreadyExistsError, InvalidArgumentError, UnavailableError
from repoagent.handover import supervisor
from repoagent.programs import child_environment, program_path
from repoagent.sentinel import NAME
from repoagent.storage.workspaces.private import check_parents

logger = logging.getLogger(__name__)

_SUPERVISOR: Final = (sys.executable, "-I", "-S", os.path.abspath(supervisor.__file__))
_PLACE: Final = re.compile(r"\{(model|version|name|repository)\}")
_HARMLESS: Final = re.compile(r"[\w@%+=:,./-]*", re.ASCII)
"""What no shell and no other language takes for more than a word."""
_TAKES_CODE: Final = re.compile(r"-[A-Za-z]*c[A-Za-z]?|-p?e|--eval")
"""``sh -c``, ``bash -lc``, ``sh -ce``, ``python -c``, ``perl -e``, ``node --eval``."""
_PAUSE_SECONDS: Final = 0.1
_ANSWER_SECONDS: Final = 5.0
_GOOD_STATUS: Final = re.compile(rb"HTTP/1\.[01] 2[0-9]{2}[ \r\n]")
_MOST_OF_A_LINE: Final = 4096
_LISTEN: Final = "0A"
"""A state of a socket in /proc/net/tcp."""


class CommandError(UnavailableError):
    """The command could not be started; ``status`` is what a shell would exit with."""

    def __init__(self, program: str, number: int) -> None:
        super().__init__(f"cannot run '{program}': {os.strerror(number)}")
        self.status = 127 if number in (errno.ENOENT, errno.ENOTDIR) else 126


def fill_in(words: Iterable[str], values: Mapping[str, str | None]) -> list[str]:
    """``words`` with ``{model}``, ``{version}``, ``{name}`` and ``{repository}`` replaced; other braces stay.

    Raises ``InvalidArgumentError`` for a value that is missing, would be taken for a flag, or as part of a script.
    """
    code = False

    def value(match: re.Match[str]) -> str:
        found = values[match[1]]
        if found is None:
            raise InvalidArgumentError(
                f"the command uses {match[0]}, but the model has no version directory (1, 2, ...)"
            )
        if match.start() == 0 and found.startswith("-"):
            raise InvalidArgumentError(f"{match[0]} is '{found}', which the command would take for a flag; rename it")
        if code and (found.startswith("-") or not _HARMLESS.fullmatch(found)):
            raise InvalidArgumentError(
                f"{match[0]} is '{found}', which could change the script that it becomes part of; give it to the "
                f"script as an argument: sh -c 'serve \"$1\"' sh {match[0]}"
            )
        return found

    filled = []
    for before, word in pairwise(["", *words]):
        code = bool(_TAKES_CODE.fullmatch(before)) or not _HARMLESS.fullmatch(_PLACE.sub("", word))
        filled.append(_PLACE.sub(value, word))
    return filled


def program_of(word: str) -> str:
    """What a policy judges of a command that begins with ``word``: its path, or ``word`` if the model completes it."""
    return word if _PLACE.search(word) else program_path(word)


class Command:
    """The running command and all that it started, behind a supervisor.

    Start it on the main thread: the supervisor stops the command when the thread that started it ends.
    """

    def __init__(
        self, program: str, words: Sequence[str], *, model: str, stop_seconds: float, locks: Sequence[int]
    ) -> None:
        """Start the file ``program`` as ``words``, its name and arguments; a relative path is not there, wherever this
        was started.

        Its variables are those of this process without secrets, and ``REPOAGENT_MODEL``: ``model``. It is killed if it
        takes longer than ``stop_seconds`` to stop. It keeps the descriptors ``locks`` open, so that no one removes the
        model before it ends. Raises ``CommandError`` if it is not there, or cannot be executed.
        """
        if not os.path.isabs(program):
            raise CommandError(words[0], errno.ENOENT)
        environment = child_environment({"REPOAGENT_MODEL": model})
        environment.pop(NAME, None)  # The supervisor ends what it starts, in good order.
        #: On a terminal the command stays in the group that keys send signals to, and that ^Z stops as a whole.
        self.shares_group = os.isatty(0)
        group = "shared" if self.shares_group else "own"
        self._stop_seconds = stop_seconds
        supervisor.adopt_orphans()  # in case it is killed
        self._others = supervisor.descendants()
        reading, writing = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the operator's command
                [*_SUPERVISOR, str(os.getpid()), str(stop_seconds), str(writing), group, program, *words],
                env=environment,
                pass_fds=(*locks, writing),
                process_group=None if self.shares_group else 0,
            )
        except OSError as error:  # the words are too long, or there is no process left
            os.close(reading)
            raise CommandError(words[0], error.errno or errno.EIO) from None
        finally:
            os.close(writing)
        with open(reading, "rb") as report:
            failed = report.read()
        if failed:
            self._process.wait()
            raise CommandError(words[0], int(failed))

    def send(self, number: int) -> None:
        """Send a signal to the command; nothing if it has ended."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """Ask the command to end; it is killed if it takes too long."""
        self.send(signal.SIGTERM)

    def wait(self) -> int:
        """Wait until no process of it is left; its status as a shell would have it."""
        status = self._process.wait()
        if status < 0:
            supervisor.end_the_rest(self._stop_seconds, self._others)
        return 128 - status if status < 0 else status


def wait_until_ready(url: str, seconds: float, ended: threading.Event) -> bool:
    """Ask ``url`` until it answers with success; False if it did not within ``seconds``, or the command ``ended``.

    An answer on this machine's loopback, or at 0.0.0.0, counts if a process below this one listens there.
    """
    answers, strangers = _asking(url), False
    deadline = time.monotonic() + seconds
    while not ended.is_set() and time.monotonic() < deadline:
        if answers():
            if not _is_strangers(url):
                return not ended.is_set()
            if not strangers:
                logger.warning("%s is answered by another process than the command; waiting for the command", url)
            strangers = True
        ended.wait(_PAUSE_SECONDS)
    return False


def _is_strangers(url: str) -> bool:
    """Whether another process than the command listens at ``url``; False where that cannot be known."""
    parts = urlsplit(url)
    if parts.hostname != "localhost" and not _is_loopback(parts.hostname or ""):
        return False
    sockets = {f"socket:[{number}]" for number in _listening(parts.port or (443 if parts.scheme == "https" else 80))}
    for process in (os.getpid(), *(number for number, _ in supervisor.descendants())):
        try:
            if any(target in sockets for target in _opened_by(process)):
                return False
        except PermissionError:  # a process of another user may be the one
            return False
    return bool(sockets)


def _opened_by(process: int) -> Iterator[str]:
    """What the descriptors of a process lead to; fewer if it ends meanwhile."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for descriptor in os.listdir(f"/proc/{process}/fd"):
            with suppress(FileNotFoundError):
                yield os.readlink(f"/proc/{process}/fd/{descriptor}")


def _is_loopback(host: str) -> bool:
    try:
        return (address := ip_address(host)).is_loopback or address.is_unspecified
    except ValueError:
        return False


def _listening(port: int) -> Iterator[str]:
    """The numbers of the sockets that listen on a port of this machine."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(table, encoding="ascii") as lines:
            for fields in map(str.split, lines):
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _asking(url: str) -> Callable[[], bool]:
    """What asks ``url`` once, in bounded time. A redirect is no answer: what is asked runs here."""
    import ssl

    parts = urlsplit(url)
    secured = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if secured else 80)
    host = parts.netloc.rpartition("@")[2]
    target = parts._replace(scheme="", netloc="", path=parts.path or "/", fragment="").geturl()
    request = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nConnection: close\r\n\r\n".encode()

    def answers() -> bool:
        end, line = time.monotonic() + _ANSWER_SECONDS, b""
        try:
            with ExitStack() as opened:
                connection = opened.enter_context(socket.create_connection((parts.hostname, port), _ANSWER_SECONDS))
                if secured is not None:
                    connection = opened.enter_context(secured.wrap_socket(connection, server_hostname=parts.hostname))
                connection.sendall(request)
                while b"\n" not in line and (left := end - time.monotonic()) > 0:
                    connection.settimeout(left)
                    received = connection.recv(_MOST_OF_A_LINE)
                    if not received or len(line) > _MOST_OF_A_LINE:
                        return False
                    line += received
        except OSError:
            return False
        return _GOOD_STATUS.match(line) is not None

    return answers


def check_ready_url(url: str) -> None:
    """Refuse with ``InvalidArgumentError`` what :func:`wait_until_ready` cannot ask: it needs the URL of a server that
    speaks HTTP."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidArgumentError("expected a URL that begins with http:// or https:// and a host")


_OUR_TARGET: Final = re.compile(r"(.*/[0-9]+-[0-9a-f]{16})/[0-9]+/")
"""What the target of our link begins with: the private directory of a process, a load."""
_LOCK_SECONDS: Final = 5.0


@contextmanager
def stable_link(path: Path, place: Path) -> Iterator[None]:
    """Let ``path`` lead to ``place`` for a block.

    A link that a killed process left there is replaced.

    Raises:
        AlreadyExistsError: something else is there, or the link of a process whose command still runs.
        InvalidArgumentError: another user can put something else there.
        UnavailableError: it cannot be made.
    """
    check_parents(path, purpose="link to the model")
    try:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UnavailableError(f"cannot make the link {path}: {error.strerror}") from error
    try:
        _make_link(path, place, fd)
        try:
            yield
        finally:
            with suppress(OSError):  # no lock: no one replaces a link whose target is there
                if os.readlink(path.name, dir_fd=fd) == str(place):
                    os.unlink(path.name, dir_fd=fd)
    finally:
        os.close(fd)


def _make_link(path: Path, place: Path, fd: int) -> None:
    try:
        with _locked_directory(fd):
            _remove_dead_link(path, fd)
            os.symlink(place, path.name, dir_fd=fd)
    except BlockingIOError:
        raise UnavailableError(f"cannot make the link {path}: another process has locked {path.parent}") from None
    except FileExistsError:
        raise AlreadyExistsError(
            f"{path} is there already, and is not a link that a killed run left; remove it, or name another path"
        ) from None
    except OSError as error:
        raise UnavailableError(f"cannot make the link {path}: {error.strerror}") from error


def _remove_dead_link(path: Path, fd: int) -> None:
    try:
        owner, target = os.stat(path.name, dir_fd=fd, follow_symlinks=False).st_uid, os.readlink(path.name, dir_fd=fd)
    except OSError:  # nothing is there, or no link
        return
    # The files may have gone before the process (--remove-when-ready), whose command then has the link still.
    if owner == os.geteuid() and (ours := _OUR_TARGET.match(target)) and not os.path.exists(ours[1]):
        os.unlink(path.name, dir_fd=fd)


@contextmanager
def _locked_directory(fd: int) -> Iterator[None]:
    """Of two processes that find a dead link, one replaces it; the other sees the new one.

    Any process that reads the directory can lock it, forever: the wait has an end.
    """
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE_SECONDS)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
