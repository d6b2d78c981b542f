"""Requests to models over HTTP, and for metrics, written to the request log."""

import time
from typing import Final

from repoagent_server.handlers.restrictions import Api
from repoagent_server.http.messages import Exchange, Request, Response
from repoagent_server.http.router import Match, Route
from repoagent_server.http.service import Watch
from repoagent_server.http.wrapped_exchange import WrappedExchange
from repoagent_server.shared.request_log import Entry, RequestLog, started

__all__ = ["METRICS_PATH", "logged"]

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

    __slots__ = ("_began", "_began_ns", "_head", "_log", "_match", "_protocol", "_request", "_sent", "_size")

    def __init__(self, inner: Exchange, request: Request, match: Match, log: RequestLog, protocol: str) -> None:
        super().__init__(inner)
        self._began_ns = time.time_ns()
        self._began = started()
        self._request = request
        self._size = len(request.body)
        self._match = match
        self._log = log
        self._protocol = protocol
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
        params, served = self._match.params, response.served
        caller = self._request.caller
        entry = Entry(
            self._began_ns,
            started() - self._began,
            caller.name if caller is not None else "",
            served.model_name if served is not None else params.get("model") or self._request.model,
            served.model_version if served is not None else params.get("version", ""),
            self._protocol,
            response.status,
            self._size,
            sent,
            self._request.id or (served.id if served is not None else ""),
            response.tokens,
        )
        self._log.put(entry)
