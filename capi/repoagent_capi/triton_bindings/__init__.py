"""Triton's C interface as Python classes: every name of ``tritonserver._c.triton_bindings``.

Programs should use :mod:`repoagent.server`. This is for those that were written against the binding module, and for the
C layer, whose servers these are.
"""

from enum import Enum as _Enum

from repoagent import errors as _errors
from repoagent.server import custom_metrics as _upper_metrics
from repoagent.server import enums as _enums
from repoagent.server import logs as _logs
from repoagent.serving.requests import tensor as _tensor
from repoagent_capi.triton_bindings import options as _options
from repoagent_capi.triton_bindings import request as _request
from repoagent_capi.triton_bindings import response as _response
from repoagent_capi.triton_bindings import server as _server
from repoagent_capi.triton_bindings import trace as _trace
from repoagent_capi.triton_bindings import values as _values

AlreadyExistsError = _errors.AlreadyExistsError
InternalError = _errors.InternalError
InvalidArgumentError = _errors.InvalidArgumentError
NotFoundError = _errors.NotFoundError
TritonError = _errors.RepoAgentError
UnavailableError = _errors.UnavailableError
UnknownError = _errors.UnknownError
UnsupportedError = _errors.UnsupportedError

TRITONSERVER_DataType = _tensor.DataType
TRITONSERVER_InferenceTraceActivity = _trace.InferenceTraceActivity
TRITONSERVER_InferenceTraceLevel = _trace.InferenceTraceLevel
TRITONSERVER_InstanceGroupKind = _enums.InstanceGroupKind
TRITONSERVER_LogFormat = _enums.LogFormat
TRITONSERVER_LogLevel = _enums.LogLevel
TRITONSERVER_MemoryType = _enums.MemoryType
TRITONSERVER_MetricFormat = _enums.MetricFormat
TRITONSERVER_MetricKind = _enums.MetricKind
TRITONSERVER_ModelBatchFlag = _enums.ModelBatchFlag
TRITONSERVER_ModelControlMode = _enums.ModelControlMode
TRITONSERVER_ModelIndexFlag = _server.ModelIndexFlag
TRITONSERVER_ModelTxnPropertyFlag = _enums.ModelTxnPropertyFlag
TRITONSERVER_ParameterType = _values.ParameterType
TRITONSERVER_RateLimitMode = _enums.RateLimitMode
TRITONSERVER_RequestFlag = _enums.RequestFlag
TRITONSERVER_RequestReleaseFlag = _request.RequestReleaseFlag
TRITONSERVER_ResponseCompleteFlag = _response.ResponseCompleteFlag

TRITONSERVER_BufferAttributes = _values.BufferAttributes
TRITONSERVER_InferenceRequest = _request.InferenceRequest
TRITONSERVER_InferenceResponse = _response.InferenceResponse
TRITONSERVER_InferenceTrace = _trace.InferenceTrace
TRITONSERVER_LogMessage = _logs.log_message
TRITONSERVER_Message = _values.Message
TRITONSERVER_Metric = _values.Metric
TRITONSERVER_MetricFamily = _upper_metrics.MetricFamily
TRITONSERVER_Metrics = _values.Metrics
TRITONSERVER_Parameter = _values.Parameter
TRITONSERVER_ResponseAllocator = _values.ResponseAllocator
TRITONSERVER_Server = _server.Server
TRITONSERVER_ServerOptions = _options.ServerOptions

# Members that Triton's module also has under their bare names.
DISABLED = TRITONSERVER_InferenceTraceLevel.DISABLED
MIN = TRITONSERVER_InferenceTraceLevel.MIN
MAX = TRITONSERVER_InferenceTraceLevel.MAX
TIMESTAMPS = TRITONSERVER_InferenceTraceLevel.TIMESTAMPS
TENSORS = TRITONSERVER_InferenceTraceLevel.TENSORS
REQUEST_START = TRITONSERVER_InferenceTraceActivity.REQUEST_START
QUEUE_START = TRITONSERVER_InferenceTraceActivity.QUEUE_START
COMPUTE_START = TRITONSERVER_InferenceTraceActivity.COMPUTE_START
COMPUTE_INPUT_END = TRITONSERVER_InferenceTraceActivity.COMPUTE_INPUT_END
COMPUTE_OUTPUT_START = TRITONSERVER_InferenceTraceActivity.COMPUTE_OUTPUT_START
COMPUTE_END = TRITONSERVER_InferenceTraceActivity.COMPUTE_END
REQUEST_END = TRITONSERVER_InferenceTraceActivity.REQUEST_END
TENSOR_QUEUE_INPUT = TRITONSERVER_InferenceTraceActivity.TENSOR_QUEUE_INPUT
TENSOR_BACKEND_INPUT = TRITONSERVER_InferenceTraceActivity.TENSOR_BACKEND_INPUT
TENSOR_BACKEND_OUTPUT = TRITONSERVER_InferenceTraceActivity.TENSOR_BACKEND_OUTPUT
SEQUENCE_START = TRITONSERVER_RequestFlag.SEQUENCE_START
SEQUENCE_END = TRITONSERVER_RequestFlag.SEQUENCE_END
ALL = TRITONSERVER_RequestReleaseFlag.ALL
FINAL = TRITONSERVER_ResponseCompleteFlag.FINAL
UNKNOWN = TRITONSERVER_ModelBatchFlag.UNKNOWN
FIRST_DIM = TRITONSERVER_ModelBatchFlag.FIRST_DIM
READY = TRITONSERVER_ModelIndexFlag.READY
ONE_TO_ONE = TRITONSERVER_ModelTxnPropertyFlag.ONE_TO_ONE
DECOUPLED = TRITONSERVER_ModelTxnPropertyFlag.DECOUPLED


def api_version() -> tuple[int, int]:
    """The version of Triton's C interface whose names these are."""
    return 1, 43


def _data_type_text(data_type: _tensor.DataType) -> str:
    """``"FP32"``; ``"<invalid>"`` for INVALID."""
    return "<invalid>" if data_type is _tensor.DataType.INVALID else data_type.name


def _text_to_data_type(text: str) -> _tensor.DataType:
    """The data type of that name; INVALID if there is none."""
    return _tensor.DataType.__members__.get(text, _tensor.DataType.INVALID)


def _byte_size(data_type: _tensor.DataType) -> int:
    """The size of one element; 0 where it varies."""
    varies = data_type in (_tensor.DataType.BYTES, _tensor.DataType.INVALID)
    return 0 if varies else _tensor.NUMPY_TYPES[data_type].itemsize


def _name(member: _Enum) -> str:
    """``"CPU"``, ``"TIMESTAMPS"``, ``"REQUEST_START"``."""
    return member.name


def _log_is_enabled(level: _enums.LogLevel) -> bool:
    """Whether messages of ``level`` are written."""
    return _logs.server_log().enabled(level)


TRITONSERVER_DataTypeByteSize = _byte_size
TRITONSERVER_DataTypeString = _data_type_text
TRITONSERVER_InferenceTraceActivityString = _name
TRITONSERVER_InferenceTraceLevelString = _name
TRITONSERVER_InstanceGroupKindString = _name
TRITONSERVER_LogIsEnabled = _log_is_enabled
TRITONSERVER_MemoryTypeString = _name
TRITONSERVER_ParameterTypeString = _name
TRITONSERVER_StringToDataType = _text_to_data_type
