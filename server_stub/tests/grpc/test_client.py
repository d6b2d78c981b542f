"""``tritonclient.grpc`` as it comes from the package index, against the front end."""

import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.grpc import service_pb2 as theirs
from tritonclient.utils import InferenceServerException

from repoagent.errors import UnavailableError
from repoagent.server import LogLevel
from repoagent.server.logs import ServerLog
from repoagent.serving.requests.request import InferResponse
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.tracing.trace_settings import TraceSettings
from repoagent.serving.tracing.tracer import Tracer

Client: TypeAlias = Any  # triton.InferenceServerClient: tritonclient has no types


def tensor(name: str, array: np.ndarray[Any, Any], datatype: str) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def fp32(*values: float) -> triton.InferInput:
    return tensor("INPUT0", np.array([values], np.float32), "FP32")


def test_a_fault_of_the_server_leaves_no_client_without_an_answer(
    client: Client, core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    output: Any = "no tensor"
    core.responses = [(InferResponse("ident", "1", outputs={"OUTPUT0": output}), True)]
    expected = "unexpected AttributeError; the server's log has the details"
    assert status_of(lambda: client.infer("ident", [fp32(1)])) == ("StatusCode.INTERNAL", expected)
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client.start_stream(lambda result, error: answers.put(error or result))
    client.async_stream_infer("ident", [fp32(1)])
    assert answers.get(timeout=60).message() == expected

    def broken(*_: Any) -> None:
        raise ValueError("broken")

    monkeypatch.setattr("repoagent_server.grpc.infer.read_infer", broken)
    client.async_stream_infer("ident", [fp32(1, 2)])  # not like the one before, which is remembered
    assert answers.get(timeout=60).message() == "unexpected ValueError; the server's log has the details"
    client.stop_stream()


def status_of(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as raised:
        call()
    return str(raised.value.status()), str(raised.value.message())


def test_the_index_leaves_out_namespaces_for_which_it_has_no_field(client: Client, core: Any) -> None:
    core.index = lambda ready_only: [{"name": "m", "namespace": "/models", "version": "1", "state": "READY"}]
    index = client.get_model_repository_index(as_json=True)
    assert index == {"models": [{"name": "m", "version": "1", "state": "READY"}]}


def test_index_load_and_unload(client: Client, core: Any) -> None:
    assert "ident" in {model.name for model in client.get_model_repository_index().models}
    client.load_model("ident")
    client.unload_model("ident", unload_dependents=True)
    assert core.calls[-2:] == [("load", "ident", None, None), ("unload", "ident", True)]


def test_load_parameters_need_the_operators_consent(client: Client) -> None:
    status, text = status_of(lambda: client.load_model("ident", config="{}"))
    assert status == "StatusCode.UNIMPLEMENTED"
    assert "--allow-load-parameters" in text


def test_load_parameters_reach_the_core(start_grpc: Any, core: Any) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{start_grpc(allow_load_parameters=True)}") as client:
        client.load_model("ident", config='{"name": "ident"}', files={"file:1/model.py": b"code"})
    assert core.calls[-1] == ("load", "ident", '{"name": "ident"}', {"1/model.py": b"code"})


@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        ("FP32", np.array([1.5, -2.0], np.float32)),
        ("FP16", np.array([1.5, -2.0], np.float16)),
        ("INT64", np.array([1, -(2**63)], np.int64)),
        ("UINT8", np.array([0, 255], np.uint8)),
        ("BOOL", np.array([True, False])),
        ("BYTES", np.array([b"a\x00", "ü".encode()], np.object_)),
        ("FP32", np.empty(0, np.float32)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.dtype}[{value.size}]",
)
def test_a_tensor_comes_back_as_it_was_sent(client: Client, datatype: str, array: np.ndarray[Any, Any]) -> None:
    result = client.infer("any", [tensor("INPUT0", array, datatype)], request_id="r1")
    assert result.as_numpy("OUTPUT0").tolist() == array.tolist()
    assert result.get_response().id == "r1"


def test_parameters_and_sequence_fields_reach_the_core(client: Client, core: Any) -> None:
    client.infer(
        "ident",
        [fp32(1)],
        sequence_id=2**63 - 1,
        sequence_start=True,
        priority=3,
        timeout=7,
        parameters={"text": "x", "number": 4, "flag": True, "share": 0.5},
        outputs=[triton.InferRequestedOutput("OUTPUT0")],
    )
    request = core.requests[-1].asked
    assert (request.correlation_id, request.sequence_start, request.sequence_end) == (2**63 - 1, True, False)
    assert (request.priority, request.timeout_us) == (3, 7)
    assert request.parameters == {"text": "x", "number": 4, "flag": True, "share": 0.5}
    assert request.requested_outputs == ("OUTPUT0",)


def test_a_sequence_can_have_a_text_for_its_id(client: Client, core: Any) -> None:
    client.infer("ident", [fp32(1)], sequence_id="chat-7", sequence_end=True)
    assert core.requests[-1].asked.correlation_id == "chat-7"


@pytest.mark.parametrize(
    ("call", "status", "text"),
    [
        (lambda c: c.infer("nosuch", [fp32(1)]), "NOT_FOUND", "Request for unknown model: 'nosuch' is not found"),
        (lambda c: c.infer("ident", [fp32(1)], model_version="3"), "NOT_FOUND", "version 3 is not found"),
        (
            lambda c: c.get_model_metadata("ident", "x"),
            "INVALID_ARGUMENT",
            "failed to get model version from specified version string 'x'",
        ),
        (
            lambda c: c.infer("ident", [tensor("other", np.zeros(1, np.float32), "FP32")]),
            "INVALID_ARGUMENT",
            "unexpected inference input 'other' for model 'ident'",
        ),
        (lambda c: c.load_model("nosuch"), "INTERNAL", "failed to load 'nosuch', failed to poll"),
    ],
)
def test_errors_have_tritons_status_and_text(
    client: Client, call: Callable[[Client], object], status: str, text: str
) -> None:
    found_status, found_text = status_of(lambda: call(client))
    assert found_status == f"StatusCode.{status}"
    assert text in found_text


def test_an_error_of_the_model_is_the_status_of_the_call(client: Client, core: Any) -> None:
    core.responses = [(InferResponse("ident", "1", error=UnavailableError("queue full")), True)]
    assert status_of(lambda: client.infer("ident", [fp32(1)])) == ("StatusCode.UNAVAILABLE", "queue full")


@pytest.mark.parametrize("count", [0, 2])
def test_a_decoupled_model_cannot_be_called_without_a_stream(client: Client, core: Any, count: int) -> None:
    core.responses = [(InferResponse("ident", "1"), False)] * count + [(None, True)]
    status, text = status_of(lambda: client.infer("ident", [fp32(1)]))
    assert status == "StatusCode.UNIMPLEMENTED"
    assert "decoupled transaction policy" in text


def test_a_call_that_the_client_cancels_is_cancelled_in_the_core(client: Client, core: Any) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    call = client.async_infer("slow", [fp32(1)], lambda result, error: answers.put(error))
    assert core.submitted.wait(60)
    call.cancel()
    assert "CANCELLED" in str(answers.get(timeout=60))
    client.is_server_live()
    assert core.requests[-1].cancelled


def test_compressed_messages_are_understood(client: Client) -> None:
    result = client.infer("ident", [fp32(*range(1000))], compression_algorithm="gzip")
    assert result.as_numpy("OUTPUT0").shape == (1, 1000)


def test_a_large_tensor_goes_both_ways(client: Client) -> None:
    array = np.arange(4 << 20, dtype=np.float32).reshape(1, -1)
    result = client.infer("ident", [tensor("INPUT0", array, "FP32")])
    assert np.array_equal(result.as_numpy("OUTPUT0"), array)


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.register_system_shared_memory("r", "/k", 8),
        lambda client: client.get_system_shared_memory_status(),
        lambda client: client.unregister_system_shared_memory(),
        lambda client: client.register_cuda_shared_memory("r", b"", 0, 8),
    ],
    ids=["register", "status", "unregister", "cuda"],
)
def test_shared_memory_is_off_unless_it_is_allowed(client: Client, call: Callable[[Client], object]) -> None:
    off = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    assert status_of(lambda: call(client)) == ("StatusCode.UNIMPLEMENTED", off)
    tensor = triton.InferInput("INPUT0", [1], "FP32")
    tensor.set_shared_memory("r", 4)
    assert status_of(lambda: client.infer("ident", [tensor])) == ("StatusCode.UNIMPLEMENTED", off)


