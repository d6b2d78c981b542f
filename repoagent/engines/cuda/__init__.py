"""Engines over CUDA and TensorRT, and where plans run on this machine.

The modules of this package are imported only after the probe has found both usable.

Checked against the interfaces of TensorRT 10.15, 11.x and TensorRT for RTX by mypy; docs/gpu.md lists what of it has
never been executed.
"""

import threading
from typing import TYPE_CHECKING

from repoagent.engines.probe import probe
from repoagent.errors import UnsupportedError

if TYPE_CHECKING:
    from repoagent.engines.cuda.platform import CudaPlatform

_lock = threading.Lock()
_found: "list[CudaPlatform]" = []


def find_platform() -> "CudaPlatform":
    """The GPUs of this machine with the TensorRT that is installed; found once, one object for all. Raises
    ``UnsupportedError`` with the probe's message if TensorRT cannot be used; the next call looks again."""
    with _lock:
        if not _found:
            found = probe()
            if not found.usable:
                raise UnsupportedError(f"TensorRT plans cannot run here: {found.problem}")
            from repoagent.engines.cuda.platform import CudaPlatform

            _found.append(CudaPlatform(found))
        return _found[0]
