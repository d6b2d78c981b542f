"""No core dump of a process that holds plaintext."""

import ctypes
import logging
import os
import resource
import threading
from typing import Final

__all__ = ["forbid_core_dumps"]

_SET_DUMPABLE: Final = 4
_lock: Final = threading.Lock()
_forbidden: Final = threading.Event()
logger = logging.getLogger(__name__)


def forbid_core_dumps() -> None:
    """Let the kernel write no core dump of this process from now on; again is fine.

    The limit alone would not do: a handler in ``core_pattern`` is given the memory whatever the limit says. A process
    that cannot be dumped cannot be looked into by a debugger of the same user, either. Programs that it starts inherit
    the limit.
    """
    with _lock:
        if _forbidden.is_set():
            return
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if ctypes.CDLL(None, use_errno=True).prctl(_SET_DUMPABLE, 0, 0, 0, 0):
            logger.warning("core dumps cannot be switched off: %s", os.strerror(ctypes.get_errno()))
        _forbidden.set()
