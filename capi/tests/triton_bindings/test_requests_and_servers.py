"""The binding module, used as a program written against Triton's uses it."""

import asyncio
import concurrent.futures
import ctypes
import gc
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.server.conftest import IDENTITY_CONFIG, identity, write_model

tb: Any = pytest.importorskip("repoagent_capi.triton_bindings", reason="repoagent-capi is not installed")

CPU = tb.TRITONSERVER_MemoryType.CPU
FP32 = tb.TRITONSERVER_DataType.FP32
BYTES = tb.TRITONSERVER_DataType.BYTES


@pytest.fixture
def explicit(repository: Path) -> Iterator[Any]:
    """A running server with addsub and text loaded."""
    options = tb.TRITONSERVER_ServerOptions()
    options.set_model_repository_path(str(repository))
    options.set_model_control_mode(tb.TRITONSERVER_ModelControlMode.EXPLICIT)
    options.set_startup_model("addsub")
    options.set_startup_model("text")
    server = tb.TRITONSERVER_Server(options)
    yield server
    server.stop()


@pytest.fixture
def arrays() -> tuple[Any, Any]:
    return np.arange(4, dtype=np.float32).reshape(1, 4), np.ones((1, 4), np.float32)


def _append(request: Any, name: str, array: Any) -> None:
    request.append_input_data(name, array.ctypes.data, array.nbytes, CPU, 0)


def _request(server: Any, arrays: tuple[Any, Any], version: int = -1) -> Any:
    request = tb.TRITONSERVER_InferenceRequest(server, "addsub", version)
    for name, array in zip(("INPUT0", "INPUT1"), arrays, strict=True):
        request.add_input(name, FP32, array.shape)
        _append(request, name, array)
    return request


def _answer(server: Any, request: Any, trace: Any = None) -> Any:
    server.infer_async(request, trace)
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    request.get_next_response(future)
    response, flags = future.result(60)
    assert flags == int(tb.FINAL)
    return response


def _read(response: Any, index: int) -> tuple[str, Any]:
    name, data_type, shape, address, size, memory_type, number = response.output(index)
    assert (data_type, memory_type, number) == (FP32, CPU, 0)
    return name, np.frombuffer(ctypes.string_at(address, size), np.float32).reshape(shape)


def test_a_request_is_answered(explicit: Any, arrays: tuple[Any, Any]) -> None:
    request = _request(explicit, arrays)
    request.id = "r1"
    response = _answer(explicit, request)
    response.throw_if_response_error()
    assert response.model == ("addsub", 1)
    assert response.id == "r1"
    assert (response.parameter_count, response.output_count) == (0, 2)
    assert [_read(response, index)[0] for index in range(2)] == ["OUTPUT0", "OUTPUT1"]
    assert _read(response, 0)[1].tolist() == [[1, 2, 3, 4]]
    assert response.output_classification_label(0, 0) == ""
    for read in (response.parameter, response.output):
        with pytest.raises(tb.TritonError, match="out of bounds index 7"):
            read(7)


def test_labels_come_with_the_response(repository: Path, explicit: Any, arrays: tuple[Any, Any]) -> None:
    config = repository / "addsub" / "config.pbtxt"
    outputs = """
        output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [4] }
        output { name: "OUTPUT1" data_type: TYPE_FP32 dims: [4] label_filename: "l" }
    """
    config.write_text(config.read_text() + outputs)
    (repository / "addsub" / "l").write_bytes(b"zero\none\n\xff")
    explicit.load_model("addsub")
    response = _answer(explicit, _request(explicit, arrays))
    labels = {response.output(it)[0]: [response.output_classification_label(it, n) for n in range(4)] for it in (0, 1)}
    assert labels == {"OUTPUT0": [""] * 4, "OUTPUT1": ["zero", "one", "\udcff", ""]}
    with pytest.raises(tb.TritonError, match="out of bounds index 2"):
        response.output_classification_label(2, 0)


def test_a_request_is_used_again_with_other_data(explicit: Any, arrays: tuple[Any, Any]) -> None:
    request = _request(explicit, arrays)
    _answer(explicit, request)
    request.remove_all_input_data("INPUT0")
    _append(request, "INPUT0", arrays[1])
    request.add_requested_output("OUTPUT0")
    response = _answer(explicit, request)
    assert response.output_count == 1
    assert _read(response, 0)[1].tolist() == [[2, 2, 2, 2]]
    request.remove_requested_output("OUTPUT0")
    request.remove_requested_output("never asked for")
    assert _answer(explicit, request).output_count == 2


