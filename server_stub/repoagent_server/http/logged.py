"""Requests to models over HTTP, and for metrics, written to the request log."""

from typing import Final

from repoagent_server.handlers.restrictions import Api
from repoagent_server.handlers.running_request import RunningRequest
from repoagent_server.http.messages import Exchange, Request, Response, WrappedExchange
from repoagent_server.http.service import Match, Route, Watch
from repoagent_server.shared.request_log import RequestLog

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
        self._running = RunningRequest(len(request.body), None, protocol=protocol)
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
