"""Where a server is in its life."""

import enum
import threading

from repoagent.errors import UnavailableError

__all__ = ["ServerLife", "ServerState"]


class ServerState(enum.Enum):
    """The life of a core, in this order."""

    INITIALIZED = "initialized"
    STARTING = "starting"
    READY = "ready"
    EXITING = "exiting"
    STOPPED = "stopped"


class ServerLife:
    """The state of one server. ``state`` may be read from any thread, and is changed by the methods only."""

    def __init__(self) -> None:
        self.state = ServerState.INITIALIZED
        self._lock = threading.Lock()

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
        """Go on to EXITING from wherever it is; False if somebody has done so before."""
        with self._lock:
            if self.state in (ServerState.EXITING, ServerState.STOPPED):
                return False
            self.state = ServerState.EXITING
            return True

    def end(self) -> None:
        """Everything is unloaded, or the time for it is over."""
        with self._lock:
            self.state = ServerState.STOPPED

    def not_ready(self) -> UnavailableError:
        """The error for whoever needs a server that is READY."""
        return UnavailableError(f"Server not ready: it is {self.state.value}")
