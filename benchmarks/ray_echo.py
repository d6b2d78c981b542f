"""The least that Ray Serve can do with two deployments: an ingress that passes bytes on, a replica that returns them.

For ray_hop.py, which compares the application of ``deploy/ray`` with it.
"""

from typing import Any

from ray import serve
from repoagent_ray.environment import in_process_of
from starlette.requests import Request
from starlette.responses import Response

QUIET = {"enable_access_log": False}


class Encoded(bytes):
    """The message of an answer, as Ray's gRPC server wants it."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - the name in protobuf
        return bytes(self)


class Echo:
    """The replica."""

    async def answer(self, body: bytes) -> bytes:
        return body


class Front:
    """The ingress."""

    def __init__(self, echo: Any) -> None:
        self._echo = echo.options(method_name="answer", _by_reference=False)

    async def __call__(self, request: Request) -> Response:
        return Response(await self._echo.remote(await request.body()))

    async def ModelInfer(self, message: bytes) -> Encoded:  # noqa: N802 - the name of the RPC
        return Encoded(await self._echo.remote(message))


def echo() -> Any:
    """The application, with the settings of Ray's that ours has."""
    replica = serve.deployment(
        Echo, max_ongoing_requests=64, logging_config=QUIET, ray_actor_options=in_process_of({"num_cpus": 0})
    )
    front = serve.deployment(
        Front, max_ongoing_requests=1000, logging_config=QUIET, ray_actor_options=in_process_of({"num_cpus": 0})
    )
    return front.bind(replica.bind())
