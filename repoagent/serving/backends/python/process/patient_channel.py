"""A channel whose sender waits for nobody."""

import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from repoagent.serving.backends.python.process.channel import Channel, UndeliveredError
from repoagent.serving.backends.python.process.memory import Arena, Mapping
from repoagent.serving.backends.python.process.packets import DONT_WAIT, send_packet

__all__ = ["PatientChannel"]


class PatientChannel(Channel):
    """A channel whose ``send`` never waits for the other side: what does not fit is sent by :meth:`flush`.

    ``on_backlog`` is called when there is something to flush.
    """

    def __init__(
        self, sock: socket.socket, arena: Arena, mapping: Mapping, on_backlog: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(sock, arena, mapping)
        self._backlog: deque[tuple[bytes, list[int]]] = deque()
        self._on_backlog = on_backlog

    @property
    def backlogged(self) -> bool:
        return bool(self._backlog)

    def flush(self, *, wait: bool = False) -> None:
        """Send as much as the other side takes at the moment, or all."""
        flags = 0 if wait else DONT_WAIT
        with self._lock:
            while self._backlog:
                data, descriptors = self._backlog[0]
                try:
                    send_packet(self._socket, [data], descriptors, flags)
                except BlockingIOError:
                    return
                except OSError:
                    self._forget()
                    return
                _close(self._backlog.popleft()[1])

    def close(self) -> None:
        super().close()
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        while self._backlog:
            _close(self._backlog.popleft()[1])

    def _transmit(self, parts: list[Any], descriptors: list[int]) -> None:
        try:
            if not self._backlog:
                send_packet(self._socket, parts, descriptors, DONT_WAIT)
                return
        except BlockingIOError:
            pass
        except OSError as error:
            raise UndeliveredError(str(error)) from error
        self._backlog.append((b"".join(parts), [os.dup(descriptor) for descriptor in descriptors]))
        self._on_backlog()


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
