"""The enumerations of the Server API, with the members and numbers of Triton's.

Members are not integers: ``DataType.INT8 == 6`` is false, and members of two enumerations are never equal.
``int(member)`` gives the number.
"""

from repoagent.serving.requests.tensor import DataType, ServerEnum

__all__ = [
    "DataType",
    "InferenceTraceActivity",
    "InferenceTraceLevel",
    "InstanceGroupKind",
    "LogFormat",
    "LogLevel",
    "MemoryType",
    "MetricFormat",
    "MetricKind",
    "ModelBatchFlag",
    "ModelControlMode",
    "ModelIndexFlag",
    "ModelTxnPropertyFlag",
    "ParameterType",
    "RateLimitMode",
    "RequestFlag",
    "RequestReleaseFlag",
    "ResponseCompleteFlag",
    "ServerEnum",
]


class MemoryType(ServerEnum):
    """The kind of memory of a tensor."""

    CPU = 0
    CPU_PINNED = 1
    GPU = 2


class ParameterType(ServerEnum):
    """The type of a parameter's value."""

    STRING = 0
    INT = 1
    BOOL = 2
    DOUBLE = 3
    BYTES = 4


class InstanceGroupKind(ServerEnum):
    """What a model instance runs on."""

    AUTO = 0
    CPU = 1
    GPU = 2
    MODEL = 3


class LogLevel(ServerEnum):
    """The level of a log message."""

    INFO = 0
    WARN = 1
    ERROR = 2
    VERBOSE = 3


class LogFormat(ServerEnum):
    """How the time stamp of a log line looks."""

    DEFAULT = 0
    """``MMDD hh:mm:ss.uuuuuu``"""
    ISO8601 = 1
    """``YYYY-MM-DDThh:mm:ssZ``"""


class MetricFormat(ServerEnum):
    """The text formats of metrics."""

    PROMETHEUS = 0


class MetricKind(ServerEnum):
    """What a custom metric counts."""

    COUNTER = 0
    GAUGE = 1


class InferenceTraceLevel(ServerEnum):
    """What a trace records; the numbers are bits and can be added."""

    DISABLED = 0
    MIN = 1
    MAX = 2
    TIMESTAMPS = 4
    TENSORS = 8


class InferenceTraceActivity(ServerEnum):
    """A step of a request that a trace records."""

    REQUEST_START = 0
    QUEUE_START = 1
    COMPUTE_START = 2
    COMPUTE_INPUT_END = 3
    COMPUTE_OUTPUT_START = 4
    COMPUTE_END = 5
    REQUEST_END = 6
    TENSOR_QUEUE_INPUT = 7
    TENSOR_BACKEND_INPUT = 8
    TENSOR_BACKEND_OUTPUT = 9


class RequestFlag(ServerEnum):
    """Bits of a request's ``flags``."""

    SEQUENCE_START = 1
    SEQUENCE_END = 2


class RequestReleaseFlag(ServerEnum):
    """Bits that come with the release of a request."""

    ALL = 1


class ResponseCompleteFlag(ServerEnum):
    """Bits that come with a response."""

    FINAL = 1


class ModelControlMode(ServerEnum):
    """Who decides which models are loaded."""

    NONE = 0
    POLL = 1
    EXPLICIT = 2


class RateLimitMode(ServerEnum):
    """Whether executions are limited by resources."""

    OFF = 0
    EXEC_COUNT = 1


class ModelBatchFlag(ServerEnum):
    """How a model batches."""

    UNKNOWN = 1
    FIRST_DIM = 2


class ModelIndexFlag(ServerEnum):
    """Which models an index lists."""

    READY = 1


class ModelTxnPropertyFlag(ServerEnum):
    """How many responses a request to a model has."""

    ONE_TO_ONE = 1
    DECOUPLED = 2
