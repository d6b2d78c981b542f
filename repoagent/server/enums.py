"""The enumerations of the Server API beside ``DataType``, with the members and numbers of Triton's.

Members are not integers: ``DataType.INT8 == 6`` is false, and members of two enumerations are never equal.
``int(member)`` gives the number.
"""

from repoagent.serving.requests.tensor import ServerEnum


class MemoryType(ServerEnum):
    """The kind of memory of a tensor."""

    CPU = 0
    CPU_PINNED = 1
    GPU = 2


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


class RequestFlag(ServerEnum):
    """Bits of a request's ``flags``."""

    SEQUENCE_START = 1
    SEQUENCE_END = 2


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


class ModelTxnPropertyFlag(ServerEnum):
    """How many responses a request to a model has."""

    ONE_TO_ONE = 1
    DECOUPLED = 2
