"""What ``import triton_python_backend_utils as pb_utils`` gives a ``model.py``.

Every model gets a module of its own (:func:`bound_utils`) that knows its model, so that it works on any thread. The
names and their meanings are those of Triton's Python backend.
"""

import enum
import logging
import weakref
from collections.abc import Mapping, Sequence
from numbers import Real
from types import ModuleType
from typing import Any, ClassVar, Final

from repoagent.errors import ErrorCode
from repoagent.nested_text import read_json
from repoagent.serving.backends.python.model.context import (
    ModelContext,
    TritonError,
    TritonModelException,
    current,
    raising_tritons,
)
from repoagent.serving.backends.python.model.request import InferenceRequest, get_input_tensor_by_name
from repoagent.serving.backends.python.model.response import (
    InferenceResponse,
    InferenceResponseSender,
    ResponseIterator,
)
from repoagent.serving.backends.python.model.tensors import (
    TRITON_STRING_TO_NUMPY,
    Tensor,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)
from repoagent.serving.measuring import custom_metrics as metrics
from repoagent.serving.measuring.custom_metrics import REGISTRY, MetricKind, MetricRegistry


class Metric:
    """One series; made with ``MetricFamily.Metric(labels={...})``, whose object the model must keep.

    Raises:
        TypeError: a value is not a number.
        TritonModelException: its kind has no such operation, or its family has been deleted.
    """

    def __init__(self, family: "MetricFamily", metric: metrics.Metric) -> None:
        self._family = weakref.ref(family)
        self._series = metric

    @property
    def _metric(self) -> metrics.Metric:
        if self._family() is None:
            raise TritonModelException(
                "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' "
                "object should be deleted AFTER its corresponding 'Metric' objects have been deleted."
            )
        return self._series

    @raising_tritons
    def increment(self, value: float) -> None:
        self._metric.increment(_number(value))

    @raising_tritons
    def set(self, value: float) -> None:
        self._metric.set(_number(value))

    @raising_tritons
    def observe(self, value: float) -> None:
        self._metric.observe(_number(value))

    @raising_tritons
    def value(self) -> float:
        return self._metric.value


class MetricFamily:
    """Series of one name; two models that describe a family in the same way share it.

    Raises:
        TypeError: an argument is of another type.
        TritonModelException: there cannot be such a family.
    """

    COUNTER: ClassVar[MetricKind] = MetricKind.COUNTER
    GAUGE: ClassVar[MetricKind] = MetricKind.GAUGE
    HISTOGRAM: ClassVar[MetricKind] = MetricKind.HISTOGRAM
    registry: ClassVar[MetricRegistry] = REGISTRY
    """Where families are kept; in a model's own process, one that stands for the server's."""

    @raising_tritons
    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        for what, text in (("name", name), ("description", description)):
            if not isinstance(text, str):
                raise TypeError(f"the {what} of a MetricFamily must be a str, not {type(text).__name__}")
        if kind not in tuple(MetricKind):
            raise TypeError(f"kind of MetricFamily '{name}' must be MetricFamily.COUNTER, GAUGE or HISTOGRAM")
        self._family = self.registry.family(name, description, MetricKind(kind))

    @raising_tritons
    def Metric(  # noqa: N802 - the name is part of the interface
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """The series of ``labels``; ``buckets`` are the upper bounds of a histogram."""
        if not isinstance(labels, Mapping | None):
            raise TypeError(f"labels of a Metric must be a dict, not {type(labels).__name__}")
        if (self._family.kind is MetricKind.HISTOGRAM) != (buckets is not None):
            raise TritonModelException("buckets are needed for a histogram, and for nothing else")
        if isinstance(buckets, str) or not isinstance(buckets, Sequence | None):
            raise TypeError(f"buckets of a Metric must be a list of numbers, not {type(buckets).__name__}")
        return Metric(self, self._family.add(labels or {}, [_number(bucket) for bucket in buckets or ()]))


def _number(value: Any) -> float:
    if not isinstance(value, Real):
        raise TypeError(f"the value of a metric must be a number, not {type(value).__name__}")
    return float(value)


logger = logging.getLogger("repoagent.models")


_SCHEDULERS: Final = ("sequence_batching", "ensemble_scheduling")


class ModelConfig:
    """A model configuration as a dictionary, with checked ways to add to it.

    Every method raises ``ValueError`` when the model contradicts its configuration file.
    """

    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = read_json(model_config)

    def as_dict(self) -> dict[str, Any]:
        """The live dictionary: what is written into it counts."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Raise the batch size; it can never be set below what the file states."""
        given = self._model_config["max_batch_size"]
        if given > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {given}, but in auto-complete-config function for model "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Ask for dynamic batching, unless the file already has it."""
        for scheduler in _SCHEDULERS:
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function "
                    f"for model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: Mapping[str, Any]) -> None:  # noqa: A002 - the name is part of the interface
        """Add an input, or complete one of the same name: ``name``, ``data_type``, ``dims``, perhaps ``optional``."""
        self._add("input", dict(input), ("name", "data_type", "dims", "optional"))

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add an output, or complete one of the same name: ``name``, ``data_type``, ``dims``."""
        self._add("output", dict(output), ("name", "data_type", "dims"))

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, bool]) -> None:
        """Report whether the model is decoupled: ``{"decoupled": True}``."""
        if set(transaction_policy_dict) - {"decoupled"}:
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._name}' contains "
                "property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        for key, value in transaction_policy_dict.items():
            if key in policy and policy[key] != value:
                raise ValueError(
                    f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is "
                    f"already set to '{policy[key]}'."
                )
            policy[key] = value

    @property
    def _name(self) -> str:
        return str(self._model_config["name"])

    def _add(self, kind: str, tensor: dict[str, Any], known: tuple[str, ...]) -> None:
        self._check_properties(kind, tensor, known)
        for given in self._model_config.setdefault(kind, []):
            if given["name"] == tensor["name"]:
                self._check_agreement(kind, given, tensor)
                given.update(tensor)
                return
        self._model_config[kind].append(tensor)

    def _check_properties(self, kind: str, tensor: Mapping[str, Any], known: tuple[str, ...]) -> None:
        where = f"in auto-complete-config function for model '{self._name}'"
        if "name" not in tensor:
            raise ValueError(f"{kind} {where} is missing 'name' property.")
        if set(tensor) - set(known):
            names = " and ".join([", ".join(f"'{name}'" for name in known[:-1]), f"'{known[-1]}'"])
            raise ValueError(f"{kind} '{tensor['name']}' {where} contains property other than {names}.")
        for required in ("data_type", "dims"):
            if required not in tensor:
                raise ValueError(f"{kind} '{tensor['name']}' {where} is missing '{required}' property.")

    def _check_agreement(self, kind: str, given: Mapping[str, Any], tensor: Mapping[str, Any]) -> None:
        name = tensor["name"]
        if given.get("data_type", "TYPE_INVALID") not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {given['data_type']} for {kind} "
                f"'{name}', model provides {tensor['data_type']}"
            )
        for key in ("dims", "optional"):
            if given.get(key) and key in tensor and given[key] != tensor[key]:
                raise ValueError(
                    f"model '{self._name}', tensor '{name}': the model expects {key} {tensor[key]} but the model "
                    f"configuration specifies {key} {given[key]}"
                )


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


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The output called ``name``, or None."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


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
