"""Compressed inference requests and responses, with Triton's client and with bodies that it would not send."""

import gc
import gzip
import socket
import tracemalloc
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.compression import accepted, decompress
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.shared.reserve import Reserve

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.tensor import Array, Tensor
from tests.processes import memory_of

_RESERVE = Reserve(1 << 30)
_PATH = "/v2/models/ident/infer"
_BODY = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'


@pytest.mark.slow
@pytest.mark.parametrize("request_coding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_coding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("size", [3, 300_000])
def test_tritons_client_in_every_combination(
    frontend: HttpFrontend, request_coding: str | None, response_coding: str | None, size: int
) -> None:
    host, port = frontend.bind()
    array = np.arange(size, dtype=np.float32).reshape(1, -1)
    tensor = triton.InferInput("INPUT0", array.shape, "FP32")
    tensor.set_data_from_numpy(array)
    with triton.InferenceServerClient(f"{host}:{port}") as client:
        result = client.infer(
            "ident",
            [tensor],
            request_compression_algorithm=request_coding,
            response_compression_algorithm=response_coding,
        )
    assert np.array_equal(result.as_numpy("OUTPUT0"), array)


@pytest.mark.parametrize(
    ("body", "coding", "text"),
    [
        (b"nonsense", "gzip", "not valid gzip data"),
        (gzip.compress(_BODY, mtime=0)[:-9], "gzip", "its end is missing"),
        (zlib.compress(_BODY), "gzip", "not valid gzip data"),
        (gzip.compress(_BODY, mtime=0) + gzip.compress(_BODY, mtime=0)[:-1], "gzip", "its end is missing"),
        (
            gzip.compress(_BODY, mtime=0) + gzip.compress(_BODY, mtime=0)[:12] + b"\xff\xff",
            "gzip",
            "not valid gzip data",
        ),
        (gzip.compress(b"", mtime=0) * 10_002, "gzip", "it has more than 10000 members"),
    ],
)
def test_damaged_bodies_are_refused(client: httpx.Client, body: bytes, coding: str, text: str) -> None:
    response = client.post(_PATH, content=body, headers={"Content-Encoding": coding})
    assert response.status_code == 400
    assert text in response.json()["error"]


def test_gzip_data_of_several_members_are_one_body() -> None:
    noise = np.random.default_rng(1).bytes(100_000)  # so that the members stay as large as they are
    texts = [b"a", b"", noise, b"b" * 5_000_000, *([b"c"] * 1000), noise[:255]]
    body = b"".join(map(gzip.compress, texts))
    whole = b"".join(texts)
    assert decompress(body, b"gzip", len(whole), _RESERVE) == whole
    assert decompress(body + b"\0\0 what follows is no member", b"gzip", len(whole), _RESERVE) == whole
    with pytest.raises(InvalidArgumentError, match=f"exceeds the maximum allowed input size of {len(whole) - 1} bytes"):
        decompress(body, b"gzip", len(whole) - 1, _RESERVE)


def test_what_follows_deflate_data_is_passed_over() -> None:
    assert bytes(decompress(zlib.compress(b"a") + zlib.compress(b"b"), b"deflate", 10, _RESERVE)) == b"a"


def test_a_bomb_is_refused_at_the_limit(core: Any) -> None:
    front = HttpFrontend(Endpoint(port=0), api_service(Served(core), max_input_size=1 << 20))
    front.start()
    host, port = front.bind()
    bomb = zlib.compress(b" " * (64 << 20))
    response = httpx.post(f"http://{host}:{port}{_PATH}", content=bomb, headers={"Content-Encoding": "deflate"})
    front.stop()
    assert response.status_code == 400
    assert "exceeds the maximum allowed input size of 1048576 bytes when it is decompressed" in response.json()["error"]


@pytest.mark.parametrize(
    ("header", "coding"),
    [(b"gzip, deflate, br", b"gzip"), (b"gzip;q=0.5, deflate", b"deflate"), (b"gzip;q=0", b""), (b"br;q=1", b"")],
)
def test_the_coding_that_the_client_likes_best_is_used(header: bytes, coding: bytes) -> None:
    assert accepted(header) == coding


def test_what_a_refused_body_took_is_given_back_at_once() -> None:
    """Not when the garbage collector comes by: until then others would be refused."""
    reserve = Reserve(1 << 30)
    gc.disable()
    try:
        with pytest.raises(InvalidArgumentError, match="exceeds"):
            decompress(gzip.compress(bytes(3 << 20)), b"gzip", 1 << 20, reserve)
        assert reserve.held == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("padding", range(4))
def test_the_tensors_of_a_compressed_body_are_views_of_it(core: Any, client: httpx.Client, padding: int) -> None:
    """However long the JSON is: a copy would be of memory that is not counted."""
    seen: list[Array] = []

    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        seen.append(inputs["INPUT0"].array)
        return {"OUTPUT0": inputs["INPUT0"]}

    core.models["ident"].run = run
    head = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1000],"parameters":{"binary_data_size":4000}}]}'
    head += b" " * padding
    headers = {"Content-Encoding": "gzip", "Inference-Header-Content-Length": str(len(head))}
    values = np.arange(1000, dtype=np.float32)
    assert client.post(_PATH, content=gzip.compress(head + values.tobytes()), headers=headers).status_code == 200
    assert not seen[0].flags.owndata
    assert np.array_equal(seen[0][0], values)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the most memory ever used")
