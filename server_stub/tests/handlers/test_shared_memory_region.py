"""How long a region stays mapped, what it is written to with, and that nothing is copied on the way."""

import gc
import queue
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers import requested_outputs
from repoagent_server.handlers import shared_memory as shared_memory_handler
from repoagent_server.handlers.inference import Served
from repoagent_server.handlers.requested_outputs import store
from repoagent_server.handlers.shared_memory import Regions
from repoagent_server.shared.grpc_options import GrpcOptions
from tritonclient.utils import shared_memory

from repoagent.errors import InternalError, UnavailableError
from repoagent.serving.requests.tensor import DataType, Tensor

if TYPE_CHECKING:
    from server_stub.tests.conftest import FakeCore, Objects, StartFrontend

_MIB: Final = 1 << 20


@pytest.fixture
def regions() -> Iterator[Regions]:
    regions = Regions(allowed=True)
    yield regions
    regions.close()


@pytest.fixture(params=["http", "grpc"])
def module_and_client(
    request: pytest.FixtureRequest, core: "FakeCore", regions: Regions, start: "StartFrontend"
) -> Iterator[tuple[Any, Any]]:
    """A client module, and a client of it for the fake core."""
    if request.param == "http":
        host, port = start(regions=regions).bind()
        with http_client.InferenceServerClient(f"{host}:{port}", concurrency=2) as client:
            yield http_client, client
        return
    front = GrpcFrontend(Served(core, regions=regions), GrpcOptions(port=0))
    front.start()
    with grpc_client.InferenceServerClient(f"127.0.0.1:{front.bind()[1]}") as client:
        yield grpc_client, client
    core.gate.set()
    front.stop()


def _mapped(key: str) -> bool:
    """Whether this process has the object mapped more often than the client's one time."""
    return Path("/proc/self/maps").read_text().count(f"/dev/shm{key}\n") > 1


def _tensors(module: Any, size: int) -> tuple[Any, Any]:
    given = module.InferInput("INPUT0", [1, size // 4], "FP32")
    given.set_shared_memory("in", size)
    wanted = module.InferRequestedOutput("OUTPUT0")
    wanted.set_shared_memory("out", size)
    return given, wanted


def test_a_region_in_use_can_be_unregistered(
    module_and_client: tuple[Any, Any], core: "FakeCore", regions: Regions, objects: "Objects"
) -> None:
    module, client = module_and_client
    objects.make("in", 8, np.array([1, 2], np.float32).tobytes())
    out = objects.make("out", 8)
    for name in ("in", "out"):
        client.register_system_shared_memory(name, objects.key(name), 8)
    given, wanted = _tensors(module, 8)
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    if module is grpc_client:
        client.async_infer("slow", [given], lambda result, error: results.put(error), outputs=[wanted])
    else:
        running = client.async_infer("slow", [given], outputs=[wanted])
    assert core.submitted.wait(60)
    client.unregister_system_shared_memory()
    assert regions.status() == []
    assert _mapped(objects.key("in"))
    core.gate.set()
    if module is grpc_client:
        assert results.get(timeout=60) is None
    else:
        running.get_result()
    assert objects.read(out, np.float32, [2]).tolist() == [1, 2]


def test_what_is_unregistered_is_unmapped(regions: Regions, objects: "Objects") -> None:
    for name in ("a", "b", "c"):
        objects.make(name, 8)
        regions.register(name, objects.key(name), 0, 8)
    span = regions.span("a", 0, 8)
    view = span.view()
    regions.unregister("a")
    del span
    assert _mapped(objects.key("a"))
    del view
    gc.collect()
    assert not _mapped(objects.key("a"))
    assert [region.name for region in regions.status()] == ["b", "c"]
    regions.close()
    gc.collect()
    assert not _mapped(objects.key("b")) | _mapped(objects.key("c"))


def test_there_is_an_end_to_the_number_of_regions(
    regions: Regions, objects: "Objects", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory_handler, "_MOST", 2)
    objects.make("a", 8)
    for name in ("one", "two"):
        regions.register(name, objects.key("a"), 0, 8)
    with pytest.raises(UnavailableError, match="region 'three': there are 2 already; unregister some"):
        regions.register("three", objects.key("a"), 0, 8)
    regions.unregister("one")
    regions.register("three", objects.key("a"), 0, 8)


def test_64_mib_go_both_ways_without_a_copy(
    module_and_client: tuple[Any, Any], core: "FakeCore", regions: Regions, objects: "Objects"
) -> None:
    """What the model reads is the client's memory, and what it answers is written there once: Python's allocators,
    NumPy's among them, are asked for next to nothing."""
    module, client = module_and_client
    size = 64 * _MIB
    given_handle, wanted_handle = objects.make("in", size), objects.make("out", size)
    values = np.arange(size // 4, dtype=np.float32).reshape(1, -1)
    shared_memory.set_shared_memory_region(given_handle, [values])
    for name in ("in", "out"):
        client.register_system_shared_memory(name, objects.key(name), size)
    given, wanted = _tensors(module, size)
    tracemalloc.start()
    try:
        client.infer("ident", [given], outputs=[wanted])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    seen = core.requests[-1].inputs["INPUT0"].array
    assert np.shares_memory(seen, np.frombuffer(regions.span("in", 0, size).view(), np.uint8))
    assert not seen.flags.writeable
    assert peak < 4 * _MIB
    written = shared_memory.get_contents_as_numpy(wanted_handle, np.float32, [1, size // 4])
    assert np.array_equal(written, values)
    core.requests.clear()


def test_what_is_in_its_place_already_is_not_written_again(
    regions: Regions, objects: "Objects", monkeypatch: pytest.MonkeyPatch
) -> None:
    objects.make("out", 64)
    regions.register("out", objects.key("out"), 0, 64)
    span = regions.span("out", 16, 32)
    place: Any = np.ndarray((2, 4), np.float32, span.view())
    monkeypatch.setattr(requested_outputs, "_copy", pytest.fail)
    store("OUT", Tensor(DataType.FP32, place), span)


@pytest.mark.parametrize(
    ("data_type", "array", "written"),
    [
        (DataType.FP32, np.arange(6, dtype=np.float32).reshape(2, 3).T, struct.pack("<6f", 0, 3, 1, 4, 2, 5)),
        (DataType.INT32, np.array([1, 2], np.int64), struct.pack("<2i", 1, 2)),
        (DataType.BOOL, np.array([True, False]), b"\1\0"),
        (DataType.FP64, np.empty(0), b""),
        (DataType.BYTES, np.array(["\u00e9", b"\0"], np.object_), b"\2\0\0\0\xc3\xa9\1\0\0\0\0"),
        (DataType.BYTES, np.empty(0, np.object_), b""),
    ],
    ids=["not-contiguous", "other-width", "bool", "nothing", "text", "no-text"],
)
def test_an_output_is_written_in_its_own_type(
    regions: Regions, objects: "Objects", data_type: DataType, array: Any, written: bytes
) -> None:
    handle = objects.make("out", 64)
    regions.register("out", objects.key("out"), 0, 64)
    store("OUT", Tensor(data_type, array), regions.span("out", 3, len(written)))
    assert objects.read(handle, np.uint8, [64]).tobytes() == bytes(3) + written + bytes(61 - len(written))
    if written:
        with pytest.raises(
            InternalError, match=rf"\({len(written) - 1} bytes\) should be at least {len(written)} bytes"
        ):
            store("OUT", Tensor(data_type, array), regions.span("out", 3, len(written) - 1))