def test_clients_may_clean_up_what_cuda_shared_memory_they_never_had(client: Client) -> None:
    client.unregister_cuda_shared_memory()
    assert len(client.get_cuda_shared_memory_status().regions) == 0


class Stream:
    """A stream of the client's, whose results are taken one by one."""

    def __init__(self, client: Client) -> None:
        self.results: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self.client = client
        client.start_stream(lambda result, error: self.results.put((result, error)))

    def send(self, model: str, *values: float, **options: Any) -> None:
        self.client.async_stream_infer(model, [fp32(*values)], **options)

    def take(self) -> tuple[Any, Any]:
        return self.results.get(timeout=60)


def test_many_requests_are_in_flight_on_one_stream(client: Client, core: Any) -> None:
    stream = Stream(client)
    stream.send("slow", 1, request_id="first")
    assert core.submitted.wait(60)
    stream.send("ident", 2, request_id="second")
    assert stream.take()[0].get_response().id == "second"
    core.gate.set()
    assert stream.take()[0].get_response().id == "first"
    client.stop_stream()


def test_a_decoupled_model_streams_and_marks_the_last_response(client: Client, core: Any) -> None:
    answers = [
        (InferResponse("ident", "1", outputs={"OUTPUT0": Tensor.of(np.array([i], np.float32))}), False)
        for i in range(3)
    ]
    core.responses = [*answers, (None, True)]
    stream = Stream(client)
    stream.send("ident", 0, enable_empty_final_response=True)
    results = [stream.take()[0] for _ in range(4)]
    finals = [result.get_response().parameters["triton_final_response"].bool_param for result in results]
    assert finals == [False, False, False, True]
    assert [result.as_numpy("OUTPUT0").tolist() for result in results[:3]] == [[0.0], [1.0], [2.0]]
    assert results[3].as_numpy("OUTPUT0") is None
    client.stop_stream()


