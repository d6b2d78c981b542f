"""Renders conversations with the templates of one model, in a process that hostile templates may spoil."""

import json
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from repoagent.errors import ConfigError, InvalidArgumentError, RepoAgentError, UnavailableError, UnsupportedError
from repoagent.installing import install_hint
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.nested_text import check_depth, read_json
from repoagent.programs import start_python
from repoagent_llm.backend.chat.source import ChatSource

_HEAD: Final = struct.Struct(">I")
_PROGRAM: Final = Path(__file__).with_name("template_child.py")
_MEMORY: Final = 1 << 29
"""Bytes of addresses that the process may have."""
_PATIENCE: Final = 60.0
"""Seconds to wait for an answer: processor time is limited, and the machine may be busy."""
_SETUP_SECONDS: Final = 10.0
"""Of the processor, to read the templates."""
_LARGEST: Final = 1 << 30
_OLDEST: Final = (3, 1, 6)


class ChatRenderer:
    """The templates of a model, ready. May be used by many threads, which wait for each other."""

    def __init__(self, source: ChatSource, where: str, limits: Limits = DEFAULT_LIMITS) -> None:
        """Read the templates; ``where``: what error texts call their folder.

        Raises:
            ConfigError: a template cannot be read.
            UnsupportedError: jinja2 is not installed.
            UnavailableError: the process cannot be started.
        """
        _check_library(where)
        self._where = where
        self._limits = limits
        self._setup = {
            "templates": dict(source.templates),
            "special": dict(source.special),
            "longest": limits.prompt_bytes,
            "setup_seconds": _SETUP_SECONDS,
            "seconds": limits.chat_template_ms / 1000,
            "memory": _MEMORY,
        }
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._closed = False
        with self._lock:
            self._running()

    def render(self, messages: str, options: str | None = None) -> str:
        """The prompt of a conversation, both as JSON: a list of messages, and an object of values for the template.

        Raises:
            InvalidArgumentError: the values make no sense, or the template fails or takes too much.
            UnavailableError: the process cannot be started again, or the model is unloaded.
        """
        for name, text in (("messages", messages), ("chat_template_kwargs", options or "")):
            try:
                check_depth(text)
            except ValueError as error:
                raise InvalidArgumentError(f"{name} is not valid JSON: {error}") from None
        with self._lock:
            answer = self._exchanged({"messages": messages, "options": options})
        if "text" not in answer:
            raise InvalidArgumentError(str(answer["refused"]))
        return str(answer["text"])

    def close(self) -> None:
        """End the process; a conversation that is being rendered gets an error."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
            with self._lock:
                process.end()

    def _exchanged(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        process = self._running()
        try:
            return process.exchange(asked)
        except (OSError, ValueError, EOFError) as error:
            raise self._failure(process, error) from None

    def _running(self) -> "_Process":
        """The process, started again if it has ended."""
        if self._closed:
            raise UnavailableError("the model is unloaded")
        if self._process is None or self._process.ended:
            self._process = _started()
            self._set_up(self._process)
        return self._process

    def _set_up(self, process: "_Process") -> None:
        try:
            answer = process.exchange(self._setup)
        except (OSError, ValueError, EOFError):
            process.end()
            raise ConfigError(
                f"'{self._where}': the chat template takes too long to read, or too much memory"
            ) from None
        if "text" not in answer:
            process.end()
            raise ConfigError(f"'{self._where}': {answer['refused']}")

    def _failure(self, process: "_Process", error: Exception) -> RepoAgentError:
        """Why there is no answer; the next conversation gets another process."""
        status = process.end()
        if status == -signal.SIGPROF or isinstance(error, TimeoutError):
            limit = self._limits.chat_template_ms
            return InvalidArgumentError(
                f"the model's chat template takes more than {limit} ms for this conversation; "
                f"{Limits.flag('chat_template_ms')} of the server sets the limit"
            )
        return UnavailableError(f"the process that renders chat templates ended with status {status}; try again")


def _check_library(where: str) -> None:
    """Templates of strangers need a sandbox without known holes."""
    try:
        found = tuple(int(part) for part in version("jinja2").split(".")[:3] if part.isdigit())
    except PackageNotFoundError:
        found = ()
    if found < _OLDEST:
        needed = "jinja2 " + ".".join(map(str, _OLDEST))
        raise UnsupportedError(
            f"'{where}' has a chat template, which needs {needed} or newer; {install_hint('repoagent-core', 'llm')}"
        )


def _started() -> "_Process":
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            return _Process(start_python(_PROGRAM, theirs.fileno(), "the process that renders chat templates"), ours)
    except BaseException:
        ours.close()
        raise


class _Process:
    """One process and the way to it. Used by one thread at a time, apart from :meth:`end`."""

    def __init__(self, process: "subprocess.Popen[bytes]", way: socket.socket) -> None:
        self._process = process
        self._way = way
        self._way.settimeout(_PATIENCE)
        self.ended = False

    def exchange(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to ``message``.

        Raises:
            OSError, EOFError, ValueError: there is none.
        """
        data = json.dumps(message).encode()
        self._way.sendall(_HEAD.pack(len(data)) + data)
        (size,) = _HEAD.unpack(self._exactly(_HEAD.size))
        if size > _LARGEST:
            raise ValueError("an answer that is too large")
        answer = read_json(self._exactly(size))
        if not isinstance(answer, dict) or not {"text", "refused"} & answer.keys():
            raise ValueError("not an answer")
        return answer

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._way.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def kill(self) -> None:
        """End it while another thread may wait for its answer."""
        self.ended = True
        with suppress(ProcessLookupError):
            self._process.kill()

    def end(self) -> int:
        """End it, unless it has ended, and return its status."""
        self.ended = True
        self._way.close()
        try:
            # Without the other end of its socket it ends by itself, and where it has, the status states why.
            return self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
