"""Fills the table of the C layer."""

import ctypes
import os
import signal  # noqa: F401 - it takes SIGINT when it is imported: now, so that C can give that back
import threading
from typing import Final

from repoagent.errors import InternalError
from repoagent_capi import LIBRARY, agents, requests, servers
from repoagent_capi._crossing import ffi, lib
from repoagent_capi.errors import CROSSINGS

_PARTS: Final = (agents, requests, servers)
_lock: Final = threading.Lock()
_installed = False


def ready() -> None:
    """Give C the table, once, and let libraries that are opened later find the functions of the layer.

    Raises:
        InternalError: a function of the table has no body; one without would look like success to C.
    """
    global _installed
    with _lock:
        if _installed:
            return
        wanted = {name for name, _ in ffi.typeof("core").fields}
        if wanted != CROSSINGS:
            raise InternalError(f"repoagent_capi lacks {', '.join(sorted(wanted ^ CROSSINGS))}; build it again")
        ctypes.CDLL(str(LIBRARY), mode=os.RTLD_NOW | os.RTLD_GLOBAL)
        lib.install()
        _installed = True
