"""Every name of Triton's package is here, with its defaults, in its order."""

import dataclasses
import inspect
from typing import Any

import pytest

import repoagent.server as tritonserver
from repoagent import errors

EXPORTED = [
    "DLDeviceType",
    "MemoryBuffer",
    "MemoryType",
    "Model",
    "ModelBatchFlag",
    "ModelTxnPropertyFlag",
    "InferenceRequest",
    "InferenceResponse",
    "InstanceGroupKind",
    "LogFormat",
    "Metric",
    "MetricFamily",
    "MetricFormat",
    "MetricKind",
    "ModelControlMode",
    "Options",
    "RateLimiterResource",
    "RateLimitMode",
    "Server",
    "DataType",
    "Tensor",
    "AlreadyExistsError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
    "__version__",
    "ModelLoadDeviceLimit",
    "LogMessage",
    "LogLevel",
]

OPTIONS: dict[str, Any] = {
    "model_repository": [],
    "server_id": "triton",
    "model_control_mode": tritonserver.ModelControlMode.NONE,
    "startup_models": [],
    "strict_model_config": False,
    "rate_limiter_mode": tritonserver.RateLimitMode.OFF,
    "rate_limiter_resources": [],
    "pinned_memory_pool_size": 2**28,
    "cuda_memory_pool_sizes": {},
    "cache_config": {},
    "cache_directory": "/opt/tritonserver/caches",
    "min_supported_compute_capability": 6.0,
    "exit_on_error": True,
    "strict_readiness": True,
    "exit_timeout": 30,
    "buffer_manager_thread_count": 0,
    "model_load_thread_count": 4,
    "model_load_retry_count": 0,
    "model_namespacing": False,
    "enable_peer_access": True,
    "log_file": None,
    "log_info": False,
    "log_warn": False,
    "log_error": False,
    "log_format": tritonserver.LogFormat.DEFAULT,
    "log_verbose": 0,
    "metrics": True,
    "gpu_metrics": True,
    "cpu_metrics": True,
    "metrics_interval": 2000,
    "backend_directory": "/opt/tritonserver/backends",
    "repo_agent_directory": "/opt/tritonserver/repoagents",
    "model_load_device_limits": [],
    "backend_configuration": {},
    "host_policies": {},
    "metrics_configuration": {},
}

REQUEST: dict[str, Any] = {
    "request_id": None,
    "flags": 0,
    "correlation_id": None,
    "priority": 0,
    "timeout": 0,
    "inputs": {},
    "parameters": {},
    "output_memory_type": None,
    "response_queue": None,
}

RESPONSE: dict[str, Any] = {
    "request_id": None,
    "parameters": {},
    "outputs": {},
    "error": None,
    "classification_label": None,
    "final": False,
}

ENUMS = {
    "DataType": "INVALID 0, BOOL 1, UINT8 2, UINT16 3, UINT32 4, UINT64 5, INT8 6, INT16 7, INT32 8, INT64 9, FP16 10, "
    "FP32 11, FP64 12, BYTES 13, BF16 14",
    "MemoryType": "CPU 0, CPU_PINNED 1, GPU 2",
    "InstanceGroupKind": "AUTO 0, CPU 1, GPU 2, MODEL 3",
    "LogLevel": "INFO 0, WARN 1, ERROR 2, VERBOSE 3",
    "LogFormat": "DEFAULT 0, ISO8601 1",
    "MetricFormat": "PROMETHEUS 0",
    "RequestFlag": "SEQUENCE_START 1, SEQUENCE_END 2",
    "ModelControlMode": "NONE 0, POLL 1, EXPLICIT 2",
    "RateLimitMode": "OFF 0, EXEC_COUNT 1",
    "ModelBatchFlag": "UNKNOWN 1, FIRST_DIM 2",
    "ModelTxnPropertyFlag": "ONE_TO_ONE 1, DECOUPLED 2",
    "MetricKind": "COUNTER 0, GAUGE 1",
}


def _defaults(kind: type, count: int) -> dict[str, Any]:
    values = {}
    for item in dataclasses.fields(kind)[:count]:
        factory = item.default_factory
        values[item.name] = factory() if factory is not dataclasses.MISSING else item.default
    return values


@pytest.mark.parametrize("name", EXPORTED)
def test_the_package_has_every_name(name: str) -> None:
    assert name in tritonserver.__all__
    assert hasattr(tritonserver, name)


