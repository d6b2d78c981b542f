"""Calls of the CUDA runtime: each returns a tuple that begins with an error."""

from typing import Any

from cuda.bindings import runtime

from repoagent.errors import InternalError, UnavailableError

__all__ = ["checked", "runtime"]


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
        message = f"CUDA cannot {what}: {status.name}"
        if status == runtime.cudaError_t.cudaErrorMemoryAllocation:
            raise UnavailableError(f"{message}; unload other models, or lower the number of instances")
        raise InternalError(message)
    return result[1] if len(result) > 1 else None
