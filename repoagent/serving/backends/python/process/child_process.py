"""A child process as the server sees it, and the thread that looks after it from its start to its end."""

import contextlib
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from repoagent.errors import signal_name
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.programs import without_secrets
from repoagent.serving.backends.python.process.channel import Kind, Message, PeerGoneError
from repoagent.serving.backends.python.process.codec import Packer
from repoagent.serving.backends.python.process.memory import Allowance, Arena, ProtocolError, sealed_file
from repoagent.serving.backends.python.process.memory import Mapping as SharedMapping
from repoagent.serving.backends.python.process.server_channel import ServerChannel, WorkChannel

logger = logging.getLogger("repoagent.models")
_CHUNK: Final = 1 << 16
_LARGEST_PIPE: Final = 1 << 20
"""What may be in a pipe when no one writes to it any more, where no one is privileged."""


class OutputLines:
    """One output stream of a child, line by line into the log."""

    def __init__(self, fd: int, label: str, keep: deque[str] | None = None) -> None:
        os.set_blocking(fd, False)
        self.fd: Final = fd
        self._label = label
        self._keep = keep
        self._rest = b""

    def read(self) -> bool:
        """Take in some of what there is at the moment; False at the end of the stream.

        Not all: someone may write faster than this reads, and others want to be heard.
        """
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            self._finish()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._write(line)
        if len(self._rest) > _CHUNK:
            self._finish()
        return True

    def finish(self) -> None:
        """Take in what is left of a process that has ended. Others may write to the same pipe, without end."""
        for _ in range(_LARGEST_PIPE // _CHUNK):
            if not self.read():
                return
        self._finish()

    def _finish(self) -> None:
        """Write what has come of a line that has not ended: it never will, or is too long to wait for."""
        if self._rest:
            self._write(self._rest)
            self._rest = b""

    def _write(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if self._keep is not None:
            self._keep.append(text)
        logger.info("%s: %s", self._label, text)


_TAIL_LINES: Final = 20
_NUMBER: Final = struct.Struct("Q")
_AT_ONCE: Final = 64
"""Messages that are handled before others are heard: a process may send them without end."""
_LAST_MESSAGES: Final = 1 << 16
"""More than a socket holds."""


class Program(NamedTuple):
    """What to run: an interpreter and its environment."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


class ChildProcess:
    """A process, which the constructor starts or raises why it cannot, and its two channels. ``limits``: what it may
    take of the server."""

    def __init__(self, program: Program, model_name: str, name: str, limits: Limits = DEFAULT_LIMITS) -> None:
        self._program = program
        self._limits = limits
        self._allowance = Allowance.of(limits)
        self.name: Final = name
        self._label = f"model '{model_name}', process of '{name}'"
        self._handle: Callable[[ChildProcess, Message], None] = _refuse
        self._on_exit: Callable[[ChildProcess], None] = lambda _: None
        self._progress = threading.Condition()
        self._handled = 0
        self._side_open = True
        self._reaping = threading.Lock()
        self._reaped = False
        self._stderr: deque[str] = deque(maxlen=_TAIL_LINES)
        self._started = Future[None]()
        self.exited: Final = threading.Event()
        """Set when the process has ended and all that it had sent has been handled."""
        self.status = 0
        self.begun = 0
        """The last request of several given at once that it had begun when it ended, as far as it noted that."""
        self.arena: Final = Arena(allowance=self._allowance)
        self.mapping: Final = SharedMapping(self._allowance)
        # The kernel ends the child with the *thread* that started it, so the one that stays with it must do so.
        self._thread = threading.Thread(target=self._run, name=f"repoagent-{name}-process", daemon=True)
        self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self._thread.join()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def set_handlers(
        self,
        handle: Callable[["ChildProcess", Message], None],
        on_exit: Callable[["ChildProcess"], None] = lambda _: None,
    ) -> None:
        """Set what is called on the supervising thread; before the first exchange, as a process sends nothing unasked.

        ``handle`` is called with every message of the side channel, ``on_exit`` once the process has ended and all that
        it had sent has been handled.
        """
        self._handle, self._on_exit = handle, on_exit

    def has_handled(self, count: int) -> bool:
        """Whether :meth:`wait_handled` would return at once."""
        return self._handled >= count or self.exited.is_set()

    def wait_handled(self, count: int) -> None:
        """Wait until ``count`` messages of the side channel have been handled, or none can come any more."""
        if not self.has_handled(count):
            with self._progress:
                self._progress.wait_for(lambda: self.has_handled(count))

    def send(self, kind: Kind, body: Any, payload: Packer | None = None) -> None:
        """Send something over the side channel; never waits. Nothing is sent to a child that has gone. Raises
        ``OSError`` if ``payload`` cannot be handed over."""
        try:
            self.side.send(kind, body, payload)
        except PeerGoneError:
            pass
        except OSError as error:
            if payload is not None:
                raise
            logger.error("%s cannot be given an answer and is killed: %s", self._label, error)
            self.kill()

    def kill(self) -> None:
        """End the process, and those that it started and that are still in its group."""
        with self._reaping:
            if not self._reaped:
                self._end_group()

    def finish(self, grace_seconds: float) -> None:
        """Have the model finalized and the process end; after ``grace_seconds`` it is killed.

        Returns when everything of it has gone.
        """
        timer = threading.Timer(grace_seconds, self._kill_after_grace, (grace_seconds,))
        timer.daemon = True
        timer.start()
        try:
            self.work.call(Kind.FINALIZE, None)
        except (PeerGoneError, ProtocolError, OSError):
            self.kill()
        finally:
            self._thread.join()
            timer.cancel()

    def post_mortem(self) -> str:
        """How the process ended, for people: status or signal, and the last lines of its standard error."""
        self.exited.wait()
        if self.status < 0:
            how = f"was killed by signal {-self.status} ({signal_name(-self.status)})"
        else:
            how = f"ended with exit status {self.status}"
        said = "; the last lines of its standard error: " + " | ".join(self._stderr) if self._stderr else ""
        return f"it {how}{said}"

    def _end_group(self) -> None:
        for end in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(self._process.pid, signal.SIGKILL)

    def _kill_after_grace(self, seconds: float) -> None:
        logger.warning("%s did not end within %g s and is killed", self._label, seconds)
        self.kill()

    def _run(self) -> None:
        try:
            self._spawn()
        except BaseException as error:
            self._started.set_exception(error)
            return
        self._started.set_result(None)
        with ExitStack() as end:  # Whatever one step raises, the others are taken: those who wait must hear of the end.
            end.callback(lambda: self._on_exit(self))
            end.callback(self._has_ended)
            end.callback(self._clean_up)
            self._watch_process()

    def _spawn(self) -> None:
        with ExitStack() as undo, ExitStack() as theirs:
            work, side = (self._pair(undo, theirs) for _ in range(2))
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, self._wake)
            # It stays readable when the process has ended, however that was.
            self._progress_fd = sealed_file(_NUMBER.size)
            undo.callback(os.close, self._progress_fd)
            fds = [work[1].fileno(), side[1].fileno(), self._progress_fd]
            self._process = subprocess.Popen(  # noqa: S603 - the operator's own interpreter
                [*self._program.command, *map(str, (*fds, os.getpid(), *self._own_limits()))],
                env=without_secrets(self._program.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=fds,
                process_group=0,
            )
            undo.callback(self._process.__exit__, None, None, None)
            undo.callback(self._process.kill)
            self._pidfd = os.pidfd_open(self._process.pid)
            undo.pop_all()
        longest = self._limits.python_message_bytes
        self.work = WorkChannel(work[0], self.arena, self.mapping, self.exited, longest_received=longest)
        self.side = ServerChannel(
            side[0],
            self.arena,
            self.mapping,
            longest_received=longest,
            most_unread=self._limits.python_unread_bytes,
            on_backlog=lambda: os.eventfd_write(self._wake, 1),
            on_overflow=self._kill_for_unread_answers,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._outputs = [
            OutputLines(self._process.stdout.fileno(), f"{self._label}, stdout"),
            OutputLines(self._process.stderr.fileno(), f"{self._label}, stderr", self._stderr),
        ]

    def _own_limits(self) -> tuple[int, int, int]:
        """What it keeps to by itself, as long as its code is sound: then it gets an error, and is not killed."""
        return (*self._allowance.with_margin(), self._limits.python_message_bytes)

    def _kill_for_unread_answers(self) -> None:
        flag = Limits.flag("python_unread_bytes")
        logger.error("%s leaves too many answers unread (%s) and is killed", self._label, flag)
        self.kill()

    @staticmethod
    def _pair(ours: ExitStack, theirs: ExitStack) -> tuple[socket.socket, socket.socket]:
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.callback(left.close)
        theirs.callback(right.close)
        return left, right

    def _watch_process(self) -> None:
        """Handle what the process sends, until it ends."""
        poller = select.poll()
        readers = {output.fd: output.read for output in self._outputs} | {self._wake: self._drain_wake}
        for fd in (self._pidfd, self.side.fileno(), *readers):
            poller.register(fd, select.POLLIN)
        while True:
            for fd, event in poller.poll():
                if fd == self._pidfd:
                    return
                if fd in readers:
                    if not readers[fd]():
                        poller.unregister(fd)
                elif event & select.POLLOUT:
                    self.side.flush()
                elif not self._read_side(_AT_ONCE):
                    poller.unregister(fd)
            if self._side_open:
                poller.register(self.side.fileno(), select.POLLIN | select.POLLOUT * self.side.backlogged)

    def _drain_wake(self) -> bool:
        os.eventfd_read(self._wake)
        return True

    def _read_side(self, most: int) -> bool:
        """Handle up to ``most`` messages of those that there are at the moment; False if no further one can come."""
        try:
            for _ in range(most):
                message = self.side.receive(socket.MSG_DONTWAIT)
                if message is None:
                    break
                self._handle(self, message)
                del message
                self.side.send_releases()
                with self._progress:
                    self._handled += 1
                    self._progress.notify_all()
            else:
                return True
        except BlockingIOError:
            return True
        except PeerGoneError:
            pass
        except Exception:
            logger.exception("%s breaks the protocol and is killed", self._label)
        self._side_open = False
        # A process that cannot be talked to is of no use, even if it still runs.
        self.kill()
        return False

    def _clean_up(self) -> None:
        """Handle what the process still sent, read its status, and close everything that it left.

        Each step is taken, also if an earlier one raises.
        """
        with ExitStack() as end:
            end.callback(self._close)
            end.callback(self._reap)
            for output in self._outputs:
                end.callback(output.finish)
            if self._side_open:
                end.callback(self._read_side, _LAST_MESSAGES)
            self.kill()  # What it started ends with it, and writes nothing more.

    def _reap(self) -> None:
        with self._reaping:
            self.status = self._process.wait()
            self._reaped = True
        self.work.shutdown()
        (self.begun,) = _NUMBER.unpack(os.pread(self._progress_fd, _NUMBER.size, 0))
        self._has_ended()

    def _close(self) -> None:
        os.close(self._progress_fd)
        self.work.close()  # A caller that waits for an answer has been woken up, and is gone before the socket is.
        self.side.close()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        os.close(self._pidfd)
        os.close(self._wake)
        self.arena.close()
        self.mapping.close()

    def _has_ended(self) -> None:
        with self._progress:
            self.exited.set()
            self._progress.notify_all()


def _refuse(child: ChildProcess, _: Message) -> None:
    raise ProtocolError(f"{child.name} sent a message before it was given one")
