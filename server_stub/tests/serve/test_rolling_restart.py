"""A new server takes over the ports of an old one under load: nothing is answered wrongly, nothing accepted is lost."""

import http.client
import json
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.certificates import Authority
from tests.extent import in_full

if TYPE_CHECKING:
    from .conftest import Server, World

InBackground = Callable[[Callable[[], Any]], Callable[[], Any]]

RESTARTS: Final = in_full(3, otherwise=1)
#: What arrives in the very moment in which gRPC's library closes is cancelled by it; nothing of it has run.
_REFUSED: Final = (str(grpc.StatusCode.UNAVAILABLE), str(grpc.StatusCode.CANCELLED))
_FLAGS: Final = (
    "--load-model=plain",
    "--allow-grpc=true",
    "--reuse-http-port=true",
    "--reuse-grpc-port=true",
)


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """Two ports, held (not listened on) so that they stay ours between two servers."""
    with socket.socket() as http_port, socket.socket() as grpc_port:
        for holder in (http_port, grpc_port):
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind(("127.0.0.1", 0))
        yield http_port.getsockname()[1], grpc_port.getsockname()[1]


def _ask_http(port: int, root: str, *, keep: bool, stop: threading.Event, asked: threading.Semaphore) -> Counter[str]:
    """Ask until told to stop; what became of the requests. ``root``: of the server's certificate, if it has one."""
    outcome: Counter[str] = Counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    if root:
        context = ssl.create_default_context(cafile=root)
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
    number = 0
    while not stop.is_set():
        number += 1
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [number, 1, 2, 3]}
        fresh = connection.sock is None
        try:
            connection.request("POST", "/v2/models/plain/infer", json.dumps({"inputs": [tensor]}))
            response = connection.getresponse()
            body = json.loads(response.read())
        except (ConnectionError, ssl.SSLError, http.client.RemoteDisconnected):
            # A connection that was kept may end between two requests, as any HTTP client must know; a new one may not.
            outcome["lost" if fresh else "closed between requests"] += 1
            connection.close()
            continue
        if response.status == 503:
            outcome["refused"] += 1
        else:
            right = response.status == 200 and body["outputs"][0]["data"] == [-number, -1, -2, -3]
            outcome["right" if right else f"wrong: {response.status} {body}"] += 1
        asked.release()
        if not keep:
            connection.close()
    connection.close()
    return outcome


def _ask_grpc(port: int, root: str, stop: threading.Event, asked: threading.Semaphore) -> Counter[str]:
    outcome: Counter[str] = Counter()
    tls = {"ssl": True, "root_certificates": root} if root else {}
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{port}", **tls) as client:
        while not stop.is_set():
            tensor = triton_grpc.InferInput("X", [1, 4], "FP32").set_data_from_numpy(np.ones((1, 4), np.float32))
            try:
                answer = client.infer("plain", [tensor], client_timeout=60).as_numpy("Y").tolist()
                outcome["right" if answer == [[-1] * 4] else f"wrong: {answer}"] += 1
            except InferenceServerException as error:
                outcome["refused" if error.status() in _REFUSED else f"wrong: {error}"] += 1
            asked.release()
    return outcome


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_nothing_is_lost_or_wrong_when_one_server_follows_another(
    world: "World", ports: tuple[int, int], in_background: InBackground, tls: bool, tmp_path: Path
) -> None:
    http_port, grpc_port = ports
    flags: tuple[str, ...] = (*_FLAGS, f"--http-port={http_port}", f"--grpc-port={grpc_port}")
    root = ""
    if tls:
        authority = Authority(tmp_path)
        root, pair = authority.root, authority.issue("server")
        for kind in ("http", "grpc"):
            files = (f"--{kind}-server-cert={pair.certificate}", f"--{kind}-server-key={pair.key}")
            flags = (*flags, f"--{kind}-use-ssl", *files)
    server: Server = world.serve(*flags)
    stop, asked = threading.Event(), threading.Semaphore(0)
    clients = [
        in_background(lambda: _ask_http(http_port, root, keep=False, stop=stop, asked=asked)),
        in_background(lambda: _ask_http(http_port, root, keep=False, stop=stop, asked=asked)),
        in_background(lambda: _ask_http(http_port, root, keep=True, stop=stop, asked=asked)),
        in_background(lambda: _ask_grpc(grpc_port, root, stop, asked)),
    ]
    try:
        for _ in range(RESTARTS):
            following = world.serve(*flags)
            assert server.stop() == 0, server.log
            server = following
            for _ in range(100):
                assert asked.acquire(timeout=60)
    finally:
        stop.set()
    outcome: Counter[str] = sum((client() for client in clients), Counter())
    assert set(outcome) <= {"right", "refused", "closed between requests"}, outcome
    assert outcome["right"] >= 100 * RESTARTS - outcome["refused"]
    assert server.stop() == 0
