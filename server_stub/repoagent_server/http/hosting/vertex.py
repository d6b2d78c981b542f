"""Google Vertex AI: a route for health, one for predictions, and a header that leads to the rest of the API."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from repoagent.errors import InvalidArgumentError
from repoagent_server.http.hosting.service import UNKNOWN, Target, default_model, hosted
from repoagent_server.http.messages import Request, Response, error_response
from repoagent_server.http.service import HttpService, ServiceFactory
from repoagent_server.shared.core import Core
from repoagent_server.shared.pools import Pools

_REDIRECT: Final = b"x-vertex-ai-triton-redirect"


@dataclass(frozen=True, slots=True)
class VertexOptions:
    """What the platform and the operator chose."""

    health_route: str
    predict_route: str
    port: int = 8080
    model: str = ""
    """The model of predictions; empty for the only one that is loaded."""

    @classmethod
    def of(cls, environment: Mapping[str, str], port: int = 8080, model: str = "") -> "VertexOptions":
        """Options with the routes that Vertex AI's variables name.

        Raises:
            InvalidArgumentError: one of the routes is missing, or is not a path.
        """
        health, predict = (_route(environment, f"AIP_{name}_ROUTE") for name in ("HEALTH", "PREDICT"))
        if health == predict:
            raise InvalidArgumentError(f"AIP_HEALTH_ROUTE and AIP_PREDICT_ROUTE are both '{health}'; give two routes")
        return cls(health, predict, port, model)


def _route(environment: Mapping[str, str], name: str) -> str:
    route = environment.get(name, "")
    if not route:
        raise InvalidArgumentError(f"{name} is not defined for Vertex AI endpoint; set this environment variable")
    if not (route.startswith("/") and route.isascii() and route.isprintable()) or set(route) & set(" ?#"):
        raise InvalidArgumentError(f"environment variable {name} is not a path that begins with '/': '{route}'")
    return route


class Vertex:
    """The platform, with one model for predictions without the header."""

    binary_type = b"application/vnd.vertex-ai-triton.binary+json;json-header-size="

    def __init__(self, options: VertexOptions, model: str) -> None:
        self._health = options.health_route.encode()
        self._predict = options.predict_route.encode()
        self._infer = f"/v2/models/{quote(model, safe='')}/infer"

    def target(self, request: Request) -> Target | Response:
        """Where ``request`` belongs."""
        path = request.target.partition(b"?")[0]
        if path == self._health:
            return Target("/v2/health/ready", request.method)
        if path != self._predict:
            return UNKNOWN
        redirect = request.header(_REDIRECT)
        if redirect is None:
            return Target(self._infer, request.method)
        if request.method != b"POST":  # the platform can send no other, so the route's own method takes its place
            return error_response("Method Not Allowed", 405)
        return Target("/" + redirect.decode("latin-1").strip())


def vertex_service(options: VertexOptions, core: Core, api: Callable[..., ServiceFactory]) -> ServiceFactory:
    """What a front end needs to serve Vertex AI's routes: see :func:`sagemaker_service`."""

    def make(loop: asyncio.AbstractEventLoop, pools: Pools) -> HttpService:
        model = default_model(options.model, core.index(ready_only=True), "--vertex-ai-default-model")
        return api(make_service=hosted(Vertex(options, model)))(loop, pools)

    return make
