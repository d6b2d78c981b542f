"""T18: what a server holds for its clients is of one reserve, whatever the protocol; beyond it they are refused."""

import gzip
import http.client
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import grpc
import httpx
import pytest
from hyperframe.frame import DataFrame
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.service import SERVICE
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.asgi import AsgiApp
from repoagent_server.shared.reserve import Reserve

from server_stub.tests.grpc.http2.raw_client import Raw
from tests.hostile.front_ends.conftest import Ways

_MIB: Final = 1 << 20
_LIMIT: Final = 16 * _MIB
_INFER: Final = "/v2/models/numbers/infer"
_SMALL: Final = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}
_VALUES: Final = 4 * _MIB // 4


class Watched(Reserve):
    """Notes the most that it held, and how often there was no room."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.most = 0
        self.refusals = 0
        self.changed = threading.Condition()

    def take(self, own: int, more: int) -> bool:
        taken = super().take(own, more)
        with self.changed:
            self.most = max(self.most, self.held)
            self.refusals += not taken
            self.changed.notify_all()
        return taken

    def until(self, reached: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(reached, 60)


@pytest.fixture(scope="module")
def reserve() -> Watched:
    return Watched(_LIMIT)


@pytest.fixture(scope="module")
def held(start_ways: Any, reserve: Watched) -> Ways:
    ways: Ways = start_ways(reserve=reserve)
    return ways


@pytest.fixture(autouse=True)
def _bounded(reserve: Watched, held: Ways) -> Iterator[None]:
    """The limit holds, and all is given back: then every way is open again."""
    reserve.most = reserve.refusals = 0
    yield
    assert reserve.most <= _LIMIT
    assert reserve.refusals
    for _ in range(1000):
        if reserve.held:
            held.http.get("/v2/health/live")
    assert reserve.held == 0
    _others(held)


def _others(held: Ways) -> None:
    """Clients that want little are served."""
    assert held.http.post(_INFER, json=_SMALL).status_code == 200
    with grpc.insecure_channel(held.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer", pb.ModelInferRequest.SerializeToString, bytes)
        assert call(_message(1), timeout=60)


def _message(values: int) -> Any:
    asked = pb.ModelInferRequest(model_name="numbers")
    asked.inputs.add(name="INPUT0", datatype="FP32", shape=[values])
    asked.raw_input_contents.append(bytes(4 * values))
    return asked


def _binary(values: int) -> tuple[bytes, dict[str, str]]:
    head = (
        b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[%d],"parameters":{"binary_data_size":%d}}]'
        b',"parameters":{"binary_data_output":true}}' % (values, 4 * values)
    )
    return head + bytes(4 * values), {"Inference-Header-Content-Length": str(len(head))}


def _chunked(size: int) -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % _INFER.encode()
    return head + (b"10000\r\n" + bytes(1 << 16) + b"\r\n") * (size >> 16)


def _announced(size: int) -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (_INFER.encode(), 2 * size)
    return head + bytes(size)


@pytest.mark.parametrize("unfinished", [_chunked, _announced], ids=["chunks", "a length"])
def test_unfinished_bodies_of_many_clients(held: Ways, reserve: Watched, unfinished: Callable[[int], bytes]) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(held.address, timeout=60)) for _ in range(8)]
        for client in clients:
            client.sendall(unfinished(3 * _MIB))
        reserve.until(lambda: reserve.refusals >= 3)
        answered = [client for client in clients if _is_refused(client)]
        assert len(answered) >= 3
        _others(held)
        # The reserve is one: what HTTP holds, gRPC has not.
        raw = Raw(("127.0.0.1", int(held.grpc.rpartition(":")[2])))
        raw.begin(1)
        raw.send(DataFrame(1, struct.pack(">BI", 0, 1 << 23)))
        for _ in range(60):
            raw.send(DataFrame(1, bytes(1 << 16)))
        status, text = raw.status()
        assert (status, "--limit-held-bytes" in text) == ("8", True)
        raw.socket.close()


def _is_refused(client: socket.socket) -> bool:
    client.settimeout(1)
    response = http.client.HTTPResponse(client, method="POST")
    try:
        response.begin()
    except TimeoutError:
        return False
    assert response.status == 503
    assert response.getheader("Retry-After") == "1"
    assert b"--limit-held-bytes" in response.read()
    return True


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_bodies_that_open_to_more_than_there_is_room_for(held: Ways, coding: str) -> None:
    """Of many at once some are answered, each with all of its values; the others are refused, and may come again."""
    body, headers = _binary(_VALUES)
    small = (gzip.compress if coding == "gzip" else zlib.compress)(body)

    def ask(_: int) -> int:
        with httpx.Client(base_url=held.http.base_url, timeout=120) as client:
            answer = client.post(_INFER, content=small, headers={**headers, "Content-Encoding": coding})
        if answer.status_code == 200:
            assert len(answer.content) > 4 * _VALUES
        else:
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert "--limit-held-bytes" in answer.json()["error"]
        return answer.status_code

    statuses: set[int] = set()
    with ThreadPoolExecutor(16) as pool:
        for _ in range(3):
            statuses |= set(pool.map(ask, range(16)))
            if len(statuses) > 1:
                break
    assert statuses == {200, 503}


@contextmanager
def _nearly_full(reserve: Reserve) -> Iterator[None]:
    """Others hold nearly all."""
    assert reserve.take(0, _LIMIT * 7 // 8)
    try:
        yield
    finally:
        reserve.give(_LIMIT * 7 // 8)


def test_messages_that_open_to_more_than_there_is_room_for(held: Ways, reserve: Watched) -> None:
    """The same over gRPC."""
    with grpc.insecure_channel(held.grpc) as channel, _nearly_full(reserve):
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer", pb.ModelInferRequest.SerializeToString, bytes)
        with pytest.raises(grpc.RpcError) as raised:
            call(_message(_VALUES), timeout=60, compression=grpc.Compression.Gzip)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "--limit-held-bytes" in raised.value.details()


def test_answers_that_nobody_reads(held: Ways, reserve: Watched) -> None:
    body, headers = _binary(_VALUES)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {_INFER} HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode()
    with ExitStack() as stack:
        for _ in range(10):
            client = stack.enter_context(socket.socket())
            client.settimeout(60)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
            client.connect(held.address)
            client.sendall(head + body)
            if reserve.refusals:
                break
        reserve.until(lambda: bool(reserve.refusals))
        _others(held)


async def test_bodies_in_another_application(core: Any, reserve: Watched) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": bytes(_MIB), "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": _INFER, "headers": [(b"host", b"localhost")]}
    with AsgiApp(api_service(Served(core, reserve=reserve))) as app, _nearly_full(reserve):
        await app({**scope, "query_string": b""}, receive, send)
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"1") in sent[0]["headers"]


def test_json_is_counted_by_what_becomes_of_it(held: Ways, reserve: Watched) -> None:
    """Texts of a byte are objects of some sixty, and numbers of a digit take four bytes or eight."""
    count = 200_000
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [count], "data": ["a"] * count}
    with _nearly_full(reserve):
        answer = held.http.post("/v2/models/text/infer", json={"inputs": [tensor]})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
