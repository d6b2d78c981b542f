"""The API behind a platform's routes.

A request is rewritten before anything looks at it. So it takes the same route as a request to the HTTP port, and
whatever restricts that route restricts it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent_server.http.messages import Exchange, Request, Response, WrappedExchange, error_response
from repoagent_server.http.service import HttpService, MakeService, Refusal, Router
from repoagent_server.shared.pools import Pools

UNKNOWN: Final = Response(400)
"""The answer to a path that a platform does not have; without a body, as in Triton."""


@dataclass(frozen=True, slots=True)
class Target:
    """The request of the API that takes the place of a platform's request."""

    path: str
    """Path and query, percent-encoded."""
    method: bytes | None = None
    """None: the method that the route of ``path`` takes, POST if it takes several."""


class Platform(Protocol):
    """How one platform writes its requests."""

    @property
    def binary_type(self) -> bytes:
        """The media type of a body with binary tensors, up to the size of its JSON."""

    def target(self, request: Request) -> Target | Response:
        """Where ``request`` belongs; the answer to it if it belongs nowhere."""


_SIZE: Final = b"Inference-Header-Content-Length"


def hosted(platform: Platform) -> MakeService:
    """What makes a service that ``platform`` can talk to."""

    def make(router: Router, loop: asyncio.AbstractEventLoop, pools: Pools) -> HttpService:
        return _HostedService(platform, router, loop, pools)

    return make


class _HostedService(HttpService):
    """Dispatches a platform's requests."""

    def __init__(self, platform: Platform, router: Router, loop: asyncio.AbstractEventLoop, pools: Pools) -> None:
        super().__init__(router, loop, pools)
        self._platform = platform

    def handle(self, request: Request, exchange: Exchange) -> None:
        meant = self._understood(request)
        if isinstance(meant, Response):
            exchange.respond(meant)
        else:
            super().handle(meant, _HostedExchange(exchange, self._platform.binary_type))

    def verdict(self, request: Request) -> Refusal | None:
        meant = self._understood(request)
        if isinstance(meant, Response):
            return lambda exchange: exchange.respond(meant)
        return super().verdict(meant)

    def _understood(self, request: Request) -> Request | Response:
        try:
            return self._meant(request)
        except RepoAgentError as error:
            return error_response(error)

    def _meant(self, request: Request) -> Request | Response:
        """The request of the API for ``request``, or the answer if there is none."""
        target = self._platform.target(request)
        if isinstance(target, Response):
            return target
        path = target.path.encode("latin-1")
        frame = replace(request.frame, json_length=_json_size(request, self._platform.binary_type))
        return replace(request, method=target.method or self._method(path), target=path, frame=frame)

    def _method(self, path: bytes) -> bytes:
        match = self._router.match(path)
        return b"GET" if match is not None and b"POST" not in match.route.methods else b"POST"


def _json_size(request: Request, binary_type: bytes) -> bytes | None:
    """How many bytes of the body are JSON, as the media type has it; None if all of them are.

    Raises:
        InvalidArgumentError: something stands before the media type.
    """
    given = request.header(b"content-type") or b""
    place = given.lower().find(binary_type)
    if place > 0:
        raise InvalidArgumentError(
            f"expect MIME type for binary data starts with '{binary_type.decode()}', got: {given.decode('latin-1')}"
        )
    return given[len(binary_type) :] if place == 0 else None


class _HostedExchange(WrappedExchange):
    """An exchange whose answers name the size of their JSON in the media type."""

    def __init__(self, inner: Exchange, binary_type: bytes) -> None:
        super().__init__(inner)
        self._binary_type = binary_type

    def respond(self, response: Response) -> None:
        self._inner.respond(self._typed(response))

    def _typed(self, response: Response) -> Response:
        for name, size in response.headers:
            if name == _SIZE:
                rest = [header for header in response.headers if header[0] != _SIZE]
                return replace(response, content_type=self._binary_type + size, headers=rest)
        return response


def default_model(name: str, index: Sequence[Mapping[str, Any]], how: str, *, check: bool = True) -> str:
    """``name``, or the only model of ``index``, which lists the versions that are ready.

    Args:
        name: What the operator chose; "" for nothing.
        index: The index of the server, ready versions only.
        how: How the operator names a model, for the message.
        check: Whether a model that was chosen must be ready.

    Raises:
        InvalidArgumentError: there is no such model, or more than one.
    """
    ready = sorted({str(entry["name"]) for entry in index})
    if name:
        if check and name not in ready:
            raise InvalidArgumentError(f"Expect the default model '{name}' is loaded ({how} names it)")
        return name
    if len(ready) != 1:
        raise InvalidArgumentError(
            "Expect the model repository contains only a single model if default model is not specified; "
            f"{len(ready)} are loaded. Name one with {how}"
        )
    return ready[0]
