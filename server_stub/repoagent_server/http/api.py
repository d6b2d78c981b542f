"""The HTTP API over a core, and the metrics page, put together."""

import asyncio
from collections.abc import Callable
from typing import Final

from repoagent.serving.measuring.prometheus import CONTENT_TYPE
from repoagent_server.access import Access, Need, Right
from repoagent_server.access.access import Denials
from repoagent_server.access.access_file_reader import METRICS
from repoagent_server.access.rights import for_all
from repoagent_server.handlers.headers import Api, HeaderForwarding, Restrictions
from repoagent_server.handlers.inference import Inference, Mailbox, Served
from repoagent_server.handlers.operations import Operations
from repoagent_server.http.body import DEFAULT_MAX_BODY
from repoagent_server.http.compression import CodedBodies
from repoagent_server.http.generate import GenerateRoutes
from repoagent_server.http.infer import InferRoute
from repoagent_server.http.long_work import LongWork
from repoagent_server.http.messages import Exchange, Request, Response, WrappedExchange
from repoagent_server.http.openai_routes import OpenAiRoutes, load_routes
from repoagent_server.http.routes import api_routes
from repoagent_server.http.service import HttpService, MakeService, Match, Params, Route, Router, ServiceFactory, Watch
from repoagent_server.http.ui_routes import ui_routes
from repoagent_server.shared.pools import Pools
from repoagent_server.shared.request_log import RequestLog, RunningRequest
from repoagent_server.shared.reserve import Reserve

MetricsText = Callable[[], str]

_ALL_METADATA: Final = for_all(Right.METADATA)


def api_service(
    served: Served,
    *,
    metrics: MetricsText | None = None,
    max_input_size: int = DEFAULT_MAX_BODY,
    restrictions: Restrictions | None = None,
    forward_headers: str = "",
    openai: bool = False,
    make_service: MakeService = HttpService,
    ui: bool = False,
    explicit: bool = False,
) -> ServiceFactory:
    """What an :class:`~repoagent_server.http.frontend.HttpFrontend` needs to serve the API.

    Args:
        served: What answers, and who may ask it for what.
        metrics: Writes the metrics page; without it there is none on this port.
        max_input_size: How many bytes the tensors of a request may have once its body is decoded.
        restrictions: What needs a header.
        openai: Whether OpenAI's API is served, below ``/v1``. Otherwise its paths answer 404 with the flag that does.
        make_service: What dispatches requests; another one than HttpService may translate them first.
        ui: Whether there is a page for people, at ``/ui``.
        explicit: Whether that page offers to load and unload models.
        forward_headers: Which headers reach the model as parameters: see :class:`HeaderForwarding`.

    Raises:
        InvalidArgumentError: ``forward_headers`` is not a regular expression.
    """
    forwarding = HeaderForwarding(forward_headers)

    def make(loop: asyncio.AbstractEventLoop, pools: Pools) -> HttpService:
        allowed, regions = served.allow_load_parameters, served.regions
        operations = Operations(served.core, allow_load_parameters=allowed, regions=regions)
        inference = Inference(served, Mailbox(loop), forwarding)
        long = LongWork(loop, pools.long)
        generate = GenerateRoutes(inference, max_input_size, long)
        infer = InferRoute(inference, long, CodedBodies(LongWork(loop, pools.work), max_input_size, served.reserve))
        routes = api_routes(operations, infer, generate)
        routes += load_routes(routes, served=openai)
        routes += OpenAiRoutes(inference, long).routes(served=openai)
        if ui:
            routes += ui_routes(operations, explicit=explicit)
        if metrics is not None:
            routes.append(metrics_route(metrics))
        service = make_service(Router(routes, restrictions or {}), loop, pools)
        service.access = served.access
        service.denials = served.denials
        service.reserve = served.reserve
        service.watch = None if served.request_log is None else logged(served.request_log)
        return service

    return make


def metrics_service(
    metrics: MetricsText,
    access: Access | None = None,
    request_log: RequestLog | None = None,
    denials: Denials | None = None,
    reserve: Reserve | None = None,
) -> ServiceFactory:
    """The same for a port that has the metrics page alone, which the access file can open to everybody."""
    needs = for_all(Right.METADATA, opened_by=METRICS)

    def make(loop: asyncio.AbstractEventLoop, pools: Pools) -> HttpService:
        service = HttpService(Router([metrics_route(metrics, needs)]), loop, pools)
        service.access = access
        service.denials = denials or Denials()
        service.reserve = reserve or service.reserve
        service.watch = None if request_log is None else logged(request_log)
        return service

    return make


def metrics_route(metrics: MetricsText, needs: Need = _ALL_METADATA) -> Route:
    """The page, on a port that has other routes as well unless ``needs`` are others."""

    def page(_: Request, __: Params) -> Response:
        return Response(200, metrics().encode(), CONTENT_TYPE)

    return Route(METRICS_PATH, frozenset({b"GET"}), page, pool="work", needs=needs)


METRICS_PATH: Final = "/metrics"


def logged(log: RequestLog) -> Watch:
    """What has ``log`` hold each request to a model, and each for metrics, whatever it is answered."""

    def watch(request: Request, match: Match, exchange: Exchange) -> Exchange:
        protocol = _protocol(match.route)
        return _LoggedExchange(exchange, request, match, log, protocol) if protocol else exchange

    return watch


def _protocol(route: Route) -> str:
    """What a line calls requests of ``route``; empty if they have no line."""
    if route.api is Api.INFERENCE:
        return "http"
    return "metrics" if route.pattern == METRICS_PATH else ""


class _LoggedExchange(WrappedExchange):
    """Passes everything on, and makes the line of the end of it."""

    __slots__ = ("_head", "_log", "_match", "_request", "_running", "_sent")

    def __init__(self, inner: Exchange, request: Request, match: Match, log: RequestLog, protocol: str) -> None:
        super().__init__(inner)
        self._running = RunningRequest(len(request.body), protocol=protocol)
        self._request = request
        self._match = match
        self._log = log
        self._sent = 0
        self._head: Response | None = None

    def respond(self, response: Response) -> None:
        self._inner.respond(response)
        self._note(response, response.length)

    def begin(self, head: Response) -> None:
        self._head = head
        self._inner.begin(head)

    def write(self, piece: bytes) -> None:
        self._sent += len(piece)
        self._inner.write(piece)

    def end(self) -> None:
        self._inner.end()
        if self._head is not None:
            self._note(self._head, self._sent)

    def _note(self, response: Response, sent: int) -> None:
        running, request, served, params = self._running, self._request, response.served, self._match.params
        running.client = request.caller.name if request.caller is not None else ""
        running.model, running.version = params.get("model") or request.model, params.get("version", "")
        running.request = request.id
        if served is not None:
            running.model, running.version = served.model_name, served.model_version
            running.request = running.request or served.id
        running.status, running.tokens = response.status, response.tokens
        running.end(self._log, sent)
