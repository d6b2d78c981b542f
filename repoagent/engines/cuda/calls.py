"""Calls of the CUDA runtime: each returns a tuple that begins with an error."""

import logging
from typing import Any, Final

from cuda.bindings import runtime

from repoagent.errors import InternalError, UnavailableError

__all__ = ["LASTING", "checked", "released", "runtime"]

logger = logging.getLogger(__name__)

LASTING: Final = frozenset(
    {
        "cudaErrorAssert",
        "cudaErrorECCUncorrectable",
        "cudaErrorHardwareStackError",
        "cudaErrorIllegalAddress",
        "cudaErrorIllegalInstruction",
        "cudaErrorInvalidAddressSpace",
        "cudaErrorInvalidPc",
        "cudaErrorLaunchFailure",
        "cudaErrorLaunchTimeout",
        "cudaErrorMisalignedAddress",
    }
)
"""After one of these every later call of the process fails."""


def checked(result: tuple[Any, ...], what: str) -> Any:
    """What a call returned beside its error: a value, or None.

    Args:
        what: What the call was for, for the message.

    Raises:
        UnavailableError: there is not enough memory.
        InternalError: it failed otherwise.
    """
    status = result[0]
    if int(status) != 0:
        runtime.cudaGetLastError()  # Else whoever asks for the last error next takes this one for its own.
        message = f"CUDA cannot {what}: {status.name}"
        if status == runtime.cudaError_t.cudaErrorMemoryAllocation:
            raise UnavailableError(f"{message}; unload other models, or lower the number of instances")
        if status.name in LASTING:
            message += "; no plan can run in this process any more: restart the server"
        raise InternalError(message)
    return result[1] if len(result) > 1 else None


def released(result: tuple[Any, ...], what: str) -> None:
    """As :func:`checked` of a call that gives something back: a failure is logged, as nobody can do more about it."""
    try:
        checked(result, what)
    except (InternalError, UnavailableError) as error:
        logger.warning("%s", error)
