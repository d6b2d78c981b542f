"""Requests to routes, on one event loop: what is parsed comes in here, and one response for each goes out."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Final

from repoagent.errors import InternalError, RepoAgentError
from repoagent.limits import DEFAULT_LIMITS
from repoagent_server.access import AccessError, Cause, Denied
from repoagent_server.access.denials import Denials
from repoagent_server.codec.long_json import LONG_JSON
from repoagent_server.http.access import HttpAccess, route_of
from repoagent_server.http.messages import Exchange, Request, Response, error_response
from repoagent_server.http.origins import Origins
from repoagent_server.http.router import Answer, Match, Params, Route, Router
from repoagent_server.shared.pools import Pools
from repoagent_server.shared.reserve import Reserve

logger = logging.getLogger(__name__)

#: The answer to a request that comes when the server is going down.
STOPPING: Final = "Server not ready: it is stopping"


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
        self.parting = False
        """Set from any thread: a connection ends with its next answer, and its client opens another one elsewhere."""
        """Set from any thread: from now on inference, load and unload requests are refused."""
        self.origins: Origins | None = None
        """Set by a front end with a socket of its own; an application in another one leaves this to that."""
        self.access: HttpAccess | None = None
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
        foreign = self.origins.refusal(request, route) if self.origins is not None else None
        if foreign is not None:
            return self._denied(request, route, foreign, Cause.FOREIGN)
        restricted = route.guard.refusal(request) if route.guard is not None else None
        if restricted is not None:
            return self._denied(request, route, restricted, Cause.RESTRICTED)
        denied = self.access.refusal(request, route, params) if self.access is not None else None
        if denied is not None:
            return denied
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
                self.access.report(error, request)
            return answer_to(error, request)


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
