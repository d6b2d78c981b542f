"""What Ray raises when a call of a replica fails, as errors of the protocol."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from grpc import StatusCode
from grpc.aio import AioRpcError
from ray.exceptions import ObjectLostError, RayActorError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from repoagent.errors import CancelledError, InternalError, OverloadedError, RepoAgentError, UnavailableError

__all__ = ["as_repoagent_error", "ray_faults"]

logger = logging.getLogger(__name__)

#: A replica that ended, or whose answer went with it.
_ENDED = (RayActorError, ObjectLostError, ReplicaUnavailableError)
#: The text of grpcio for one that ends, where Ray does not translate it.
_LOST = (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)


def as_repoagent_error(error: Exception) -> RepoAgentError:
    """``error`` as clients get it. Whether a request was executed by a replica that ended is not known."""
    if isinstance(error, RepoAgentError):
        return error
    if isinstance(error, _ENDED) or (isinstance(error, AioRpcError) and error.code() in _LOST):
        return UnavailableError("the replica that had the request has ended before it answered; send it again")
    if isinstance(error, BackPressureError):
        return OverloadedError("Exceeds maximum queue size: too many requests wait for a replica; send it later")
    if isinstance(error, DeploymentUnavailableError):
        return UnavailableError("Server not ready: there are no replicas")
    if isinstance(error, TaskCancelledError):
        return CancelledError("the request was cancelled")
    if isinstance(error, TimeoutError):
        return UnavailableError("the replicas have not answered in time")
    logger.error("a call of a replica failed: %s", error, exc_info=error)
    return InternalError(f"unexpected {type(error).__name__}; the server's log has the details")


@contextmanager
def ray_faults() -> Iterator[None]:
    """Turn what Ray raises in the block into a :class:`RepoAgentError`."""
    try:
        yield
    except Exception as error:
        raise as_repoagent_error(error) from error
