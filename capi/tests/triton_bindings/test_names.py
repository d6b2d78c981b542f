"""Every name of Triton's binding module is here."""

import inspect
from typing import Any

import pytest

import repoagent.server as tritonserver
from repoagent.server import enums
from repoagent.serving.requests.tensor import ServerEnum

tb: Any = pytest.importorskip("repoagent_capi.triton_bindings", reason="repoagent-capi is not installed")

BARE = [
    "InferenceTraceLevel",
    "InferenceTraceActivity",
    "RequestFlag",
    "RequestReleaseFlag",
    "ResponseCompleteFlag",
    "ModelBatchFlag",
    "ModelIndexFlag",
    "ModelTxnPropertyFlag",
]

FUNCTIONS = [
    "DataTypeString",
    "StringToDataType",
    "DataTypeByteSize",
    "MemoryTypeString",
    "ParameterTypeString",
    "InstanceGroupKindString",
    "InferenceTraceLevelString",
    "InferenceTraceActivityString",
    "LogIsEnabled",
    "LogMessage",
]

CLASSES = {
    "Parameter": "",
    "BufferAttributes": "memory_type_id memory_type cuda_ipc_handle byte_size",
    "ResponseAllocator": "set_buffer_attributes_function set_query_function",
    "Message": "serialize_to_json",
    "Metrics": "formatted",
    "InferenceTrace": "id parent_id model_name model_version request_id",
    "InferenceRequest": "id flags correlation_id correlation_id_string priority priority_uint64 timeout_microseconds "
    "add_input add_raw_input remove_input remove_all_inputs append_input_data append_input_data_with_host_policy "
    "append_input_data_with_buffer_attributes remove_all_input_data add_requested_output remove_requested_output "
    "remove_all_requested_outputs set_string_parameter set_int_parameter set_bool_parameter set_double_parameter "
    "cancel get_next_response",
    "InferenceResponse": "throw_if_response_error model id parameter_count output_count parameter output "
    "output_classification_label",
    "ServerOptions": "set_server_id set_model_repository_path set_model_control_mode set_startup_model "
    "set_strict_model_config set_rate_limiter_mode add_rate_limiter_resource set_pinned_memory_pool_byte_size "
    "set_cuda_memory_pool_byte_size set_response_cache_byte_size set_cache_config set_cache_directory "
    "set_min_supported_compute_capability set_exit_on_error set_strict_readiness set_exit_timeout "
    "set_buffer_manager_thread_count set_model_load_thread_count set_model_load_retry_count set_model_namespacing "
    "set_enable_peer_access set_log_file set_log_callback set_log_info set_log_warn set_log_error set_log_format "
    "set_log_verbose "
    "set_metrics set_gpu_metrics set_cpu_metrics set_metrics_interval set_backend_directory set_repo_agent_directory "
    "set_model_load_device_limit set_backend_config set_host_policy set_metrics_config",
    "Server": "_ptr stop register_model_repository unregister_model_repository poll_model_repository is_live is_ready "
    "model_is_ready model_batch_properties model_transaction_properties metadata model_metadata model_statistics "
    "model_config model_index load_model load_model_with_parameters unload_model unload_model_and_dependents metrics "
    "infer_async",
    "MetricFamily": "",
    "Metric": "value kind increment set_value",
}


ENUMS = {
    "ParameterType": "STRING 0, INT 1, BOOL 2, DOUBLE 3, BYTES 4",
    "InferenceTraceLevel": "DISABLED 0, MIN 1, MAX 2, TIMESTAMPS 4, TENSORS 8",
    "InferenceTraceActivity": "REQUEST_START 0, QUEUE_START 1, COMPUTE_START 2, COMPUTE_INPUT_END 3, "
    "COMPUTE_OUTPUT_START 4, COMPUTE_END 5, REQUEST_END 6, TENSOR_QUEUE_INPUT 7, TENSOR_BACKEND_INPUT 8, "
    "TENSOR_BACKEND_OUTPUT 9",
    "RequestReleaseFlag": "ALL 1",
    "ResponseCompleteFlag": "FINAL 1",
    "ModelIndexFlag": "READY 1",
}


def test_errors_and_enumerations_are_those_of_the_server_api() -> None:
    found = [name for name in tritonserver.__all__ if name.endswith("Error") and name != "CancelledError"]
    assert len(found) == 8
    assert all(getattr(tb, name) is getattr(tritonserver, name) for name in found)
    kinds = {kind for kind in vars(enums).values() if isinstance(kind, type) and issubclass(kind, ServerEnum)}
    assert all(getattr(tb, f"TRITONSERVER_{kind.__name__}") is kind for kind in kinds - {ServerEnum})
    assert tb.TRITONSERVER_DataType is tritonserver.DataType


@pytest.mark.parametrize(("name", "members"), ENUMS.items())
def test_enumerations_that_the_server_api_lacks_have_the_members_and_the_numbers(name: str, members: str) -> None:
    expected = {pair.split()[0]: int(pair.split()[1]) for pair in members.split(", ")}
    kind = getattr(tb, f"TRITONSERVER_{name}")
    assert {member: int(value) for member, value in kind.__members__.items()} == expected


@pytest.mark.parametrize("name", BARE)
def test_the_binding_module_has_the_bare_members(name: str) -> None:
    kind = getattr(tb, f"TRITONSERVER_{name}")
    for member in kind:
        assert getattr(tb, member.name) is member


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_binding_module_has_every_function(name: str) -> None:
    assert callable(getattr(tb, f"TRITONSERVER_{name}"))


@pytest.mark.parametrize(("name", "members"), CLASSES.items())
def test_the_binding_module_has_every_class_and_its_members(name: str, members: str) -> None:
    kind = getattr(tb, f"TRITONSERVER_{name}")
    source = inspect.getsource(kind) + "".join(inspect.getsource(base) for base in kind.__mro__[1:-1])
    missing = [it for it in members.split() if not hasattr(kind, it) and f"self.{it} = " not in source]
    assert not missing


def test_the_version_of_the_c_interface_is_two_numbers() -> None:
    major, minor = tb.api_version()
    assert major == 1
    assert minor > 0
