"""A gRPC port that also has pages, as h2spec asks for them: ``h2spec.py`` starts `repoagent serve` with this.

A request that is not gRPC gets an answer with a body once it has ended. Our own port refuses it at once and without a
body, so a test that needs an answer which waits, for a window or for the rest of a request, would find none.
"""

from typing import Final

from repoagent_server.grpc.http2 import transport
from repoagent_server.grpc.http2.connection import Connection
from repoagent_server.grpc.http2.dispatcher import Dispatcher, Route
from repoagent_server.grpc.http2.head import RequestHead
from repoagent_server.grpc.http2.stream import Stream

__all__ = ["PAGE", "install"]

PAGE: Final = b"a page"
_ROUTE: Final = Route("page")


class DispatcherWithPages(Dispatcher):
    """Serves a page to what is not gRPC, whatever its path."""

    def route(self, head: RequestHead) -> None:
        super().route(head)
        if head.route.http_status:
            head.route = _ROUTE

    def opened(self, connection: Connection, stream: Stream) -> None:
        if stream.head.route is not _ROUTE:
            super().opened(connection, stream)

    def data(self, connection: Connection, stream: Stream, data: bytes, start: int, stop: int, ended: bool) -> None:
        if stream.head.route is not _ROUTE:
            super().data(connection, stream, data, start, stop, ended)
        elif not ended:
            connection.credit(stream)
        elif connection.sender.send(stream, [PAGE]):
            connection.sender.finish(stream)


def install() -> None:
    """Have every transport of this process serve pages."""
    transport.Dispatcher = DispatcherWithPages  # type: ignore[attr-defined]
