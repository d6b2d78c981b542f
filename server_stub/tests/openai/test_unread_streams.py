"""A client that does not read its stream: others are answered meanwhile, and it gets the same text when it reads on."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
from repoagent_server import KServeGrpc, asgi_app
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.http.asgi import AsgiApp

from repoagent.server import Server

TOKENS = 2000  # far more than the sockets and the server let run ahead
BODY = {"model": "narrow", "stream": True, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
ROUTES = {
    "/v1/chat/completions": {**BODY, "messages": [{"role": "user", "content": "47"}]},
    "/v1/responses": {
        "model": "narrow",
        "stream": True,
        "max_output_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "input": "47",
    },
    "/v2/models/narrow/generate_stream": {"text_input": "47", "stream": True, "max_tokens": TOKENS, "end_id": -1},
    "/v2/models/over_narrow/generate_stream": {"text_input": "47", "stream": True, "max_tokens": TOKENS, "end_id": -1},
}
NAMES = ["chat", "responses", "generate", "ensemble"]


def _ask(url: str, path: str, body: dict[str, Any]) -> socket.socket:
    """A connection that takes little more than is read of it."""
    place, content = urlsplit(url), json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect((place.hostname, place.port))
    connection.sendall(head.encode() + content)
    return connection


def _read(connection: socket.socket, begin: bytes = b"") -> bytes:
    """The body, as it is framed, to its end; ``begin`` has been read already."""
    pieces = [begin]
    while piece := connection.recv(1 << 16):
        pieces.append(piece)
    return b"".join(pieces).partition(b"\r\n\r\n")[2]


def _texts(events: bytes) -> list[str]:
    """What the events say, without what differs between two answers to the same."""
    found = []
    for line in events.decode().split("\n"):
        if line.startswith("data: {"):
            event = json.loads(line[len("data: ") :])
            choice = (event.get("choices") or [{}])[0]
            found.append(
                str(
                    choice.get("text")
                    or (choice.get("delta") or {}).get("content")
                    or event.get("delta")
                    or event.get("text_output")
                    or ""
                )
            )
    return found


def _answered(http: httpx.Client) -> int:
    """How many requests to the model have ended well."""
    stats = http.get("/v2/models/narrow/stats").json()["model_stats"][0]
    return int(stats["inference_stats"]["success"]["count"])


@pytest.mark.parametrize(("path", "body"), ROUTES.items(), ids=NAMES)
def test_a_stream_that_is_not_read_gives_way_and_goes_on_with_the_same_text(
    url: str, http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    """The model has one row, so that a second request waits until the first gives way."""
    with closing(_ask(url, path, body)) as connection:
        read_at_once = _texts(_read(connection))
    before = _answered(http)
    with closing(_ask(url, path, body)) as connection:
        begin = connection.recv(1024)
        assert begin.startswith(b"HTTP/1.1 200")
        short = http.post("/v1/completions", json={"model": "narrow", "prompt": "1", "max_tokens": 2})
        assert short.status_code == 200
        assert _answered(http) == before + 1  # and the stream has not ended
        assert _texts(_read(connection, begin)) == read_at_once


@pytest.mark.parametrize("events", [0, 1, 2, 9])
@pytest.mark.parametrize(("path", "body"), ROUTES.items(), ids=NAMES)
def test_a_client_that_leaves_after_any_event_makes_room(
    url: str, http: httpx.Client, path: str, body: dict[str, Any], events: int
) -> None:
    limit = "max_output_tokens" if "max_output_tokens" in body else "max_tokens"
    before, begin = _answered(http), b""
    with closing(_ask(url, path, {**body, limit: 20_000})) as connection:
        while begin.count(b"\n\n") < events or not begin:
            begin += connection.recv(100)
    short = http.post("/v1/completions", json={"model": "narrow", "prompt": "1", "max_tokens": 2})
    assert short.status_code == 200
    assert _answered(http) == before + 1


class Host:
    """What an ASGI server is to the application, of which a client reads nothing until ``reads`` is set."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._incoming = [{"type": "http.request", "body": json.dumps(body).encode()}]
        self.sent: list[bytes] = []
        self.begun, self.reads = asyncio.Event(), asyncio.Event()

    async def call(self, app: AsgiApp, path: str) -> bytes:
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
        await app(scope, self._receive, self._send)
        return b"".join(self.sent)

    async def _receive(self) -> Any:
        return self._incoming.pop() if self._incoming else await asyncio.Event().wait()

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self.begun.set()
            await self.reads.wait()
            self.sent.append(bytes(message["body"]))


async def test_so_does_one_over_asgi(server: Server, http: httpx.Client) -> None:
    path, body = next(iter(ROUTES.items()))
    with asgi_app(server, allow_openai=True) as app:
        once = Host(body)
        once.reads.set()
        read_at_once = _texts(await once.call(app, path))
        before = _answered(http)
        host, other = Host(body), Host({"model": "narrow", "prompt": "1", "max_tokens": 2})
        stream = asyncio.create_task(host.call(app, path))
        await host.begun.wait()
        other.reads.set()
        short = await other.call(app, "/v1/completions")
        assert json.loads(short)["usage"]["completion_tokens"] == 2
        assert _answered(http) == before + 1  # and the stream has not ended
        host.reads.set()
        assert _texts(await stream) == read_at_once


def _ask_grpc(channel: grpc.Channel) -> Iterator[pb.ModelStreamInferResponse]:
    """A stream with one request."""
    inputs = {
        "text_input": ("BYTES", pb.InferTensorContents(bytes_contents=[b"47"])),
        "stream": ("BOOL", pb.InferTensorContents(bool_contents=[True])),
        "max_tokens": ("INT32", pb.InferTensorContents(int_contents=[TOKENS])),
        "end_id": ("INT32", pb.InferTensorContents(int_contents=[-1])),
    }
    tensor = pb.ModelInferRequest.InferInputTensor
    request = pb.ModelInferRequest(
        model_name="narrow",
        id="long" * 64,  # each response has it: so they soon fill what may wait
        inputs=[
            tensor(name=name, datatype=kind, shape=[1], contents=contents) for name, (kind, contents) in inputs.items()
        ],
    )
    call = channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelStreamInferResponse.FromString,
    )
    found: Iterator[pb.ModelStreamInferResponse] = call(iter([request]), timeout=120)
    return found


def test_so_does_one_over_grpc(server: Server, http: httpx.Client) -> None:
    options = KServeGrpc.Options(port=0)
    with KServeGrpc(server, options) as front:
        address = "{}:{}".format(*front.address)
        with grpc.insecure_channel(address, [("grpc.http2.bdp_probe", 0)]) as channel:
            read_at_once = [each.infer_response.raw_output_contents for each in _ask_grpc(channel)]
            assert len(read_at_once) > 500
            before = _answered(http)
            stream = _ask_grpc(channel)
            first = next(stream)
            short = http.post("/v1/completions", json={"model": "narrow", "prompt": "1", "max_tokens": 2})
            assert short.status_code == 200
            assert _answered(http) == before + 1  # and the stream has not ended
            rest = [each.infer_response.raw_output_contents for each in stream]
            assert [first.infer_response.raw_output_contents, *rest] == read_at_once