def test_pieces_make_one_tensor(explicit: Any, arrays: tuple[Any, Any]) -> None:
    first, second = (np.ascontiguousarray(part) for part in np.split(arrays[0], 2, axis=1))
    request = _request(explicit, arrays)
    request.remove_all_input_data("INPUT0")
    _append(request, "INPUT0", first)
    attributes = tb.TRITONSERVER_BufferAttributes()
    attributes.byte_size = second.nbytes
    request.append_input_data_with_buffer_attributes("INPUT0", second.ctypes.data, attributes)
    assert _read(_answer(explicit, request), 0)[1].tolist() == [[1, 2, 3, 4]]


def test_data_of_another_size_is_refused(explicit: Any, arrays: tuple[Any, Any]) -> None:
    request = _request(explicit, arrays)
    _append(request, "INPUT0", arrays[0])
    with pytest.raises(tb.InvalidArgumentError, match="Expected 16, got 32"):
        explicit.infer_async(request)


def test_inputs_that_are_not_there_are_errors(explicit: Any, arrays: tuple[Any, Any]) -> None:
    request = _request(explicit, arrays)
    calls: list[Callable[[], Any]] = [
        lambda: request.remove_input("none"),
        lambda: request.remove_all_input_data("none"),
        lambda: _append(request, "none", arrays[0]),
        lambda: request.append_input_data_with_host_policy("none", 0, 0, CPU, 0, "host"),
        lambda: request.append_input_data_with_buffer_attributes("none", 0, tb.TRITONSERVER_BufferAttributes()),
        lambda: request.add_input("INPUT0", FP32, (1,)),
        lambda: request.add_raw_input("more"),
    ]
    for call in calls:
        with pytest.raises(tb.TritonError):
            call()
    request.remove_input("INPUT0")
    request.remove_all_inputs()
    request.add_raw_input("INPUT0")
    with pytest.raises(tb.TritonError, match="one input"):
        explicit.infer_async(request)


def test_a_raw_input_gets_its_type_and_shape_from_the_model(explicit: Any) -> None:
    request = tb.TRITONSERVER_InferenceRequest(explicit, "text", 1)
    request.add_raw_input("INPUT")
    data = np.frombuffer(b"some text", np.uint8)
    _append(request, "INPUT", data)
    response = _answer(explicit, request)  # The address is good only as long as this lives.
    name, data_type, shape, address, size, *_ = response.output(0)
    assert (name, data_type, shape) == ("OUTPUT", BYTES, (1,))
    assert ctypes.string_at(address, size) == b"\x09\x00\x00\x00some text"


def test_a_raw_input_of_numbers_holds_whole_ones_only(explicit: Any, repository: Path) -> None:
    write_model(repository, "numbers", identity(TensorProto.FLOAT), IDENTITY_CONFIG.format(type="TYPE_FP32"))
    explicit.load_model("numbers")
    data = np.arange(3, dtype=np.float32).view(np.uint8)
    for size, refused in ((12, False), (10, True)):
        request = tb.TRITONSERVER_InferenceRequest(explicit, "numbers", 1)
        request.add_raw_input("INPUT")
        _append(request, "INPUT", data[:size])
        if refused:
            with pytest.raises(tb.InvalidArgumentError, match="the 10 bytes of raw input 'INPUT' do not fit shape"):
                explicit.infer_async(request)
        else:
            assert _answer(explicit, request).output(0)[2] == (3,)


def test_the_fields_of_a_request(explicit: Any, arrays: tuple[Any, Any]) -> None:
    request = _request(explicit, arrays)
    assert (request.flags, request.correlation_id, request.timeout_microseconds) == (0, 0, 0)
    request.flags = int(tb.SEQUENCE_START)
    request.correlation_id = 5
    assert request.correlation_id == 5
    with pytest.raises(tb.TritonError):
        _ = request.correlation_id_string
    request.correlation_id_string = "five"
    assert request.correlation_id_string == "five"
    with pytest.raises(tb.TritonError):
        _ = request.correlation_id
    for asked, given in ((67, 10), (19, 19), (0, 10)):
        request.priority = asked
        assert request.priority == given
        request.priority_uint64 = asked
        assert request.priority_uint64 == given
    request.set_string_parameter("a", "x")
    request.set_int_parameter("b", 1)
    request.set_bool_parameter("c", True)
    request.set_double_parameter("d", 0.5)
    with pytest.raises(tb.TritonError, match="'a' already exists"):
        request.set_string_parameter("a", "y")


def test_an_unknown_model_is_told_at_once(explicit: Any) -> None:
    with pytest.raises(tb.NotFoundError, match="unknown model"):
        tb.TRITONSERVER_InferenceRequest(explicit, "none", -1)