def test_everything_in_the_list_of_names_exists() -> None:
    assert not [name for name in tritonserver.__all__ if not hasattr(tritonserver, name)]


def test_options_have_the_fields_the_order_and_the_defaults() -> None:
    found = _defaults(tritonserver.Options, len(OPTIONS))
    assert list(found.items()) == list(OPTIONS.items())
    own = dataclasses.fields(tritonserver.Options)[len(OPTIONS) :]
    assert own
    assert all(item.kw_only for item in own)


def test_options_can_be_given_by_position() -> None:
    options = tritonserver.Options("models", "me", tritonserver.ModelControlMode.EXPLICIT, ["a"])
    assert (options.server_id, options.startup_models) == ("me", ["a"])


def test_requests_and_responses_have_the_fields_the_order_and_the_defaults() -> None:
    request = dataclasses.fields(tritonserver.InferenceRequest)
    assert request[0].name == "model"
    found = _defaults(tritonserver.InferenceRequest, len(request))
    del found["model"]
    assert list(found.items()) == list(REQUEST.items())
    response = _defaults(tritonserver.InferenceResponse, len(RESPONSE) + 1)
    assert next(iter(response)) == "model"
    del response["model"]
    assert list(response.items()) == list(RESPONSE.items())


#: Triton's package has no such argument.
_OURS: dict[str, dict[str, Any]] = {"load": {"version": None}, "unload": {"version": None}}


@pytest.mark.parametrize(
    ("function", "defaults"),
    [
        (tritonserver.Server.start, {"wait_until_ready": False, "polling_interval": 0.1, "timeout": None}),
        (tritonserver.Server.model, {"version": -1}),
        (tritonserver.Server.models, {"exclude_not_ready": False}),
        (tritonserver.Server.load, {"parameters": None}),
        (
            tritonserver.Server.unload,
            {"unload_dependents": False, "wait_until_unloaded": False, "polling_interval": 0.1, "timeout": None},
        ),
        (tritonserver.Server.metrics, {"metric_format": tritonserver.MetricFormat.PROMETHEUS}),
        (tritonserver.Server.register_model_repository, {"name_mapping": None}),
        (tritonserver.Model.__init__, {"version": -1, "state": None, "reason": None}),
        (tritonserver.Model.infer, {"inference_request": None, "raise_on_error": True}),
        (tritonserver.Model.async_infer, {"inference_request": None, "raise_on_error": True}),
        (tritonserver.Model.config, {"config_version": 1}),
        (tritonserver.Metric.__init__, {"labels": None}),
        (tritonserver.Tensor.__dlpack__, {"stream": None}),
    ],
)
def test_methods_have_the_defaults(function: Any, defaults: dict[str, Any]) -> None:
    parameters = inspect.signature(function).parameters.values()
    found = {it.name: it.default for it in parameters if it.default is not inspect.Parameter.empty}
    ours = _OURS.get(function.__name__, {})
    assert found == {**defaults, **ours}
    assert all(it.kind is inspect.Parameter.KEYWORD_ONLY for it in parameters if it.name in ours)


def test_errors_are_those_of_the_project_under_one_base() -> None:
    assert tritonserver.TritonError is errors.RepoAgentError
    for name in EXPORTED:
        if name.endswith("Error"):
            kind = getattr(tritonserver, name)
            assert issubclass(kind, tritonserver.TritonError)
    assert issubclass(errors.CancelledError, tritonserver.UnknownError)


@pytest.mark.parametrize(("name", "members"), ENUMS.items())
def test_enumerations_have_the_members_and_the_numbers(name: str, members: str) -> None:
    kind = getattr(tritonserver, name)
    expected = {pair.split()[0]: int(pair.split()[1]) for pair in members.split(", ")}
    assert {member: int(value) for member, value in kind.__members__.items()} == expected


def test_members_are_no_numbers_and_print_as_in_triton() -> None:
    member = tritonserver.DataType.INT8
    others: list[object] = [6, tritonserver.ModelTxnPropertyFlag.ONE_TO_ONE, tritonserver.MemoryType.GPU]
    assert member not in others
    assert repr(member) == "<TRITONSERVER_DataType.INT8: 6>"
    assert str(member) == "TRITONSERVER_DataType.INT8"
    assert (member.name, member.value, tritonserver.DataType(6)) == ("INT8", 6, member)
