"""Bare echoes beside which our front ends are measured: ``echoes.py http|grpc READY_FILE`` serves until it is ended."""

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import uvicorn
import uvloop


async def app(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    """An ASGI application that answers every request with its own body."""
    assert scope["type"] == "http"
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types for it
    """Answers every unary call with the bytes of its message, whatever the method."""

    def service(self, handler_call_details: Any) -> Any:
        del handler_call_details
        return grpc.unary_unary_rpc_method_handler(self._echo, None, None)

    @staticmethod
    async def _echo(message: bytes, context: Any) -> bytes:
        del context
        return message


async def serve_grpc(ready: Path) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    note(ready, port)
    await server.wait_for_termination()


def note(ready: Path, port: int) -> None:
    beside = ready.with_suffix(".new")
    beside.write_text(json.dumps({"port": port}))
    beside.rename(ready)


if __name__ == "__main__":
    if sys.argv[1] == "grpc":
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_grpc(Path(sys.argv[2])))
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    note(Path(sys.argv[2]), listener.getsockname()[1])
    config = uvicorn.Config(app, loop="uvloop", http="httptools", ws="none", lifespan="off", log_config=None)
    config.access_log = False
    uvicorn.Server(config).run([listener])
