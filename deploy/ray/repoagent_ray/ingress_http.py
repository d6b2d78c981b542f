"""HTTP in an ingress: the routes of the server, of which those of inference pass the request on to a replica."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final

from repoagent_server.access import Access
from repoagent_server.codec.json_text import loads
from repoagent_server.codec.long_json import LONG_JSON
from repoagent_server.handlers.inference import Inference, Mailbox, Served
from repoagent_server.http.api import logged, metrics_route
from repoagent_server.http.long_work import LongWork
from repoagent_server.http.messages import Exchange, Request, Response
from repoagent_server.http.openai_answers import openai_error
from repoagent_server.http.openai_routes import OpenAiRoutes, check_members
from repoagent_server.http.routes import api_routes
from repoagent_server.http.service import (
    HttpService,
    Params,
    Route,
    Router,
    ServiceFactory,
    answer_to,
    route_of,
)
from repoagent_server.http.ui_routes import ui_routes
from repoagent_server.openai.fields import LONGEST_NAME
from repoagent_server.openai.responses import error_event
from repoagent_server.shared.pools import Pools

from repoagent.errors import RepoAgentError
from repoagent_ray.cluster_core import ClusterCore, ClusterOperations
from repoagent_ray.logs import Logs
from repoagent_ray.replicas import Replicas
from repoagent_ray.settings import Settings
from repoagent_ray.wire import HttpCall, HttpHead, is_openai, pack, unpack, without_credentials

_EVENT_END: Final = b"\n\n"


def ingress_service(
    core: ClusterCore, replicas: Replicas, settings: Settings, access: Access | None, logs: Logs
) -> ServiceFactory:
    """What an ASGI application needs to serve the replicas. ``access``: who may do what; None lets everybody."""

    def make(loop: asyncio.AbstractEventLoop, pools: Pools) -> HttpService:
        operations = ClusterOperations(core)
        forward = _Forward(replicas, loop, guarded=access is not None)
        routes = [_route(route) for route in api_routes(operations, forward.once, forward)]
        if settings.allow_openai:
            inference = Inference(Served(core, limits=settings.limits, access=access), Mailbox(loop))
            routes += _openai_routes(inference, LongWork(loop, pools.long), forward)
        if settings.allow_ui:
            routes += ui_routes(operations, explicit=True)
        if settings.allow_metrics:
            routes.append(metrics_route(core.metrics))
        service = HttpService(Router(routes), loop, pools)
        service.access = access
        service.denials = logs.denials
        service.watch = None if logs.requests is None else logged(logs.requests)
        return service

    return make


def _route(route: Route) -> Route:
    """``route`` as an ingress has it: what answers at once elsewhere asks replicas here, and waits for them."""
    return replace(route, pool="work") if route.answer is not None and route.pool != "waits" else route


class _Forward:
    """Passes requests on. Belongs to one event loop."""

    def __init__(self, replicas: Replicas, loop: asyncio.AbstractEventLoop, *, guarded: bool) -> None:
        """``guarded``: access is controlled here, so models do not get the credentials."""
        self._guarded = guarded
        self._replicas = replicas
        self._loop = loop
        self._running: set[asyncio.Task[None]] = set()

    def once(self, request: Request, params: Params, exchange: Exchange) -> None:
        """A request that has one answer."""
        self._run(self._once(request, params["model"], exchange), exchange)

    table = once

    def stream(self, request: Request, params: Params, exchange: Exchange) -> None:
        """A request whose answer comes piece by piece."""
        self._run(self._stream(request, params["model"], exchange), exchange)

    def openai(self, request: Request, name: str, exchange: Exchange, streams: bool, inference: Inference) -> None:
        """A request to OpenAI's API, once its client may use the model that ``name`` means."""
        self._run(self._openai(request, name, exchange, streams, inference), exchange)

    async def _openai(
        self, request: Request, name: str, exchange: Exchange, streams: bool, inference: Inference
    ) -> None:
        try:
            request.model = await self._replicas.model_of(name)
            if request.model:
                inference.admit(request.caller, request.model, route=route_of(request))
        except Exception as error:
            exchange.respond(openai_error(error))
            return
        await (self._stream if streams else self._once)(request, request.model, exchange)

    def _run(self, work: Coroutine[Any, Any, None], exchange: Exchange) -> None:
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        exchange.on_cancel = lambda: _cancel(task)

    async def _once(self, request: Request, model: str, exchange: Exchange) -> None:
        try:
            head: HttpHead = await self._replicas.once("http", model, self._call(request))
        except Exception as error:
            exchange.respond(_refusal(error, request))
        else:
            exchange.respond(_response(head))

    async def _stream(self, request: Request, model: str, exchange: Exchange) -> None:
        begun, events = False, 0
        try:
            async for piece in self._replicas.stream("http_stream", model, self._call(request)):
                if isinstance(piece, HttpHead):
                    begun = True
                    exchange.begin(_response(piece))
                    pieces = [bytes(unpack(part)) for part in piece.body]
                else:
                    pieces = [piece]
                for data in pieces:
                    events += data.count(_EVENT_END)
                    exchange.write(data)
        except Exception as error:
            answer = _refusal(error, request)
            if not begun:
                exchange.respond(answer)
                return
            exchange.write(_last_event(request.target, bytes(answer.body), events))
        exchange.end()

    def _call(self, request: Request) -> HttpCall:
        headers = without_credentials(request.headers) if self._guarded else list(request.headers)
        return HttpCall(request.method, request.target, headers, pack(request.body))


