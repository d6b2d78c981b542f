"""CUDA by itself, through cuda-bindings: memory, streams, events, copies, graphs. TensorRT is not needed.

None of this has run yet (docs/gpu.md).
"""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from repoagent.errors import InternalError, UnavailableError
from tests.engines.gpu.need import need_cuda
from tests.engines.platforms import over_interfaces

pytestmark = pytest.mark.gpu

SIZE = 1 << 20


@pytest.fixture
def device() -> Any:
    need_cuda()
    from repoagent.engines.cuda.device import CudaDevice

    return CudaDevice(0)


@pytest.fixture
def stream(device: Any) -> Iterator[Any]:
    made = device.new_stream()
    yield made
    made.close()


@pytest.fixture
def block(device: Any) -> Iterator[int]:
    address = device.allocate(SIZE)
    yield address
    device.free(address)


@pytest.fixture
def host(device: Any) -> Iterator[Any]:
    memory = device.allocate_host(SIZE)
    yield memory
    memory.close()


def test_memory_begins_where_tensorrt_takes_an_address(block: int, host: Any) -> None:
    assert block % 256 == 0
    assert host.address % 256 == 0
    assert host.data.nbytes == SIZE


def test_what_is_copied_in_comes_back(device: Any, stream: Any, block: int, host: Any) -> None:
    values = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)
    host.data[:] = values
    device.copy_in(block, host.address, SIZE, stream)
    stream.synchronize()
    host.data[:] = 0
    device.copy_out(host.address, block, SIZE, stream)
    stream.synchronize()
    np.testing.assert_array_equal(host.data, values)


def test_copies_within_the_device_and_zeros(device: Any, stream: Any, block: int, host: Any) -> None:
    host.data[:] = 7
    device.copy_in(block, host.address, SIZE, stream)
    device.zero(block, SIZE // 2, stream)
    device.copy_within(block + SIZE // 2, block, SIZE // 4, stream)
    device.copy_out(host.address, block, SIZE, stream)
    stream.synchronize()
    assert host.data[: SIZE * 3 // 4].max() == 0
    assert host.data[SIZE * 3 // 4 :].min() == 7


def test_an_event_orders_two_streams(device: Any, stream: Any, block: int, host: Any) -> None:
    other, event = device.new_stream(), device.new_event()
    event.wait()  # never recorded: at once
    host.data[:] = 9
    for _ in range(50):  # work that takes a while
        device.copy_in(block, host.address, SIZE, stream)
    event.record(stream)
    other.wait_for(event)
    device.copy_out(host.address, block, SIZE, other)
    event.record(other)
    event.wait()
    assert host.data.min() == 9
    event.close()
    other.close()


def test_a_graph_repeats_what_was_captured(device: Any, stream: Any, block: int, host: Any) -> None:
    host.data[:] = 1
    device.begin_capture(stream)
    device.copy_in(block, host.address, SIZE, stream)
    device.zero(block, SIZE // 2, stream)
    device.copy_out(host.address, block, SIZE, stream)
    graph = device.end_capture(stream)
    assert host.data.min() == 1
    graph.launch(stream)
    stream.synchronize()
    assert (host.data[: SIZE // 2].max(), host.data[SIZE // 2 :].min()) == (0, 1)
    graph.close()


def test_what_cannot_be_captured_leaves_the_stream_usable(device: Any, stream: Any, block: int) -> None:
    device.begin_capture(stream)
    with pytest.raises(InternalError, match="CUDA cannot finish the work of a stream: cudaErrorStreamCapture"):
        stream.synchronize()
    with pytest.raises(Exception, match="cannot be captured as a CUDA graph"):
        device.end_capture(stream).close()
    device.zero(block, SIZE, stream)
    stream.synchronize()


def test_memory_that_is_missing_is_named_and_the_next_call_works(device: Any, stream: Any) -> None:
    with pytest.raises(UnavailableError, match="cudaErrorMemoryAllocation; unload other models"):
        device.allocate(1 << 50)
    device.free(device.allocate(10))
    stream.synchronize()


def test_calls_let_other_threads_run(device: Any, stream: Any, block: int, host: Any) -> None:
    """Waiting for a device holds no lock of Python."""
    if over_interfaces():
        pytest.skip("the imitation is written in Python")
    ticks = 0
    stop = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    for _ in range(200):
        device.copy_in(block, host.address, SIZE, stream)
    before = ticks
    stream.synchronize()
    after = ticks
    stop.set()
    thread.join()
    assert after > before
