"""What the request log gets of a request, over HTTP or gRPC."""

import time
from typing import Final

from repoagent.serving.requests.request import Asked, InferResponse
from repoagent_server.access import Caller
from repoagent_server.shared.request_log import Entry, RequestLog

_INFERS: Final = ("/ModelInfer", "/ModelStreamInfer")


class RunningRequest:
    """What the log gets of one request, as far as it is known until that has been answered: HTTP's and gRPC's.

    ``size`` is that of its message, ``request`` the id in the headers of its call.
    """

    __slots__ = (
        "_began", "_began_ns", "client", "model", "protocol", "request", "size", "status", "tokens", "version",
    )  # fmt: skip

    def __init__(self, size: int, caller: Caller | None, request: str = "", protocol: str = "grpc") -> None:
        self._began_ns = time.time_ns()
        self._began = time.perf_counter_ns()
        self.size = size
        self.client = caller.name if caller is not None else ""
        self.model = self.version = ""
        self.request = request
        self.protocol = protocol
        self.status = 0
        self.tokens: tuple[int, int] | None = None

    def asks(self, asked: Asked) -> None:
        """It has been read."""
        self.model, self.version = asked.model_name, asked.model_version
        self.request = self.request or asked.id

    def served(self, response: InferResponse) -> None:
        """A version has answered it."""
        self.model, self.version = response.model_name or self.model, response.model_version or self.version

    def end(self, log: RequestLog, sent: int) -> None:
        """It has been answered, with ``sent`` bytes: write its line."""
        entry = Entry(
            self._began_ns,
            time.perf_counter_ns() - self._began,
            self.client,
            self.model,
            self.version,
            self.protocol,
            self.status,
            self.size,
            sent,
            self.request,
            self.tokens,
        )
        log.put(entry)


def log_refused(log: RequestLog | None, method: str, status: int, request: str, client: str = "") -> None:
    """Write the line of a call that was not let in, if it is one of inference. ``method``: its path over gRPC."""
    if log is not None and method.endswith(_INFERS):
        refused = RunningRequest(0, None, request)
        refused.client, refused.status = client, status
        refused.end(log, 0)
