"""Requests to routes, on one event loop: what is parsed comes in here, and one response for each goes out."""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

from repoagent.errors import InternalError, RepoAgentError
from repoagent.limits import DEFAULT_LIMITS
from repoagent_server.access import Access, AccessError, Cause, Denied, Need
from repoagent_server.access.access import Denials
from repoagent_server.access.credentials import given_in
from repoagent_server.codec.long_json import LONG_JSON
from repoagent_server.handlers.headers import Api, Restriction, Restrictions
from repoagent_server.handlers.operations import Pool
from repoagent_server.http.messages import Exchange, Request, Response, error_response
from repoagent_server.http.origins import Origins
from repoagent_server.shared.client_text import client_text
from repoagent_server.shared.pools import Pools
from repoagent_server.shared.reserve import Reserve

logger = logging.getLogger(__name__)

#: The answer to a request that comes when the server is going down.
STOPPING: Final = "Server not ready: it is stopping"

_SHOWN: Final = 512
"""Bytes of a path that are reported."""


Params = Mapping[str, str]
"""The named parts of the path: ``model``, ``version``, ..., decoded; "" for one that is absent."""

Answer = Callable[[Request, Params], Response]
Deferred = Callable[[Request, Params, Exchange], None]


@dataclass(frozen=True, slots=True)
class Route:
    """One path (a regular expression) with its methods.

    Either ``answer`` or ``deferred`` is set, which answers through the exchange when it can.
    """

    pattern: str
    methods: frozenset[bytes]
    answer: Answer | None = None
    deferred: Deferred | None = None
    pool: Pool = ""
    """Where ``answer`` runs; "" for the event loop."""
    asks: Callable[[Params], bool] | None = None
    """For the pool ``asks``: whether the answer waits for a model this time. Otherwise the event loop runs it."""
    while_stopping: bool = True
    """Whether it is still served when the server is going down."""
    needs: Need | None = None
    """What a client needs where access is controlled; without it every client is refused."""
    api: Api | None = None
    """What it belongs to when parts of the API are restricted."""
    guard: Restriction | None = None
    """Set by the router where that part is restricted."""
    refuse: Callable[[str, int], Response] = error_response
    """How its errors are written."""
    off: str = ""
    """Why it is not served: those who are let in get 404 with this text, whatever the method. Empty if it is."""


@dataclass(frozen=True, slots=True)
class Match:
    """A route, and the parts of its path."""

    route: Route
    params: Params = field(default_factory=dict)


_OPEN: Final[Restrictions] = MappingProxyType({})
_CACHE_SIZE: Final = 1024
_CACHED_TARGET_SIZE: Final = 512


class Router:
    """Finds routes. The first pattern that matches the whole path wins."""

    def __init__(self, routes: list[Route], restrictions: Restrictions = _OPEN) -> None:
        guarded = [
            route if route.api is None else replace(route, guard=restrictions.get(route.api)) for route in routes
        ]
        self._routes = [(re.compile(route.pattern), route) for route in guarded]
        self._seen: dict[bytes, Match] = {}

    @property
    def routes(self) -> list[Route]:
        """All of them, in the order in which they are tried."""
        return [route for _, route in self._routes]

    def match(self, target: bytes) -> Match | None:
        """The route for a request target (path and query as sent)."""
        found = self._seen.get(target)
        if found is None:
            found = self._search(target)
            if found is not None and len(self._seen) < _CACHE_SIZE and len(target) <= _CACHED_TARGET_SIZE:
                self._seen[target] = found
        return found

    def _search(self, target: bytes) -> Match | None:
        path = _path(target)
        for pattern, route in self._routes:
            match = pattern.fullmatch(path)
            if match is not None:
                params = {name: unquote(value or "") for name, value in match.groupdict().items()}
                return Match(route, params)
        return None


def _path(target: bytes) -> str:
    """The path of an origin-form or absolute-form target, still encoded."""
    text = target.decode("latin-1")
    if not text.startswith("/") and "://" in text:
        text = "/" + text.split("://", 1)[1].partition("/")[2]
    return text.partition("?")[0]


Watch = Callable[[Request, Match, Exchange], Exchange]

Refusal = Callable[[Exchange], None]
"""Answers a request that is not let in."""


