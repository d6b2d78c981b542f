"""What ``import triton_python_backend_utils as pb_utils`` gives a ``model.py``.

Every model gets a module of its own (:func:`bound_utils`) that knows its model, so that it works on any thread. The
names and their meanings are those of Triton's Python backend.
"""

import enum
import logging
from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar, Final

from repoagent.errors import ErrorCode
from repoagent.serving.backends.python.model.calls import ResponseIterator
from repoagent.serving.backends.python.model.context import ModelContext, current
from repoagent.serving.backends.python.model.errors import TritonError, TritonModelException, raising_tritons
from repoagent.serving.backends.python.model.metrics import Metric, MetricFamily
from repoagent.serving.backends.python.model.model_config import ModelConfig
from repoagent.serving.backends.python.model.request import InferenceRequest
from repoagent.serving.backends.python.model.response import InferenceResponse
from repoagent.serving.backends.python.model.response_sender import InferenceResponseSender
from repoagent.serving.backends.python.model.tensors import (
    TRITON_STRING_TO_NUMPY,
    Tensor,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)
from repoagent.serving.measuring.custom_metrics import MetricKind

__all__ = ["UTILS_NAME", "LogLevel", "Logger", "bound_utils"]


logger = logging.getLogger("repoagent.models")


class LogLevel(enum.Enum):
    """Levels by Triton's names; VERBOSE is Python's DEBUG."""

    INFO = logging.INFO
    WARNING = logging.WARNING
    ERROR = logging.ERROR
    VERBOSE = logging.DEBUG


class Logger:
    """Static methods that write to the server's log."""

    INFO: ClassVar[LogLevel] = LogLevel.INFO
    WARNING: ClassVar[LogLevel] = LogLevel.WARNING
    ERROR: ClassVar[LogLevel] = LogLevel.ERROR
    VERBOSE: ClassVar[LogLevel] = LogLevel.VERBOSE

    @staticmethod
    def log(message: Any, level: LogLevel = LogLevel.INFO) -> None:
        if not isinstance(level, LogLevel):
            raise TypeError(f"level must be a pb_utils.Logger level such as Logger.INFO, not {type(level).__name__}")
        logger.log(level.value, "%s", message, stacklevel=2)

    @staticmethod
    def log_info(message: Any) -> None:
        logger.info("%s", message, stacklevel=2)

    @staticmethod
    def log_warn(message: Any) -> None:
        logger.warning("%s", message, stacklevel=2)

    @staticmethod
    def log_error(message: Any) -> None:
        logger.error("%s", message, stacklevel=2)

    @staticmethod
    def log_verbose(message: Any) -> None:
        logger.debug("%s", message, stacklevel=2)


UTILS_NAME: Final = "triton_python_backend_utils"

_CONSTANTS: Final = {
    "TRITONSERVER_MEMORY_CPU": 0,
    "TRITONSERVER_MEMORY_CPU_PINNED": 1,
    "TRITONSERVER_MEMORY_GPU": 2,
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START": 1,
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END": 2,
    "TRITONSERVER_REQUEST_RELEASE_ALL": 1,
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": 2,
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL": 1,
}


class PreferredMemory:
    """Where the caller of another model would like its outputs; host memory is all there is here."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The input called ``name``, or None."""
    for tensor in inference_request.inputs():
        if tensor.name() == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The output called ``name``, or None."""
    for tensor in inference_response.output_tensors():
        if tensor.name() == name:
            return tensor
    return None


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The configuration of the input called ``name``, or None."""
    return next((entry for entry in model_config.get("input", ()) if entry["name"] == name), None)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The configuration of the output called ``name``, or None."""
    return next((entry for entry in model_config.get("output", ()) if entry["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Whether the model may answer a request with any number of responses."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


_SHARED: Final = (
    InferenceResponse,
    InferenceResponseSender,
    Logger,
    LogLevel,
    Metric,
    MetricFamily,
    MetricKind,
    ModelConfig,
    PreferredMemory,
    ResponseIterator,
    Tensor,
    TritonError,
    TritonModelException,
    deserialize_bytes_tensor,
    get_input_config_by_name,
    get_input_tensor_by_name,
    get_output_config_by_name,
    get_output_tensor_by_name,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
    using_decoupled_model_transaction_policy,
)


def bound_utils(context: ModelContext | None) -> ModuleType:
    """A module ``triton_python_backend_utils`` for the model of ``context``; None: for the one that calls."""
    module = ModuleType(UTILS_NAME, __doc__)
    names: dict[str, Any] = {entry.__name__: entry for entry in _SHARED}
    names |= _CONSTANTS
    names["TritonErrorCode"] = ErrorCode
    names["TRITON_STRING_TO_NUMPY"] = dict(TRITON_STRING_TO_NUMPY)
    names["InferenceRequest"] = type("InferenceRequest", (InferenceRequest,), {"context": context})
    names["get_model_dir"] = lambda: str((context or current()).model_dir)
    names |= _control(context)
    vars(module).update(names)
    return module


def _control(context: ModelContext | None) -> dict[str, Any]:
    """``load_model`` and its siblings, which reach the server that the model runs in."""

    def load_model(model_name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        contents = {name.removeprefix("file:"): data for name, data in (files or {}).items()}
        (context or current()).core.load(model_name, config=config or None, files=contents or None)

    def unload_model(model_name: str, unload_dependents: bool = False) -> None:
        # As under Triton it does not wait for running requests: the model's own may be among them.
        (context or current()).core.unload(model_name, unload_dependents=unload_dependents, wait=False)

    def is_model_ready(model_name: str, model_version: str = "") -> bool:
        return (context or current()).core.model_ready(model_name, model_version)

    return {call.__name__: raising_tritons(call) for call in (load_model, unload_model, is_model_ready)}