def test_an_invalid_request_stays_with_the_caller(explicit: Any, arrays: tuple[Any, Any]) -> None:
    request = tb.TRITONSERVER_InferenceRequest(explicit, "addsub", -1)
    with pytest.raises(tb.InvalidArgumentError, match="expected 2 inputs"):
        explicit.infer_async(request)
    for name, array in zip(("INPUT0", "INPUT1"), arrays, strict=True):
        request.add_input(name, FP32, array.shape)
        _append(request, name, array)
    assert _answer(explicit, request).output_count == 2


def test_responses_that_come_early_wait_and_only_one_future_may(explicit: Any, arrays: tuple[Any, Any]) -> None:
    request = _request(explicit, arrays)
    first: concurrent.futures.Future[Any] = concurrent.futures.Future()
    request.get_next_response(first)
    with pytest.raises(tb.AlreadyExistsError, match="cannot call GetNextResponse concurrently"):
        request.get_next_response(concurrent.futures.Future())
    explicit.infer_async(request)
    assert first.result(60)[1] == int(tb.FINAL)


async def test_a_future_of_an_event_loop_is_resolved_on_it(explicit: Any, arrays: tuple[Any, Any]) -> None:
    request = _request(explicit, arrays)
    explicit.infer_async(request)
    future = asyncio.get_running_loop().create_future()
    request.get_next_response(future)
    response, flags = await asyncio.wait_for(future, 60)
    assert (response.output_count, flags) == (2, int(tb.FINAL))


def test_a_future_that_is_done_already_is_left_alone(explicit: Any, arrays: tuple[Any, Any]) -> None:
    request = _request(explicit, arrays)
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    done.set_result("mine")
    request.get_next_response(done)
    explicit.infer_async(request)
    assert _answer(explicit, _request(explicit, arrays)).output_count == 2
    assert done.result() == "mine"


def test_a_trace_tells_every_step_once(explicit: Any, arrays: tuple[Any, Any]) -> None:
    steps: list[tuple[Any, int]] = []
    tensors: list[tuple[Any, ...]] = []
    released = threading.Event()
    userp = object()

    def on_activity(trace: Any, activity: Any, timestamp: int, user: object) -> None:
        assert user is userp
        steps.append((activity, timestamp))

    def on_tensor(trace: Any, activity: Any, name: str, *rest: Any) -> None:
        assert rest[-1] is userp
        tensors.append((activity, name, rest[0], rest[3]))

    def on_release(trace: Any, user: object) -> None:
        assert (trace.parent_id, trace.model_name, trace.model_version, trace.request_id) == (7, "addsub", 1, "r")
        released.set()

    level = int(tb.TIMESTAMPS) | int(tb.TENSORS)
    trace = tb.TRITONSERVER_InferenceTrace(level, 7, on_activity, on_tensor, on_release, userp)
    assert trace.id > 0
    request = _request(explicit, arrays)
    request.id = "r"
    response = _answer(explicit, request, trace)
    assert [step for step, _ in steps] == [
        tb.REQUEST_START,
        tb.QUEUE_START,
        tb.COMPUTE_START,
        tb.COMPUTE_INPUT_END,
        tb.COMPUTE_OUTPUT_START,
        tb.COMPUTE_END,
        tb.REQUEST_END,
    ]
    assert sorted(time for _, time in steps) == [time for _, time in steps]
    assert tensors == [
        (tb.TENSOR_QUEUE_INPUT, "INPUT0", FP32, [1, 4]),
        (tb.TENSOR_QUEUE_INPUT, "INPUT1", FP32, [1, 4]),
        (tb.TENSOR_BACKEND_OUTPUT, "OUTPUT0", FP32, [1, 4]),
        (tb.TENSOR_BACKEND_OUTPUT, "OUTPUT1", FP32, [1, 4]),
    ]
    assert not released.is_set()
    del response
    gc.collect()
    assert released.wait(60)


def test_a_trace_without_levels_tells_nothing_and_comes_back(explicit: Any, arrays: tuple[Any, Any]) -> None:
    told: list[str] = []
    trace = tb.TRITONSERVER_InferenceTrace(
        int(tb.DISABLED), 0, lambda *_: told.append("activity"), lambda *_: told.append("release"), None
    )
    with pytest.raises(tb.InvalidArgumentError):
        explicit.infer_async(tb.TRITONSERVER_InferenceRequest(explicit, "addsub", -1), trace)
    gc.collect()
    assert told == ["release"]
    with pytest.raises(TypeError):
        tb.TRITONSERVER_InferenceTrace(0, 0, print)