class HttpService:
    """Dispatches requests. All methods except ``stopping`` belong to the thread of ``loop``."""

    def __init__(self, router: Router, loop: asyncio.AbstractEventLoop, pools: Pools) -> None:
        self._router = router
        self._loop = loop
        self._pools = pools
        self.stopping = False
        """Set from any thread: from now on inference, load and unload requests are refused."""
        self.parting = False
        """Set from any thread: a connection ends with its next answer, and its client opens another one elsewhere."""
        self.origins: Origins | None = None
        """Set by a front end with a socket of its own; an application in another one leaves this to that."""
        self.access: Access | None = None
        """Who may do what; None lets everybody do everything."""
        self.denials = Denials()
        """Gets what is refused for its headers; what ``access`` refuses has its own observers."""
        self.reserve = Reserve(DEFAULT_LIMITS.held_bytes)
        """Of the memory for bodies and answers; one for all ports of a server."""
        self.watch: Watch | None = None
        """Given each request that has a route: what it returns is answered in the place of the exchange."""

    @property
    def routes(self) -> list[Route]:
        """What it answers."""
        return self._router.routes

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Answer ``request`` through ``exchange``, now or later. Never raises."""
        match = self._router.match(request.target)
        if match is None:
            exchange.respond(error_response("Not Found", 404))
            return
        if self.watch is not None:
            exchange = self.watch(request, match, exchange)
        route = match.route
        refusal = self._refusal(request, route, match.params)
        if refusal is not None:
            exchange.respond(refusal)
        elif route.answer is not None:
            self._call(route, route.answer, request, match.params, exchange)
        elif route.deferred is not None:
            try:
                route.deferred(request, match.params, exchange)
            except Exception as error:
                exchange.respond(answer_to(error, request))

    def verdict(self, request: Request) -> Refusal | None:
        """What answers ``request``, whose body is still to come, if its head is reason enough to refuse it.

        None if its body is wanted. :meth:`handle` decides again then, as the rules may have changed by that time.
        """
        match = self._router.match(request.target)
        if match is None:
            return lambda exchange: exchange.respond(error_response("Not Found", 404))
        response = self._refusal(request, match.route, match.params)
        if response is None:
            return None
        watch = self.watch
        return lambda exchange: (exchange if watch is None else watch(request, match, exchange)).respond(response)

    def _call(self, route: Route, answer: Answer, request: Request, params: Params, exchange: Exchange) -> None:
        """Answer what a route answers with one call: here, or on a thread."""
        pool = route.pool
        if pool in ("", "asks") and len(request.body) >= LONG_JSON:
            pool = "long"
        elif pool == "asks" and route.asks is not None and not route.asks(params):
            pool = ""
        if pool:
            self._answer_later(getattr(self._pools, pool), answer, request, params, exchange)
        else:
            exchange.respond(self._answer(answer, request, params))

    def _refusal(self, request: Request, route: Route, params: Params) -> Response | None:
        """What a request is answered that is not let in."""
        origins, frame = self.origins, request.frame
        if origins is not None and (
            frame.host not in origins.known or frame.origin is not None or frame.fetch_site is not None
        ):
            foreign = origins.refusal(request, route.api is Api.INFERENCE)
            if foreign is not None:
                return self._denied(request, route, foreign, Cause.FOREIGN)
        guard = route.guard
        if guard is not None and not guard.admits(request.header(guard.header.lower().encode())):
            text = f"This API is restricted, expecting header '{guard.header}'"
            return self._denied(request, route, text, Cause.RESTRICTED)
        if self.access is not None:
            try:
                _admit(self.access, request, route.needs, params)
            except AccessError as error:
                self._report(error, self.access, request)
                response = route.refuse(client_text(error), error.status)
                if error.challenge:
                    response.headers = [*response.headers, (b"WWW-Authenticate", error.challenge.encode())]
                return response
        if route.off:
            return route.refuse(route.off, 404)
        if request.method not in route.methods:
            return route.refuse("Method Not Allowed", 405)
        if self.stopping and not route.while_stopping:
            return route.refuse(STOPPING, 503)
        return None

    def _denied(self, request: Request, route: Route, text: str, cause: Cause) -> Response:
        where = route_of(request)
        self.denials.report(Denied("", "", "", where, text, "http", cause, request.address, request.id))
        return route.refuse(text, 403)

    @staticmethod
    def _report(error: AccessError, access: Access, request: Request) -> None:
        access.denied(error, route_of(request), address=request.address, request=request.id)

    def _answer_later(self, pool: Executor, call: Answer, request: Request, params: Params, exchange: Exchange) -> None:
        def done(future: Future[Response]) -> None:
            self._loop.call_soon_threadsafe(exchange.respond, future.result())

        try:
            pool.submit(self._answer, call, request, params).add_done_callback(done)
        except RuntimeError as error:  # this machine has no thread left
            exchange.respond(answer_to(error, request))

    def _answer(self, call: Answer, request: Request, params: Params) -> Response:
        """On whatever thread: the answer of a route, or to what it raises."""
        try:
            return call(request, params)
        except Exception as error:
            if isinstance(error, AccessError) and self.access is not None:
                self._report(error, self.access, request)
            return answer_to(error, request)


def _admit(access: Access, request: Request, need: Need | None, params: Params) -> None:
    """Raise AccessError if ``request`` may not come in, before its body is looked at. Who asks is noted in it."""
    if need is not None and access.opens(need):
        return
    caller = request.frame.caller
    # Of a head that came before on the same connection the client is known, and good until the rules change.
    if caller is None:
        caller = access.caller(given_in(request.headers, request.peer)).at(request.address, request.id)
    else:
        caller = access.current(caller)
    request.frame.caller = caller
    access.require(caller, need, params.get("model", ""))


def route_of(request: Request) -> str:
    """What was asked for, for logs: without the query, in which clients put secrets."""
    path = request.target.partition(b"?")[0][:_SHOWN]
    return f"{request.method.decode('latin-1')} {path.decode('latin-1')}"


def answer_to(error: Exception, request: Request) -> Response:
    """What ``request`` is answered that led to ``error``: a fault of ours must not leave a client without an answer."""
    if isinstance(error, RepoAgentError):
        return error_response(error)
    name = f" (x-request-id {request.id})" if request.id else ""
    return fault(error, f"{route_of(request)}{name}")


def fault(error: Exception, what: str) -> Response:
    """The answer to a fault of ours in ``what``, which is logged."""
    logger.error("%s: %s", what, error, exc_info=error)
    return error_response(InternalError(f"unexpected {type(error).__name__}; the server's log has the details"))


ServiceFactory = Callable[[asyncio.AbstractEventLoop, Pools], HttpService]
"""Makes a service, on the thread of its event loop, with the pools for what blocks."""

MakeService = Callable[[Router, asyncio.AbstractEventLoop, Pools], HttpService]
"""Makes a service that dispatches to these routes."""
