"""Rules on instance groups: kinds, devices, optimisation profiles."""

from collections.abc import Collection, Iterator

from repoagent.config.model_config_pb2 import ModelConfig, ModelInstanceGroup

__all__ = ["problems"]


def problems(config: ModelConfig, name: str, *, complete: bool, gpus: Collection[int] | None) -> Iterator[str]:
    """Problems of ``instance_group``. An ensemble has none; that it must not is a rule of ensembles."""
    if config.HasField("ensemble_scheduling"):
        return
    if complete and not config.instance_group:
        yield f"must specify one or more 'instance group's for {name}"
    for index, group in enumerate(config.instance_group):
        label = f"instance group {group.name or f'{name}_{index}'} of model {name}"
        yield from _device_problems(group, label, complete, gpus)
        yield from _profile_problems(group, label, config)


def _device_problems(
    group: ModelInstanceGroup, label: str, complete: bool, gpus: Collection[int] | None
) -> Iterator[str]:
    match group.kind:
        case ModelInstanceGroup.KIND_GPU:
            if gpus is not None:
                yield from _gpu_problems(group, label, complete, gpus)
        case ModelInstanceGroup.KIND_CPU | ModelInstanceGroup.KIND_MODEL:
            if group.gpus:
                yield f"{label} has kind {ModelInstanceGroup.Kind.Name(group.kind)} but specifies one or more GPUs"
        case _:
            if complete:
                yield f"{label} has unexpected kind KIND_AUTO"


def _gpu_problems(group: ModelInstanceGroup, label: str, complete: bool, gpus: Collection[int]) -> Iterator[str]:
    if not gpus:
        yield f"{label} has kind KIND_GPU but no GPUs are available"
        return
    if complete and not group.gpus:
        yield f"{label} has kind KIND_GPU but specifies no GPUs"
    for gpu in group.gpus:
        if gpu not in gpus:
            usable = ", ".join(map(str, sorted(gpus)))
            yield f"{label} specifies invalid or unsupported gpu id {gpu}. Usable GPUs are: {usable}"


def _profile_problems(group: ModelInstanceGroup, label: str, config: ModelConfig) -> Iterator[str]:
    if not group.profile:
        return
    if config.platform != "tensorrt_plan" and config.backend != "tensorrt":
        platform = f"{config.platform} " if config.platform else ""
        yield f"{label} and platform {platform}specifies profile field which is only supported for TensorRT models"
        return
    for profile in group.profile:
        if not (profile.isascii() and profile.isdigit()):
            yield (
                f"{label} and platform {config.platform} specifies invalid profile {profile}. The field should contain "
                "the string representation of a non-negative integer."
            )
