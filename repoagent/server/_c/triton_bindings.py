"""Every name of Triton's binding module, from the parts of this package."""

from repoagent import errors as _errors
from repoagent.server import enums as _enums
from repoagent.server import logs as _logs
from repoagent.server import metrics as _upper_metrics
from repoagent.server._c import buffers as _buffers
from repoagent.server._c import functions as _functions
from repoagent.server._c import messages as _messages
from repoagent.server._c import metrics as _metrics
from repoagent.server._c import options as _options
from repoagent.server._c import request as _request
from repoagent.server._c import response as _response
from repoagent.server._c import server as _server
from repoagent.server._c import trace as _trace

AlreadyExistsError = _errors.AlreadyExistsError
InternalError = _errors.InternalError
InvalidArgumentError = _errors.InvalidArgumentError
NotFoundError = _errors.NotFoundError
TritonError = _errors.RepoAgentError
UnavailableError = _errors.UnavailableError
UnknownError = _errors.UnknownError
UnsupportedError = _errors.UnsupportedError

TRITONSERVER_DataType = _enums.DataType
TRITONSERVER_InferenceTraceActivity = _enums.InferenceTraceActivity
TRITONSERVER_InferenceTraceLevel = _enums.InferenceTraceLevel
TRITONSERVER_InstanceGroupKind = _enums.InstanceGroupKind
TRITONSERVER_LogFormat = _enums.LogFormat
TRITONSERVER_LogLevel = _enums.LogLevel
TRITONSERVER_MemoryType = _enums.MemoryType
TRITONSERVER_MetricFormat = _enums.MetricFormat
TRITONSERVER_MetricKind = _enums.MetricKind
TRITONSERVER_ModelBatchFlag = _enums.ModelBatchFlag
TRITONSERVER_ModelControlMode = _enums.ModelControlMode
TRITONSERVER_ModelIndexFlag = _enums.ModelIndexFlag
TRITONSERVER_ModelTxnPropertyFlag = _enums.ModelTxnPropertyFlag
TRITONSERVER_ParameterType = _enums.ParameterType
TRITONSERVER_RateLimitMode = _enums.RateLimitMode
TRITONSERVER_RequestFlag = _enums.RequestFlag
TRITONSERVER_RequestReleaseFlag = _enums.RequestReleaseFlag
TRITONSERVER_ResponseCompleteFlag = _enums.ResponseCompleteFlag

TRITONSERVER_BufferAttributes = _buffers.BufferAttributes
TRITONSERVER_DataTypeByteSize = _functions.byte_size
TRITONSERVER_DataTypeString = _functions.data_type_text
TRITONSERVER_InferenceRequest = _request.InferenceRequest
TRITONSERVER_InferenceResponse = _response.InferenceResponse
TRITONSERVER_InferenceTrace = _trace.InferenceTrace
TRITONSERVER_InferenceTraceActivityString = _functions.activity_text
TRITONSERVER_InferenceTraceLevelString = _functions.trace_level_text
TRITONSERVER_InstanceGroupKindString = _functions.instance_group_kind_text
TRITONSERVER_LogIsEnabled = _functions.log_is_enabled
TRITONSERVER_LogMessage = _logs.log_message
TRITONSERVER_MemoryTypeString = _functions.memory_type_text
TRITONSERVER_Message = _messages.Message
TRITONSERVER_Metric = _metrics.Metric
TRITONSERVER_MetricFamily = _upper_metrics.MetricFamily
TRITONSERVER_Metrics = _messages.Metrics
TRITONSERVER_Parameter = _messages.Parameter
TRITONSERVER_ParameterTypeString = _functions.parameter_type_text
TRITONSERVER_ResponseAllocator = _buffers.ResponseAllocator
TRITONSERVER_Server = _server.Server
TRITONSERVER_ServerOptions = _options.ServerOptions
TRITONSERVER_StringToDataType = _functions.text_to_data_type
api_version = _functions.api_version

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
