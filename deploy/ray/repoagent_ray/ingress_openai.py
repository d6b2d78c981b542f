"""OpenAI's API in an ingress: of a request it reads the model and whether it streams, and passes it on as it came."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from repoagent_server.codec.json_text import loads
from repoagent_server.codec.long_json import LONG_JSON
from repoagent_server.handlers.inference import Inference
from repoagent_server.http.access import route_of
from repoagent_server.http.long_work import LongWork
from repoagent_server.http.messages import Exchange, Request
from repoagent_server.http.openai_answers import openai_error
from repoagent_server.http.openai_routes import OpenAiRoutes
from repoagent_server.http.router import Params, Route

from repoagent.errors import RepoAgentError

__all__ = ["Forward", "openai_routes"]

Forward = Callable[[Request, str, Exchange, bool], None]
"""Passes a request for a model on; True: its answer comes piece by piece."""


def openai_routes(inference: Inference, long: LongWork, forward: Forward) -> list[Route]:
    """The routes of one server, of which those that ask a model use ``forward``."""
    passes = _Passes(inference, long, forward)
    routes = OpenAiRoutes(inference, long).routes()
    return [route if route.deferred is None else replace(route, deferred=passes.on) for route in routes]


class _Passes:
    def __init__(self, inference: Inference, long: LongWork, forward: Forward) -> None:
        self._inference = inference
        self._long = long
        self._forward = forward

    def on(self, request: Request, _: Params, exchange: Exchange) -> None:
        """Read, check who asks, and pass on. A long body is read on a thread."""

        def go_on(found: tuple[str, bool]) -> None:
            request.model, streams = found
            if request.model:
                self._inference.admit(request.caller, request.model, route=route_of(request))
            self._forward(request, request.model, exchange, streams)

        if len(request.body) >= LONG_JSON:
            self._long.do(lambda _: _head(request), go_on, request, exchange, openai_error)
            return
        try:
            go_on(_head(request))
        except Exception as error:
            exchange.respond(openai_error(error))


def _head(request: Request) -> tuple[str, bool]:
    """The model that the body names, and whether the answer is wanted in pieces.

    Read by the parser of the replica, which refuses what is not a request: such a one is for no model.
    """
    try:
        document: Any = loads(request.body)
    except RepoAgentError:
        return "", False
    if type(document) is not dict:
        return "", False
    model = document.get("model")
    return model if type(model) is str else "", document.get("stream") is True
