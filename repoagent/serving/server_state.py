"""Where a server is in its life."""

import enum
import os
import threading
import weakref
from typing import Final

from repoagent.errors import UnavailableError


class ServerState(enum.Enum):
    """The life of a core, in this order."""

    INITIALIZED = "initialized"
    STARTING = "starting"
    READY = "ready"
    EXITING = "exiting"
    STOPPED = "stopped"
    LEFT_BEHIND = "in the process that this one was forked from"
    """A forked child has a copy of the core and none of its threads: it cannot use it, nor may it unload anything."""


class ServerLife:
    """The state of one server. ``state`` may be read from any thread, and is changed by the methods only."""

    def __init__(self) -> None:
        self.state = ServerState.INITIALIZED
        self._lock = threading.Lock()
        _lives.add(self)

    def enter(self, state: ServerState, expected: ServerState) -> None:
        """Go on to ``state``.

        Raises:
            UnavailableError: the present state is not ``expected``.
        """
        with self._lock:
            if self.state is not expected:
                raise UnavailableError(f"the server cannot become {state.value}: it is {self.state.value}")
            self.state = state

    def begin_exit(self) -> bool:
        """Go on to EXITING from wherever it is; False if that was done before."""
        with self._lock:
            if self.state in (ServerState.EXITING, ServerState.STOPPED, ServerState.LEFT_BEHIND):
                return False
            self.state = ServerState.EXITING
            return True

    def end(self) -> None:
        """Everything is unloaded, or the time for it is over."""
        with self._lock:
            self.state = ServerState.STOPPED

    def not_ready(self) -> UnavailableError:
        """The error of calls that need a server that is READY."""
        return UnavailableError(f"Server not ready: it is {self.state.value}")

    def leave_behind(self) -> None:
        """This is a forked child. Only one that was never started can be used here."""
        self._lock = threading.Lock()
        if self.state is not ServerState.INITIALIZED:
            self.state = ServerState.LEFT_BEHIND


_lives: Final[weakref.WeakSet[ServerLife]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for life in list(_lives):
        life.leave_behind()


os.register_at_fork(after_in_child=_after_fork_in_child)
