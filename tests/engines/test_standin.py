"""The stand-in keeps the promises of the protocol, and punishes what a GPU would not forgive."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from repoagent.engines.protocol import EngineOptions, Profile, ShapeRange
from repoagent.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from tests.engines.models import make, matmul, nonzero, reshape, twice
from tests.engines.standin import StandInDevice, StandInPlan, StandInPlatform

ROWS = Profile({"x": ShapeRange((1, 4), (2, 4), (4, 4))})


@pytest.fixture
def platform() -> StandInPlatform:
    return StandInPlatform()


class Bench:
    """One context with a stream, and memory for each tensor."""

    def __init__(self, platform: StandInPlatform, plan: StandInPlan) -> None:
        data = plan.to_bytes()
        platform.check_plan(data, 0)
        self.engine = platform.open(data, EngineOptions())
        self.device = platform.device(0)
        self.context = self.engine.new_context()
        self.stream = self.device.new_stream()

    def put(self, name: str, array: Any) -> None:
        """Enqueue the copy of an input, and bind it."""
        host = self.device.allocate_host(array.nbytes)
        host.data[:] = array.reshape(-1).view(np.uint8)
        address = self.device.allocate(array.nbytes)
        self.device.copy_in(address, host.address, array.nbytes, self.stream)
        self.context.set_shape(name, array.shape)
        self.context.bind(name, address)
        self._kept: Any = [*getattr(self, "_kept", ()), host]

    def output(self, name: str, kind: Any = np.float32) -> Any:
        """Bind an output; the array is filled when the stream was waited for."""
        shape = self.context.shape_of(name)
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        address = self.device.allocate(size)
        self.context.bind(name, address)
        self.context.enqueue(self.stream)
        host = self.device.allocate_host(size)
        self.device.copy_out(host.address, address, size, self.stream)
        return host.data.view(kind).reshape(shape)


@pytest.fixture
def bench(platform: StandInPlatform) -> Bench:
    return Bench(platform, StandInPlan(matmul(), [ROWS]))


X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_it_computes_real_numbers_at_addresses(bench: Bench) -> None:
    bench.put("x", X)
    y = bench.output("y")
    bench.stream.synchronize()
    assert np.array_equal(y, X @ np.arange(12, dtype=np.float32).reshape(4, 3))


def test_nothing_is_done_before_somebody_waits(bench: Bench) -> None:
    bench.put("x", X)
    y = bench.output("y")
    before = y.copy()
    bench.stream.synchronize()
    assert not np.array_equal(before, y)


def test_a_copy_reads_its_source_when_it_is_done(bench: Bench) -> None:
    bench.put("x", X)
    y = bench.output("y")
    bench._kept[0].data[:] = 0
    bench.stream.synchronize()
    assert not y.any()


def test_events_order_two_streams(platform: StandInPlatform) -> None:
    device = platform.device(0)
    first, second, event = device.new_stream(), device.new_stream(), device.new_event()
    address, host = device.allocate(4), device.allocate_host(4)
    host.data[:] = 7
    device.copy_in(address, host.address, 4, first)
    event.record(first)
    back = device.allocate_host(4)
    second.wait_for(event)
    device.copy_out(back.address, address, 4, second)
    second.synchronize()
    assert list(back.data) == [7] * 4


def test_an_event_lets_later_work_wait(platform: StandInPlatform) -> None:
    device = platform.device(0)
    stream, event = device.new_stream(), device.new_event()
    address, back = device.allocate(4), device.allocate_host(4)
    device.zero(address, 4, stream)
    device.copy_out(back.address, address, 4, stream)
    event.record(stream)
    back.data[:] = 9
    event.wait()
    assert not back.data.any()


@pytest.mark.parametrize("shape", [(5, 4), (0, 4), (2, 3), (4,)])
def test_a_shape_that_the_profile_does_not_allow_is_refused(bench: Bench, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"profile allows \[1, 4\] to \[4, 4\]"):
        bench.context.set_shape("x", shape)


def test_another_profile_allows_other_shapes_and_forgets_the_old_ones(platform: StandInPlatform) -> None:
    other = Profile({"x": ShapeRange((5, 4), (8, 4), (8, 4))})
    bench = Bench(platform, StandInPlan(matmul(), [ROWS, other]))
    bench.context.set_shape("x", (2, 4))
    bench.context.use_profile(1, bench.stream)
    with pytest.raises(InternalError, match="the shapes of x were not set"):
        bench.context.enqueue(bench.stream)
    bench.put("x", np.ones((8, 4), np.float32))
    y = bench.output("y")
    bench.stream.synchronize()
    assert y.shape == (8, 3)


def test_memory_that_was_freed_or_is_too_small_is_an_error(bench: Bench) -> None:
    bench.put("x", X)
    address = bench.device.allocate(8)
    bench.context.bind("y", address)
    bench.context.enqueue(bench.stream)
    with pytest.raises(InternalError, match="are not memory of device 0"):
        bench.stream.synchronize()
    bench.device.free(address)
    with pytest.raises(InternalError, match="was not allocated on device 0, or freed before"):
        bench.device.free(address)


def test_an_output_that_was_not_bound_is_an_error(bench: Bench) -> None:
    bench.put("x", X)
    with pytest.raises(InternalError, match="'y' was not bound"):
        bench.context.enqueue(bench.stream)


def test_memory_runs_out() -> None:
    device = StandInDevice(memory_bytes=100)
    kept = device.allocate(60)
    with pytest.raises(UnavailableError, match="40 bytes left, and 50 are needed"):
        device.allocate(50)
    device.free(kept)
    assert device.allocate(100)


def test_new_memory_is_not_zero(platform: StandInPlatform) -> None:
    device = platform.device(0)
    address, back, stream = device.allocate(3), device.allocate_host(3), device.new_stream()
    device.copy_out(back.address, address, 3, stream)
    stream.synchronize()
    assert back.data.all()


def test_a_graph_repeats_what_was_captured(bench: Bench) -> None:
    bench.put("x", X)
    bench.output("y")
    bench.stream.synchronize()
    bench.device.begin_capture(bench.stream)
    bench.context.enqueue(bench.stream)
    graph = bench.device.end_capture(bench.stream)
    bench.stream.synchronize()
    address = bench.context._addresses["y"]
    bench.device.zero(address, 24, bench.stream)
    graph.launch(bench.stream)
    back = bench.device.allocate_host(24)
    bench.device.copy_out(back.address, address, 24, bench.stream)
    bench.stream.synchronize()
    assert back.data.any()


class Growing:
    def __init__(self, device: StandInDevice) -> None:
        self.device = device
        self.address = 0
        self.shape: tuple[int, ...] = ()

    def reallocate(self, size: int) -> int:
        self.address = self.device.allocate(size)
        return self.address

    def notify(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


def test_an_output_whose_shape_only_the_run_tells(platform: StandInPlatform) -> None:
    bench = Bench(platform, StandInPlan(nonzero(), [ROWS]))
    bench.put("x", np.array([[0, 1, 0, 2]], np.float32))
    assert bench.context.shape_of("y") == (-1, 2)
    output = Growing(bench.device)
    bench.context.grow("y", output)
    bench.context.enqueue(bench.stream)
    bench.stream.synchronize()
    assert output.shape == (2, 2)
    back = bench.device.allocate_host(32)
    bench.device.copy_out(back.address, output.address, 32, bench.stream)
    bench.stream.synchronize()
    assert back.data.view(np.int64).reshape(2, 2).tolist() == [[0, 1], [0, 3]]


def test_a_shape_tensor_is_read_on_the_host_when_it_is_enqueued(platform: StandInPlatform) -> None:
    bench = Bench(platform, StandInPlan(reshape(), on_host=frozenset({"shape"})))
    bench.put("x", np.arange(6, dtype=np.float32))
    shape = np.array([2, 3], np.int64)
    bench.context.set_shape("shape", (2,))
    bench.context.bind("shape", shape.ctypes.data)
    output = Growing(bench.device)
    bench.context.grow("y", output)
    bench.context.enqueue(bench.stream)
    shape[:] = 0
    bench.stream.synchronize()
    assert output.shape == (2, 3)


def test_an_output_in_the_memory_of_an_input(platform: StandInPlatform) -> None:
    bench = Bench(platform, StandInPlan(twice(), [ROWS], aliases={"y": "x"}))
    assert next(one for one in bench.engine.tensors if one.name == "y").alias_of == "x"
    bench.put("x", X)
    bench.context.bind("y", bench.context._addresses["x"])
    bench.context.enqueue(bench.stream)
    back = bench.device.allocate_host(32)
    bench.device.copy_out(back.address, bench.context._addresses["x"], 32, bench.stream)
    bench.stream.synchronize()
    assert np.array_equal(back.data.view(np.float32).reshape(2, 4), X + X)


@pytest.mark.parametrize("kind", [11, 8])
def test_types_that_tensorrt_does_not_have_are_refused(platform: StandInPlatform, kind: int) -> None:
    from onnx import helper

    model = make([helper.make_node("Identity", ["x"], ["y"])], [("x", kind, [2])], [("y", kind, [2])])
    with pytest.raises(UnsupportedError, match="tensor 'x' has type"):
        Bench(platform, StandInPlan(model))


@pytest.mark.parametrize("data", [b"", b"rasi", b"rasi\x05\0\0\0{}...", b"vtrt" + bytes(100)])
def test_what_is_not_its_plan_is_refused(platform: StandInPlatform, data: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="stand-in"):
        platform.check_plan(data, 0)


def test_a_model_that_cannot_be_opened_is_refused(platform: StandInPlatform) -> None:
    with pytest.raises(InternalError, match="the stand-in cannot open its plan"):
        platform.open(StandInPlan(b"not onnx").to_bytes(), EngineOptions())


@pytest.fixture(autouse=True)
def no_error_stays(platform: StandInPlatform) -> Iterator[None]:
    yield
    platform.device(0).close()
