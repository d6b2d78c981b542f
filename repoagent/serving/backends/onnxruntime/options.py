"""Session options from a model configuration: the parameters of Triton's onnxruntime backend, by the same names."""

import os
from typing import TYPE_CHECKING, Any, Final

import onnxruntime

from repoagent.errors import InvalidArgumentError

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

_LEVELS: Final = {
    -1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    0: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_TRUE: Final = frozenset({"1", "true", "on", "yes"})
_FALSE: Final = frozenset({"0", "false", "off", "no"})
_SPINNING: Final = "session.intra_op.allow_spinning"
_SHRINKAGE: Final = "memory.enable_memory_arena_shrinkage"


class _Parameters:
    """The ``parameters`` of a configuration, as numbers and truth values."""

    def __init__(self, config: "ModelConfig") -> None:
        self._values = {key: value.string_value for key, value in config.parameters.items()}

    def text(self, key: str) -> str | None:
        return self._values.get(key)

    def number(self, key: str) -> int:
        text = self._values.get(key) or "0"
        try:
            return int(text)
        except ValueError:
            raise InvalidArgumentError(f"parameter '{key}' must be a whole number, not '{text}'") from None

    def truth(self, key: str) -> bool | None:
        text = self._values.get(key)
        if text is None:
            return None
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise InvalidArgumentError(f"parameter '{key}' must be true or false, not '{text}'")


def session_options(config: "ModelConfig", instances: int) -> Any:
    """The ``onnxruntime.SessionOptions`` for one version of a model that ``instances`` instances share.

    Without ``intra_op_thread_count`` the instances divide the cores that this process may use, at least one thread
    each. Threads do not spin while they wait (as is ONNX Runtime's default), because the server's own threads need the
    cores in between; ``session.intra_op.allow_spinning`` = 1 turns that on.

    Raises:
        InvalidArgumentError: a parameter has no sensible value.
    """
    parameters = _Parameters(config)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = _LEVELS.get(config.optimization.graph.level, _LEVELS[0])
    options.execution_mode = _execution_mode(parameters)
    options.intra_op_num_threads = parameters.number("intra_op_thread_count") or max(
        1, len(os.sched_getaffinity(0)) // instances
    )
    if inter_op := parameters.number("inter_op_thread_count"):
        options.inter_op_num_threads = inter_op
    if (arena := parameters.truth("enable_mem_arena")) is not None:
        options.enable_cpu_mem_arena = arena
    # A memory pattern is planned per shape under a lock; with several threads in one session it only gets in the way.
    pattern = parameters.truth("enable_mem_pattern")
    options.enable_mem_pattern = instances == 1 if pattern is None else pattern
    options.add_session_config_entry(_SPINNING, "1" if parameters.truth(_SPINNING) else "0")
    return options


def _execution_mode(parameters: _Parameters) -> Any:
    mode = parameters.number("execution_mode")
    if mode not in (0, 1):
        raise InvalidArgumentError(
            f"Invalid configuration value provided. Expected values for execution_mode are 0 or 1 but got {mode}."
        )
    return onnxruntime.ExecutionMode.ORT_PARALLEL if mode else onnxruntime.ExecutionMode.ORT_SEQUENTIAL


def run_options(config: "ModelConfig") -> Any:
    """The ``onnxruntime.RunOptions`` for the runs of one instance."""
    options = onnxruntime.RunOptions()
    if (shrinkage := _Parameters(config).text(_SHRINKAGE)) is not None:
        options.add_run_config_entry(_SHRINKAGE, shrinkage)
    return options