def test_a_callback_that_raises_takes_no_response_away(explicit: Any, arrays: tuple[Any, Any]) -> None:
    def on_activity(trace: Any, activity: Any, *rest: Any) -> None:
        if activity is tb.REQUEST_END:
            raise ValueError("no")

    trace = tb.TRITONSERVER_InferenceTrace(int(tb.TIMESTAMPS), 0, on_activity, lambda *_: None, None)
    assert _answer(explicit, _request(explicit, arrays), trace).output_count == 2


def test_what_a_server_tells_is_json(explicit: Any) -> None:
    assert explicit.is_live()
    assert explicit.is_ready()
    assert explicit._ptr() > 0
    assert json.loads(explicit.metadata().serialize_to_json())["name"] == "triton"
    assert json.loads(explicit.model_metadata("addsub", -1).serialize_to_json())["name"] == "addsub"
    assert json.loads(explicit.model_statistics("addsub", 1).serialize_to_json())["model_stats"]
    assert json.loads(explicit.model_config("addsub", -1, 1).serialize_to_json())["input"]
    assert json.loads(explicit.model_index(0).serialize_to_json())[0]["name"] == "addsub"
    ready = json.loads(explicit.model_index(int(tb.READY)).serialize_to_json())
    assert [entry["name"] for entry in ready] == ["addsub", "text"]
    assert explicit.model_batch_properties("addsub", -1) == (int(tb.FIRST_DIM), 0)
    assert explicit.model_transaction_properties("addsub", -1) == (int(tb.ONE_TO_ONE), 0)
    assert "nv_cpu_memory_used_bytes" in explicit.metrics().formatted(tb.TRITONSERVER_MetricFormat.PROMETHEUS)


def test_models_come_and_go(explicit: Any, add_sub_model: bytes, repository: Path) -> None:
    for unload in (explicit.unload_model, explicit.unload_model_and_dependents):
        explicit.load_model("addsub")
        assert explicit.model_is_ready("addsub", -1)
        unload("addsub")
        assert not explicit.model_is_ready("addsub", -1)
    parameters = [
        tb.TRITONSERVER_Parameter("config", '{"backend": "onnxruntime"}'),
        tb.TRITONSERVER_Parameter("file:1/model.onnx", add_sub_model),
    ]
    explicit.load_model_with_parameters("wired", parameters)
    assert explicit.model_is_ready("wired", 1)
    explicit.unregister_model_repository(str(repository))
    with pytest.raises(tb.TritonError):
        explicit.load_model("addsub")
    explicit.register_model_repository(str(repository), [tb.TRITONSERVER_Parameter("addsub", "renamed")])
    explicit.load_model("renamed")
    with pytest.raises(tb.InvalidArgumentError, match="Mapped model name must be a string, found another type for x"):
        explicit.register_model_repository("/x", [tb.TRITONSERVER_Parameter("x", 1)])
    with pytest.raises(tb.TritonError):
        explicit.poll_model_repository()


def test_a_stopped_server_is_not_live(explicit: Any, arrays: tuple[Any, Any]) -> None:
    request = _request(explicit, arrays)
    explicit.stop()
    explicit.stop()
    assert not explicit.is_live()
    with pytest.raises(tb.UnavailableError):
        explicit.infer_async(request)


def test_parameters_have_the_types_of_their_values() -> None:
    types = [tb.TRITONSERVER_Parameter("p", value).type.name for value in (b"x", "x", 1, True)]
    assert types == ["BYTES", "STRING", "INT", "BOOL"]
    others: tuple[Any, ...] = (0.5, None, [])
    for wrong in others:
        with pytest.raises(TypeError):
            tb.TRITONSERVER_Parameter("p", wrong)


def test_messages_are_json() -> None:
    assert tb.TRITONSERVER_Message('{"a": 1}').serialize_to_json() == '{"a": 1}'
    for text in ("{", "[" * 5000 + "]" * 5000):
        with pytest.raises(tb.InvalidArgumentError, match="failed to parse the message as JSON"):
            tb.TRITONSERVER_Message(text)


def test_buffer_attributes_keep_a_copy_of_the_handle() -> None:
    attributes = tb.TRITONSERVER_BufferAttributes()
    assert (attributes.memory_type, attributes.memory_type_id, attributes.byte_size) == (CPU, 0, 0)
    assert attributes.cuda_ipc_handle == 0
    handle = ctypes.create_string_buffer(bytes(range(64)), 64)
    attributes.cuda_ipc_handle = ctypes.addressof(handle)
    handle[0] = b"\xff"
    assert ctypes.string_at(attributes.cuda_ipc_handle, 64) == bytes(range(64))


