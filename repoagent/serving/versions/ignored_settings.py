"""Settings of a model configuration that have no effect here, so that the log can name them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from repoagent.serving.measuring.latencies import FIRST_RESPONSE

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["meaningless_settings"]


def meaningless_settings(config: "ModelConfig") -> Iterator[str]:
    """The settings in ``config`` that nothing goes by, except perhaps a backend of the operator's own.

    None of them changes an answer. An accelerator that ``convert`` went by is in the configuration no more.
    """
    optimization = config.optimization
    groups = config.instance_group
    found = {
        "optimization.execution_accelerators": optimization.HasField("execution_accelerators"),
        "optimization.cuda": optimization.HasField("cuda") and not _runs_plans(config),
        "model_operations": bool(config.model_operations.op_library_filename),
        "runtime": bool(config.runtime),
        "instance_group.secondary_devices": any(group.secondary_devices for group in groups),
        "instance_group.passive": any(group.passive for group in groups),
        "instance_group.host_policy": any(group.host_policy for group in groups),
    }
    yield from (name for name, given in found.items() if given)
    families = (control.metric_identifier.family for control in config.model_metrics.metric_control)
    yield from (f"model_metrics of family '{family}'" for family in families if family != FIRST_RESPONSE)


def _runs_plans(config: "ModelConfig") -> bool:
    """Whether TensorRT executes the model: its backend goes by what is said of CUDA."""
    return config.backend == "tensorrt" or (not config.backend and config.platform == "tensorrt_plan")