def test_the_empty_end_is_sent_only_to_those_who_ask(client: Client, core: Any) -> None:
    core.responses = [(None, True)]
    stream = Stream(client)
    stream.send("ident", 0)
    core.requests.clear()
    stream.send("nosuch", 0)
    _, error = stream.take()
    assert "unknown model" in str(error)
    client.stop_stream()


def test_an_error_does_not_end_the_stream(client: Client, core: Any) -> None:
    stream = Stream(client)
    stream.send("nosuch", 1, request_id="bad")
    _, error = stream.take()
    assert "Request for unknown model: 'nosuch' is not found" in str(error)
    stream.send("ident", 5)
    assert stream.take()[0].as_numpy("OUTPUT0").tolist() == [[5.0]]
    client.stop_stream()


def test_a_client_that_leaves_cancels_what_its_stream_asked(client: Client, core: Any) -> None:
    stream = Stream(client)
    stream.send("slow", 1)
    assert core.submitted.wait(60)
    client.stop_stream(cancel_requests=True)
    assert client.is_server_live()
    assert core.requests[-1].cancelled


def test_blanks_around_metadata_are_no_part_of_them(start_grpc: Any, core: Any) -> None:
    """F14: grpcio's client sends them as they are, and gRPC's specification has servers strip them."""
    message = service_pb2.ModelInferRequest(model_name="ident")
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1])
    message.raw_input_contents.append(bytes(4))
    port = start_grpc(forward_header_pattern="tenant.*")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        metadata = (("tenant", "  red blue "), ("tenant-2", "   "), ("x-request-id", " r-1"), ("key-bin", b" \x00 "))
        assert infer(message, metadata=metadata).raw_output_contents == [bytes(4)]
    assert core.requests[-1].call_id == "r-1"
    assert core.requests[-1].asked.parameters == {"tenant": "red blue", "tenant-2": ""}


# Parameters of load and unload that make no sense; the texts are those of a stock Triton 2.51.


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("foo", {"string_param": "x"}, "unrecognized load parameter 'foo'."),
        ("config", {"int64_param": 1}, "invalid value type for load parameter 'config', expected string_param."),
        ("config", {}, "invalid value type for load parameter 'config', expected string_param."),
        ("file:x", {"string_param": "x"}, "invalid value type for load parameter 'file:x', expected bytes_param."),
    ],
)
def test_a_load_parameter_that_makes_no_sense(stub: Any, ask: Any, name: str, value: dict[str, Any], text: str) -> None:
    message = service_pb2.RepositoryModelLoadRequest(model_name="ident")
    message.parameters[name].CopyFrom(service_pb2.ModelRepositoryParameter(**value))
    assert ask(stub.RepositoryModelLoad, message) == ("INVALID_ARGUMENT", text)


