"""Amazon SageMaker: ``GET /ping`` and ``POST /invocations``, for one model."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from repoagent.errors import InvalidArgumentError
from repoagent_server.http.hosting.service import UNKNOWN, Target, default_model, hosted
from repoagent_server.http.messages import Request, Response
from repoagent_server.http.service import HttpService, ServiceFactory
from repoagent_server.shared.core import Core
from repoagent_server.shared.pools import Pools

_PREFIX: Final = "SAGEMAKER_TRITON_"
_INFERENCES: Final = ("infer", "generate", "generate_stream", "invocations")
_PINGS: Final = ("ready", "live")


@dataclass(frozen=True, slots=True)
class SageMakerOptions:
    """What the operator chose."""

    port: int = 8080
    safe_ports: tuple[int, int] | None = None
    """The lowest and the highest port that the other endpoints may have."""
    model: str = ""
    """The model of ``/invocations``; empty for the only one that is loaded."""
    inference: str = "infer"
    """The operation of ``/invocations``: infer, generate, generate_stream or invocations."""
    ping: str = "ready"
    """What ``/ping`` reports: ready or live."""

    @classmethod
    def of(
        cls, environment: Mapping[str, str], port: int = 8080, safe_ports: tuple[int, int] | None = None
    ) -> "SageMakerOptions":
        """Options with what the variables of Triton's image choose.

        Raises:
            InvalidArgumentError: one of them has a value without a meaning.
        """
        return cls(
            port=port,
            safe_ports=safe_ports,
            model=environment.get(f"{_PREFIX}DEFAULT_MODEL_NAME", ""),
            inference=_one_of(_INFERENCES, environment, "INFERENCE_TYPE"),
            ping=_one_of(_PINGS, environment, "PING_MODE"),
        )


def _one_of(known: tuple[str, ...], environment: Mapping[str, str], name: str) -> str:
    value = environment.get(_PREFIX + name, known[0])
    if value not in known:
        raise InvalidArgumentError(f"environment variable {_PREFIX}{name} is '{value}'; use {', '.join(known)}")
    return value


class SageMaker:
    """The platform, for one model."""

    binary_type = b"application/vnd.sagemaker-triton.binary+json;json-header-size="

    def __init__(self, options: SageMakerOptions, model: str) -> None:
        self._paths = {
            b"/ping": f"/v2/health/{options.ping}",
            b"/invocations": f"/v2/models/{quote(model, safe='')}/{options.inference}",
        }

    def target(self, request: Request) -> Target | Response:
        """Where ``request`` belongs, with its own method: the route refuses another one."""
        path = self._paths.get(request.target.partition(b"?")[0])
        return UNKNOWN if path is None else Target(path, request.method)


def sagemaker_service(options: SageMakerOptions, core: Core, api: Callable[..., ServiceFactory]) -> ServiceFactory:
    """What a front end needs to serve SageMaker's routes with ``api``, in which another dispatcher may be put."""

    def make(loop: asyncio.AbstractEventLoop, pools: Pools) -> HttpService:
        # A model that is named may be loaded later: /ping reports until then that the server is not ready.
        index = [] if options.model else core.index(ready_only=True)
        model = default_model(options.model, index, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", check=False)
        return api(make_service=hosted(SageMaker(options, model)))(loop, pools)

    return make