def test_bodies_that_are_decompressed_at_once_take_what_is_counted_and_give_it_back() -> None:
    """As many threads as an allocator has arenas for, each of which would keep what was freed in it."""
    size, threads = 12 << 20, 12
    small = gzip.compress(bytes(size))
    reserve = Reserve(1 << 30)
    with ThreadPoolExecutor(threads) as pool:
        before = memory_of("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is in use
        bodies = list(pool.map(lambda _: decompress(small, b"gzip", size, reserve), range(threads)))
        assert threads * size <= reserve.held
        assert memory_of("VmHWM") - before < reserve.held * 5 // 4
        bodies.clear()
        assert reserve.held == 0
        assert memory_of("VmRSS") - before < threads * size // 4


# A tensor of 64 MiB there and back: the server may copy it once at most, as far as any memory of the process shows.

_SIZE = 1 << 26
_HEADER = (
    b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,%d],"parameters":{"binary_data_size":%d}}],'
    b'"parameters":{"binary_data_output":true}}' % (_SIZE // 4, _SIZE)
)
_HEAD = (
    b"POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n" % (len(_HEADER) + _SIZE, len(_HEADER))
)


@pytest.fixture
def tensor() -> Array:
    """The client's memory, for what it sends and for what it gets, is there before anything is counted."""
    return np.arange(_SIZE // 4, dtype=np.float32)


@pytest.fixture
def answer() -> Array:
    return np.full(_SIZE + 4096, 255, np.uint8)


@pytest.fixture
def seen(core: Any) -> list[Array]:
    """What the model gets. It answers with the same memory, so that every other block of this size is a copy."""
    seen: list[Array] = []

    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        seen.append(inputs["INPUT0"].array)
        return {"OUTPUT0": inputs["INPUT0"]}

    core.models["ident"].run = run
    return seen


@pytest.fixture
def connection(start: Any) -> Iterator[socket.socket]:
    frontend: HttpFrontend = start(max_body=2 * _SIZE)
    with socket.create_connection(frontend.bind(), timeout=60) as connection:
        yield connection


def _exchange(connection: socket.socket, tensor: Array, answer: Array) -> tuple[bytes, int]:
    """Send the tensor, receive into ``answer``; gives the head of the answer and where its tensor begins."""
    connection.sendall(_HEAD + _HEADER)
    connection.sendall(tensor.data.cast("B"))
    memory = answer.data
    filled, end = 0, len(memory)
    while filled < end:
        filled += connection.recv_into(memory[filled:])
        head, blank, _ = bytes(memory[:4096]).partition(b"\r\n\r\n")
        if blank and end == len(memory):
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            end = len(head) + len(blank) + int(fields[b"content-length"])
            start = len(head) + len(blank) + int(fields[b"inference-header-content-length"])
    assert filled == end
    return head, start


def test_what_python_and_numpy_allocate_is_one_tensor(
    connection: socket.socket, tensor: Array, answer: Array, seen: list[Array]
) -> None:
    tracemalloc.start()
    try:
        head, start = _exchange(connection, tensor, answer)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert head.startswith(b"HTTP/1.1 200")
    assert peak < _SIZE + _SIZE // 4
    assert not seen[0].flags.owndata  # a view of what the kernel wrote the body into
    assert np.array_equal(answer[start : start + _SIZE].view(np.uint8), tensor.view(np.uint8))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the most memory ever used")
def test_neither_does_any_library_below_hold_a_second_one(
    connection: socket.socket, tensor: Array, answer: Array, seen: list[Array]
) -> None:
    before = memory_of("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is in use
    _exchange(connection, tensor, answer)
    assert memory_of("VmHWM") - before < _SIZE + _SIZE // 2
    assert len(seen) == 1