def test_dependents_are_asked_for_with_a_boolean(core: Any, stub: Any, ask: Any) -> None:
    message = service_pb2.RepositoryModelUnloadRequest(model_name="ident")
    message.parameters["unload_dependents"].string_param = "x"
    text = "invalid value type for 'unload_dependents' parameter, expected bool_param."
    assert ask(stub.RepositoryModelUnload, message) == ("INVALID_ARGUMENT", text)
    message.parameters["unload_dependents"].bool_param = True
    message.parameters["other"].string_param = "is passed over"
    assert ask(stub.RepositoryModelUnload, message) == ("OK", {})
    assert core.calls == [("unload", "ident", True)]


def test_one_version_is_loaded_and_unloaded_by_a_parameter(core: Any, stub: Any, ask: Any) -> None:
    load = service_pb2.RepositoryModelLoadRequest(model_name="ident")
    load.parameters["version"].int64_param = 3
    assert ask(stub.RepositoryModelLoad, load) == ("OK", {})
    unload = service_pb2.RepositoryModelUnloadRequest(model_name="ident")
    unload.parameters["version"].string_param = "3"
    unload.parameters["unload_dependents"].bool_param = True
    assert ask(stub.RepositoryModelUnload, unload) == ("OK", {})
    assert core.calls == [("load", "ident", None, None, 3), ("unload", "ident", False, 3)]
    for wrong in ({"bool_param": True}, {"string_param": ""}, {"string_param": "x"}, {"int64_param": -2}):
        load.parameters["version"].CopyFrom(service_pb2.ModelRepositoryParameter(**wrong))
        assert ask(stub.RepositoryModelLoad, load)[0] == "INVALID_ARGUMENT"
    assert len(core.calls) == 2


# The extensions of logging and tracing over gRPC.


@pytest.mark.slow
def test_log_settings_answer_as_triton_does(stub: Any, ask: Any, log: ServerLog, recorded: dict[str, Any]) -> None:
    for case in recorded["grpc log"]:
        message = json_format.ParseDict(case["request"], theirs.LogSettingsRequest())
        assert ask(stub.LogSettings, message) == (case["code"], case["response"]), case


def test_tritons_client_reads_and_changes_the_settings_of_the_log(client: Any, log: ServerLog) -> None:
    changed = client.update_log_settings({"log_verbose_level": 1, "log_warning": False}, as_json=True)
    assert changed == client.get_log_settings(as_json=True)
    assert changed["settings"]["log_verbose_level"] == {"uint32_param": 1}
    assert not log.enabled(LogLevel.WARN)
    with pytest.raises(InferenceServerException, match="expect boolean for 'log_info'"):
        client.update_log_settings({"log_info": None})


@pytest.mark.parametrize(("kind", "file"), [("grpc trace without file", ""), ("grpc trace", "traces.json")])
def test_trace_settings_answer_as_triton_does(
    core: Any, stub: Any, ask: Any, recorded: dict[str, Any], kind: str, file: str
) -> None:
    core.tracer = Tracer(TraceSettings(file=file))
    for case in recorded[kind]:
        message = json_format.ParseDict(case["request"], theirs.TraceSettingRequest())
        assert ask(stub.TraceSetting, message) == (case["code"], case["response"]), case


def test_tritons_client_reads_and_changes_the_settings_of_traces(core: Any, tmp_path: Path, client: Any) -> None:
    core.tracer = Tracer(TraceSettings(file=str(tmp_path / "traces")))
    changes = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_count": "7"}
    changed = client.update_trace_settings(settings=changes, as_json=True)
    assert changed == client.get_trace_settings(as_json=True) == client.get_trace_settings("ident", as_json=True)
    assert changed["settings"]["trace_count"] == {"value": ["7"]}
    assert core.tracer.settings().level == {"TIMESTAMPS", "TENSORS"}
    client.update_trace_settings(settings={"trace_level": None, "trace_count": None})
    assert core.tracer.settings() == TraceSettings(file=str(tmp_path / "traces"))
    with pytest.raises(InferenceServerException, match="Request for unknown model : nosuch"):
        client.get_trace_settings("nosuch")
