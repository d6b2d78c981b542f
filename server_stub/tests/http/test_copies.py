"""A tensor of 64 MiB there and back: the server may copy it once at most, as far as any memory of the process shows."""

import socket
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_server.http.frontend import HttpFrontend

from repoagent.serving.requests.tensor import Array, Tensor

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
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is in use
    _exchange(connection, tensor, answer)
    assert _memory("VmHWM") - before < _SIZE + _SIZE // 2
    assert len(seen) == 1


def _memory(field: str) -> int:
    """In bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))
