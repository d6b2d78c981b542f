"""A bare echo on uvicorn, for http_infer.py: ``echo_http.py READY_FILE`` serves until it is terminated."""

import json
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn


async def app(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    """Answer every request with its own body."""
    assert scope["type"] == "http"
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    length = str(len(body)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", ws="none", lifespan="off", log_config=None, access_log=False
    )
    ready = Path(sys.argv[1])
    beside = ready.with_suffix(".new")
    beside.write_text(json.dumps({"port": listener.getsockname()[1]}))
    beside.rename(ready)
    uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
