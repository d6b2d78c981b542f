"""Where plans run on this machine."""

import threading

from repoagent.engines.probing import probe
from repoagent.engines.protocol import Platform
from repoagent.errors import UnsupportedError

_lock = threading.Lock()
_found: list[Platform] = []


def find_platform() -> Platform:
    """The GPUs of this machine with the TensorRT that is installed; found once, and one object for everyone.

    Raises:
        UnsupportedError: TensorRT cannot be used here; the message is the probe's. The next call looks again.
    """
    with _lock:
        if not _found:
            found = probe()
            if not found.usable:
                raise UnsupportedError(f"TensorRT plans cannot run here: {found.problem}")
            from repoagent.engines.cuda.platform import CudaPlatform

            _found.append(CudaPlatform(found))
        return _found[0]
