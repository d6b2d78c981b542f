"""The functions of the binding module."""

from repoagent.server.enums import (
    DataType,
    InferenceTraceActivity,
    InferenceTraceLevel,
    InstanceGroupKind,
    LogLevel,
    MemoryType,
    ParameterType,
)
from repoagent.server.logs import server_log
from repoagent.serving.requests.tensor import NUMPY_TYPES

__all__ = [
    "activity_text",
    "api_version",
    "byte_size",
    "data_type_text",
    "instance_group_kind_text",
    "log_is_enabled",
    "memory_type_text",
    "parameter_type_text",
    "text_to_data_type",
    "trace_level_text",
]


def api_version() -> tuple[int, int]:
    """The version of Triton's C interface whose names these are."""
    return 1, 43


def data_type_text(data_type: DataType) -> str:
    """``"FP32"``; ``"<invalid>"`` for INVALID."""
    return "<invalid>" if data_type is DataType.INVALID else data_type.name


def text_to_data_type(text: str) -> DataType:
    """The data type of that name; INVALID if there is none."""
    return DataType.__members__.get(text, DataType.INVALID)


def byte_size(data_type: DataType) -> int:
    """The size of one element; 0 where it varies."""
    if data_type in (DataType.BYTES, DataType.INVALID):
        return 0
    return NUMPY_TYPES[data_type].itemsize


def memory_type_text(memory_type: MemoryType) -> str:
    """``"CPU"``."""
    return memory_type.name


def parameter_type_text(kind: ParameterType) -> str:
    """``"STRING"``."""
    return kind.name


def instance_group_kind_text(kind: InstanceGroupKind) -> str:
    """``"CPU"``."""
    return kind.name


def trace_level_text(level: InferenceTraceLevel) -> str:
    """``"TIMESTAMPS"``."""
    return level.name


def activity_text(activity: InferenceTraceActivity) -> str:
    """``"REQUEST_START"``."""
    return activity.name


def log_is_enabled(level: LogLevel) -> bool:
    """Whether messages of ``level`` are written."""
    return server_log().enabled(level)
