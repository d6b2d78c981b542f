"""The serving core as a library, with the names and meanings of Triton's ``tritonserver`` package.

    import repoagent.server as tritonserver

is all that a program written for that package has to change. What differs is listed in
``docs/reference/server-api.md``.
"""

from repoagent import __version__
from repoagent.errors import (
    AlreadyExistsError,
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)
from repoagent.errors import RepoAgentError as TritonError
from repoagent.loader.load_context import Progress
from repoagent.server.custom_metrics import Metric, MetricFamily
from repoagent.server.datatypes import DLDeviceType
from repoagent.server.enums import (
    InstanceGroupKind,
    LogFormat,
    LogLevel,
    MemoryType,
    MetricFormat,
    MetricKind,
    ModelBatchFlag,
    ModelControlMode,
    ModelTxnPropertyFlag,
    RateLimitMode,
    RequestFlag,
)
from repoagent.server.iterators import AsyncResponseIterator, ResponseIterator
from repoagent.server.logs import LogMessage
from repoagent.server.memory import MemoryBuffer
from repoagent.server.model import Model, ModelDictionary
from repoagent.server.request import InferenceRequest, InferenceResponse
from repoagent.server.server import Server
from repoagent.server.server_options import ModelLoadDeviceLimit, Options
from repoagent.server.tensor import Tensor
from repoagent.serving.requests.tensor import DataType
from repoagent.serving.scheduling.rate_limiter import RateLimiterResource

__all__ = [
    "AlreadyExistsError",
    "AsyncResponseIterator",
    "CancelledError",
    "DLDeviceType",
    "DataType",
    "InferenceRequest",
    "InferenceResponse",
    "InstanceGroupKind",
    "InternalError",
    "InvalidArgumentError",
    "LogFormat",
    "LogLevel",
    "LogMessage",
    "MemoryBuffer",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricFormat",
    "MetricKind",
    "Model",
    "ModelBatchFlag",
    "ModelControlMode",
    "ModelDictionary",
    "ModelLoadDeviceLimit",
    "ModelTxnPropertyFlag",
    "NotFoundError",
    "Options",
    "Progress",
    "RateLimitMode",
    "RateLimiterResource",
    "RequestFlag",
    "ResponseIterator",
    "Server",
    "Tensor",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
    "__version__",
]
