"""A load generator for HTTP, for machines without wrk.

``load_http.py HOST PORT PATH CONNECTIONS SECONDS JSON_LENGTH`` posts what is on its standard input again and again on
every connection and prints the requests per second; JSON_LENGTH is that of the binary extension's header, -1 for none.
"""

import asyncio
import sys
import time
from typing import cast

import uvloop


class Client(asyncio.Protocol):
    """One connection: sends the request, waits for the whole answer, sends it again."""

    def __init__(self, request: bytes) -> None:
        self.answers = 0
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none of asyncio's classes
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end or self._transport is None:
            return
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(self._buffer.decode("latin-1"))
        lowered = head.lower()
        start = lowered.index(b"content-length:") + 15
        length = int(lowered[start : lowered.find(b"\r\n", start) if b"\r\n" in lowered[start:] else None])
        if len(rest) >= length:
            self._buffer = b""
            self.answers += 1
            self._transport.write(self._request)


async def run(host: str, port: int, request: bytes, connections: int, seconds: float) -> float:
    loop = asyncio.get_running_loop()
    clients = [Client(request) for _ in range(connections)]
    for client in clients:
        await loop.create_connection(lambda client=client: client, host, port)  # type: ignore[misc]
    started, before = time.monotonic(), sum(client.answers for client in clients)
    await asyncio.sleep(seconds)
    return (sum(client.answers for client in clients) - before) / (time.monotonic() - started)


def main() -> None:
    host, port, path, connections, seconds, json_length = sys.argv[1:]
    body = sys.stdin.buffer.read()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(body)}\r\n"
    if int(json_length) >= 0:
        head += f"Inference-Header-Content-Length: {json_length}\r\n"
    request = head.encode() + b"\r\n" + body
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(runner.run(run(host, int(port), request, int(connections), float(seconds))))


if __name__ == "__main__":
    main()
