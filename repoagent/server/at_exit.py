"""Servers that still run when the program ends are stopped then, so that their agents hear of the unloads.

By ``atexit``: the program's own threads have ended by then and need no server any more, while ours, which are daemons,
still run. It comes after an uncaught exception as well, but not when the process is killed.
"""

import atexit
import logging
import os
import threading

from repoagent.serving.core import ServingCore

logger = logging.getLogger(__name__)


class _Running:
    """The cores that this process has started and not stopped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cores: list[ServingCore] = []
        self._registered = False

    def add(self, core: ServingCore) -> None:
        with self._lock:
            self._cores.append(core)
            if not self._registered:
                # Not before there is a core: what was registered earlier ends later, so the log still works.
                self._registered = True
                atexit.register(self._stop_all)

    def remove(self, core: ServingCore) -> None:
        with self._lock:
            if core in self._cores:
                self._cores.remove(core)

    def clear_in_child(self) -> None:
        """After a fork: the cores are the parent's, and the child has none of their threads."""
        self._lock = threading.Lock()
        self._cores.clear()

    def _stop_all(self) -> None:
        with self._lock:
            cores = tuple(self._cores)
        for core in cores:
            try:
                core.stop()
            except Exception as error:  # Python 3.12.0 to 3.12.2 let no thread start any more.
                logger.error("a server could not be stopped when the program ended (%s): call its stop() before", error)


_running = _Running()
os.register_at_fork(after_in_child=_running.clear_in_child)

stop_at_exit = _running.add
"""Have a core stopped at the end of the program."""
forget = _running.remove
"""A core has been stopped."""