def _openai_routes(inference: Inference, long: LongWork, forward: "_Forward") -> list[Route]:
    """The routes of one server, of which those that ask a model use ``forward``."""
    passes = _Passes(inference, long, forward)
    routes = OpenAiRoutes(inference, long).routes()
    return [route if route.deferred is None else replace(route, deferred=passes.on) for route in routes]


class _Passes:
    def __init__(self, inference: Inference, long: LongWork, forward: "_Forward") -> None:
        self._inference = inference
        self._long = long
        self._forward = forward

    def on(self, request: Request, _: Params, exchange: Exchange) -> None:
        """Read, check who asks, and pass on. A long body is read on a thread."""

        def go_on(found: tuple[str, bool]) -> None:
            name, streams = found
            self._forward.openai(request, name, exchange, streams, self._inference)

        def fail(error: Exception) -> None:
            exchange.respond(openai_error(error))

        if len(request.body) >= LONG_JSON:
            self._long.do(lambda _: _head(request), go_on, request, exchange, fail)
            return
        try:
            go_on(_head(request))
        except Exception as error:
            fail(error)


def _head(request: Request) -> tuple[str, bool]:
    """The model that the body names, and whether the answer is wanted in pieces.

    Read by the parser of the replica, which refuses what is not a request: such a one is for no model.
    """
    if len(request.body) >= LONG_JSON:
        check_members(request.body)
    try:
        document: Any = loads(request.body)
    except RepoAgentError:
        return "", False
    if type(document) is not dict:
        return "", False
    model = document.get("model")
    return model if type(model) is str and len(model) <= LONGEST_NAME else "", document.get("stream") is True


def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()


def _refusal(error: Exception, request: Request) -> Response:
    return openai_error(error) if is_openai(request.target) else answer_to(error, request)


def _last_event(target: bytes, error: bytes, number: int) -> bytes:
    """The event number ``number`` of a stream, an error: as the server itself would write it on the same path."""
    if target.partition(b"?")[0] == b"/v1/responses":
        return error_event(error, number)
    return b"data: %b%b" % (error, _EVENT_END)


def _response(head: HttpHead) -> Response:
    return Response(head.status, b"", head.content_type, head.headers, tuple(map(unpack, head.body)))
