"""Rules on what executes, and when: batching, sequences and their states, instance groups, steps of ensembles."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from repoagent.config.backends import ENSEMBLE
from repoagent.config.model_config_pb2 import (
    TYPE_INT32,
    TYPE_INT64,
    TYPE_STRING,
    TYPE_UINT32,
    TYPE_UINT64,
    ModelConfig,
    ModelDynamicBatching,
    ModelEnsembling,
    ModelInstanceGroup,
    ModelQueuePolicy,
    ModelSequenceBatching,
)


def instance_group_problems(
    config: ModelConfig, name: str, *, complete: bool, gpus: Collection[int] | None
) -> Iterator[str]:
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


def dynamic_batching_problems(config: ModelConfig, name: str) -> Iterator[str]:
    if not config.HasField("dynamic_batching"):
        return
    batching = config.dynamic_batching
    yield from _size_problems(batching, config.max_batch_size, name)
    yield from _priority_problems(batching, name)
    if batching.preserve_ordering:
        yield from _ordering_problems(batching, name)


def _size_problems(batching: ModelDynamicBatching, max_batch_size: int, name: str) -> Iterator[str]:
    if any(size <= 0 for size in batching.preferred_batch_size):
        yield f"dynamic batching preferred size must be positive for {name}"
    if any(size > max_batch_size for size in batching.preferred_batch_size):
        yield f"dynamic batching preferred size must be <= max batch size for {name}"


def _priority_problems(batching: ModelDynamicBatching, name: str) -> Iterator[str]:
    levels = batching.priority_levels
    if levels == 0:
        return
    if not 1 <= batching.default_priority_level <= levels:
        yield f"default priority level must be in range [1, {levels}] for {name}"
    if not all(1 <= level <= levels for level in batching.priority_queue_policy):
        yield f"priority queue policy must have priority level in range [1, {levels}] for {name}"


def _ordering_problems(batching: ModelDynamicBatching, name: str) -> Iterator[str]:
    if batching.priority_levels > 1:
        yield f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
    if any(map(_delays, [batching.default_queue_policy, *batching.priority_queue_policy.values()])):
        yield f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}"


def _delays(policy: ModelQueuePolicy) -> bool:
    return policy.default_timeout_microseconds != 0 and policy.timeout_action == ModelQueuePolicy.DELAY


def sequence_state_problems(config: ModelConfig, name: str) -> Iterator[str]:
    inputs = {item.name for item in config.input} | {item.name for item in config.sequence_batching.control_input}
    for state in config.sequence_batching.state:
        place = f"sequence batching state '{state.input_name}' of {name}"
        if not (state.input_name and state.output_name):
            yield f"sequence batching states must have an 'input_name' and an 'output_name' for {name}"
        if state.input_name in inputs:
            yield f"{place}: there is another input of that name"
        inputs.add(state.input_name)
        if not state.data_type or any(dim < 1 and dim != -1 for dim in state.dims):
            yield f"{place}: a 'data_type' and 'dims' above 0, or -1, are required"
        if len(state.initial_state) > 1:
            yield (
                f"initial_state field for state input '{state.input_name}' must contain exactly one or zero element. "
                f"Found '{len(state.initial_state)}' elements."
            )
        for initial in state.initial_state:
            yield from (f"{place}: initial_state {problem}" for problem in _initial_problems(state, initial))


def _initial_problems(state: ModelSequenceBatching.State, initial: ModelSequenceBatching.InitialState) -> Iterator[str]:
    if not initial.name:
        yield "must have a 'name'"
    if initial.data_type != state.data_type:
        yield "must have the data type of the state"
    fits = len(initial.dims) == len(state.dims) and all(
        dim > 0 and want in (-1, dim) for want, dim in zip(state.dims, initial.dims, strict=True)
    )
    if not fits:
        yield f"must have dims above 0 that fit those of the state, {list(state.dims)}, not {list(initial.dims)}"
    if initial.WhichOneof("state_data") is None:
        yield "must have 'zero_data' or a 'data_file'"


_Control: TypeAlias = ModelSequenceBatching.Control
_VALUE_FIELDS: Final = ("int32_false_true", "fp32_false_true", "bool_false_true")
_CORRELATION_TYPES: Final = (TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32, TYPE_STRING)


def sequence_batching_problems(config: ModelConfig, name: str) -> Iterator[str]:
    if not config.HasField("sequence_batching"):
        return
    batching = config.sequence_batching
    yield from _tensor_problems(batching, name)
    for label, kind in _Control.Kind.items():
        yield from _kind_problems(batching, label, kind, name)
    yield from _strategy_problems(batching, config.max_batch_size, name)


def _tensor_problems(batching: ModelSequenceBatching, name: str) -> Iterator[str]:
    seen: set[str] = set()
    for tensor in batching.control_input:
        if not tensor.name:
            yield f"sequence batching control tensor must have a name for {name}"
        elif tensor.name in seen:
            yield f"sequence batching control tensor '{tensor.name}' is specified for multiple control kinds for {name}"
        seen.add(tensor.name)


def _kind_problems(batching: ModelSequenceBatching, label: str, kind: int, name: str) -> Iterator[str]:
    controls = [control for tensor in batching.control_input for control in tensor.control if control.kind == kind]
    if len(controls) > 1:
        yield f"sequence batching specifies multiple {label} tensors for {name}"
    for control in controls:
        if kind == _Control.CONTROL_SEQUENCE_CORRID:
            yield from _correlation_problems(control, label, name)
        else:
            yield from _value_problems(control, label, name)


def _value_problems(control: _Control, label: str, name: str) -> Iterator[str]:
    given = [field for field in _VALUE_FIELDS if getattr(control, field)]
    if not given:
        yield (
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' "
            f"for {label} for {name}"
        )
    elif len(given) > 1:
        yield (
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            f"'bool_false_true' for {label} for {name}"
        )
    elif len(getattr(control, given[0])) != 2:
        yield f"sequence batching control '{given[0]}' must have exactly 2 entries for {label} for {name}"


def _correlation_problems(control: _Control, label: str, name: str) -> Iterator[str]:
    if any(getattr(control, field) for field in _VALUE_FIELDS):
        yield (
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' "
            f"for {label} for {name}"
        )
    elif control.data_type not in _CORRELATION_TYPES:
        yield (
            f"unexpected data type for control {label} for {name}. Allowed data types are TYPE_UINT64, TYPE_INT64, "
            "TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )


def _strategy_problems(batching: ModelSequenceBatching, max_batch_size: int, name: str) -> Iterator[str]:
    sizes = batching.oldest.preferred_batch_size
    if any(size <= 0 for size in sizes):
        yield f"sequence batching preferred batch size must be positive for {name}"
    if any(size > max_batch_size for size in sizes):
        yield f"sequence batching preferred batch size must be <= max batch size for {name}"
    # 0 is the default and allowed, whatever the text states: it is Triton's.
    if not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        yield f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}"


def ensemble_problems(config: ModelConfig, name: str) -> Iterator[str]:
    """Problems of ``ensemble_scheduling``, or of an ensemble that lacks it."""
    if not config.HasField("ensemble_scheduling"):
        if config.platform == ENSEMBLE:
            yield f"ensemble scheduling must be set for ensemble {name} whose platform is {ENSEMBLE}"
        return
    settings = list(_setting_problems(config, name)) or list(_step_problems(config, name))
    yield from settings
    if not settings:
        yield from _flow_problems(config, name)


def _setting_problems(config: ModelConfig, name: str) -> Iterator[str]:
    if config.platform != ENSEMBLE:
        yield f"ensemble scheduling cannot be set for model '{name}' whose platform is not {ENSEMBLE}"
    if config.instance_group:
        yield f"instance group should not be specified for ensemble '{name}'"
    if config.HasField("optimization"):
        yield f"optimization should not be specified for ensemble '{name}'"
    if config.model_warmup:
        yield f"model_warmup can not be specified for ensemble '{name}'"
    if not config.ensemble_scheduling.step:
        yield f"must specify 'step' for ensemble '{name}'"


def _step_problems(config: ModelConfig, name: str) -> Iterator[str]:
    written: set[str] = set()
    for index, step in enumerate(config.ensemble_scheduling.step):
        for key in ("model_name", "input_map", "output_map"):
            if not getattr(step, key):
                yield f"must specify '{key}' in step {index} of ensemble '{name}'"
        for tensor in step.output_map.values():
            if tensor in written:
                yield (
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{name}' "
                    f"step {index}"
                )
            written.add(tensor)


@dataclass(slots=True)
class _Flow:
    """Which tensors each tensor is made from, and which are made from it, in the order of the steps."""

    sources: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    uses: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    tensors: dict[str, None] = field(default_factory=dict)

    def add(self, step: ModelEnsembling.Step) -> None:
        for tensor in [*step.output_map.values(), *step.input_map.values()]:
            self.tensors[tensor] = None
        for source in step.input_map.values():
            for result in step.output_map.values():
                self.sources[result].append(source)
                self.uses[source].append(result)

    def ready_from(self, inputs: list[str]) -> set[str]:
        """The tensors that can be computed when ``inputs`` are there."""
        ready, queue = set(inputs), list(inputs)
        while queue:
            for result in self.uses.get(queue.pop(0), ()):
                if result not in ready and ready.issuperset(self.sources[result]):
                    ready.add(result)
                    queue.append(result)
        return ready

    def origin_of_gap(self, tensor: str, ready: set[str]) -> str:
        """Follow what is missing back to where it starts; a cycle ends at its last tensor not yet seen."""
        seen: set[str] = set()
        last = tensor
        while True:
            missing = [source for source in self.sources.get(last, ()) if source not in ready and source not in seen]
            if not missing:
                return last
            last = missing[0]
            seen.add(last)


def _flow_problems(config: ModelConfig, name: str) -> Iterator[str]:
    flow = _Flow()
    for step in config.ensemble_scheduling.step:
        flow.add(step)
    inputs = [tensor.name for tensor in config.input]
    outputs = [tensor.name for tensor in config.output]
    ready = flow.ready_from(inputs)
    unused_inputs = [tensor for tensor in inputs if tensor not in flow.tensors]
    faults = [f"ensemble input '{tensor}' for ensemble {name}' is not used" for tensor in unused_inputs]
    faults.extend(_output_problems(flow, outputs, ready, name))
    # Tensors before a gap are unused because of it: speak of them only when there is none.
    yield from faults or _unused_problems(flow, outputs, ready, name)


def _output_problems(flow: _Flow, outputs: list[str], ready: set[str], name: str) -> Iterator[str]:
    for tensor in outputs:
        if tensor not in flow.tensors:
            yield f"ensemble output '{tensor}' for ensemble {name}' is not used"
        elif tensor not in ready:
            origin = flow.origin_of_gap(tensor, ready)
            reason = (
                f": at least one of its depending tensors, '{origin}', is not connected" if origin != tensor else ""
            )
            yield f"output '{tensor}' for ensemble '{name}' is not written{reason}"


def _unused_problems(flow: _Flow, outputs: list[str], ready: set[str], name: str) -> Iterator[str]:
    for tensor in flow.tensors:
        if tensor not in outputs and (tensor not in ready or not flow.uses.get(tensor)):
            yield f"ensemble tensor '{tensor}' is unused in ensemble '{name}'"