def test_an_allocator_keeps_its_functions() -> None:
    allocator = tb.TRITONSERVER_ResponseAllocator(print, repr, str)
    allocator.set_query_function(len)
    allocator.set_buffer_attributes_function(abs)
    assert (allocator.alloc, allocator.release, allocator.start) == (print, repr, str)
    assert (allocator.query, allocator.buffer_attributes) == (len, abs)


def test_the_names_and_sizes_of_types() -> None:
    assert tb.TRITONSERVER_DataTypeString(FP32) == "FP32"
    assert tb.TRITONSERVER_DataTypeString(tb.TRITONSERVER_DataType.INVALID) == "<invalid>"
    assert tb.TRITONSERVER_StringToDataType("BF16") is tb.TRITONSERVER_DataType.BF16
    assert tb.TRITONSERVER_StringToDataType("none") is tb.TRITONSERVER_DataType.INVALID
    assert [tb.TRITONSERVER_DataTypeByteSize(it) for it in tb.TRITONSERVER_DataType] == [
        0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 2,
    ]  # fmt: skip
    assert tb.TRITONSERVER_MemoryTypeString(tb.TRITONSERVER_MemoryType.CPU_PINNED) == "CPU_PINNED"
    assert tb.TRITONSERVER_ParameterTypeString(tb.TRITONSERVER_ParameterType.DOUBLE) == "DOUBLE"
    assert tb.TRITONSERVER_InstanceGroupKindString(tb.TRITONSERVER_InstanceGroupKind.MODEL) == "MODEL"
    assert tb.TRITONSERVER_InferenceTraceLevelString(tb.TENSORS) == "TENSORS"
    assert tb.TRITONSERVER_InferenceTraceActivityString(tb.QUEUE_START) == "QUEUE_START"


def test_options_are_set_one_by_one(tmp_path: Path) -> None:
    options = tb.TRITONSERVER_ServerOptions()
    options.set_server_id("me")
    options.set_model_repository_path("one")
    options.set_model_repository_path("two")
    options.set_rate_limiter_mode(tb.TRITONSERVER_RateLimitMode.EXEC_COUNT)
    options.add_rate_limiter_resource("r", 2, -1)
    options.set_cuda_memory_pool_byte_size(1, 2)
    options.set_cache_config("local", '{"size": "5"}')
    options.set_backend_config("onnxruntime", "threads", "2")
    options.set_model_load_device_limit(tb.TRITONSERVER_InstanceGroupKind.GPU, 0, 0.5)
    options.set_host_policy("p", "numa-node", "0")
    found = options.to_options()
    assert (found.server_id, found.model_repository) == ("me", ["one", "two"])
    assert found.cache_config == {"local": {"size": "5"}}
    assert found.backend_configuration == {"onnxruntime": {"threads": "2"}}
    for kind in (it for it in tb.TRITONSERVER_InstanceGroupKind if it.name != "GPU"):
        with pytest.raises(tb.TritonError, match="not supported"):
            options.set_model_load_device_limit(kind, 0, 0)
    with pytest.raises(tb.TritonError, match="Unsupported host policy setting"):
        options.set_host_policy("p", "setting", "x")
    for wrong in ("{", "[]"):
        with pytest.raises(tb.InvalidArgumentError):
            options.set_cache_config("local", wrong)


def test_the_log_is_set_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    options = tb.TRITONSERVER_ServerOptions()
    options.set_log_file(str(path))
    options.set_log_info(True)
    assert tb.TRITONSERVER_LogIsEnabled(tb.TRITONSERVER_LogLevel.INFO)
    tb.TRITONSERVER_LogMessage(tb.TRITONSERVER_LogLevel.INFO, "filename", 123, "info_message")
    assert 'filename:123] "info_message"' in path.read_text()
    options.set_log_info(False)
    options.set_log_file("")
    assert not tb.TRITONSERVER_LogIsEnabled(tb.TRITONSERVER_LogLevel.INFO)


def test_custom_metrics_take_parameters_as_labels() -> None:
    family = tb.TRITONSERVER_MetricFamily(tb.TRITONSERVER_MetricKind.COUNTER, "test_binding", "Binding")
    metric = tb.TRITONSERVER_Metric(family, [tb.TRITONSERVER_Parameter("color", "red")])
    metric.increment(2)
    assert (metric.value, metric.kind) == (2, tb.TRITONSERVER_MetricKind.COUNTER)
    with pytest.raises(tb.TritonError):
        metric.set_value(1)
    with pytest.raises(tb.InvalidArgumentError):
        tb.TRITONSERVER_Metric(family, [tb.TRITONSERVER_Parameter("color", 1)])
