"""Rules on ensembles: the settings that they may not have, and the flow of tensors from inputs to outputs."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from repoagent.config.backends import ENSEMBLE
from repoagent.config.model_config_pb2 import ModelConfig, ModelEnsembling

__all__ = ["ensemble_problems"]


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
