"""A plan from an ONNX model, with whichever TensorRT is installed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from repoagent.engines.bindings import FLAVOUR, trt
from repoagent.engines.builder.network import (
    UNFUSED,
    attention_groups,
    collected,
    first_error,
    let_decompose,
    logger,
    parse,
)
from repoagent.engines.builder.profiles import NetworkInput, PlanSettings, profiles_for
from repoagent.engines.flavours import Flavour
from repoagent.engines.protocol import Profile
from repoagent.errors import CancelledError, InternalError, InvalidArgumentError, UnsupportedError


class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
    """Reports the steps of the phase that has most of them under way, and ends the build once it is cancelled.

    The library calls it from several threads, and swallows what it raises.
    """

    def __init__(self, progress: Callable[[int, int | None, str], None], cancelled: Callable[[], bool]) -> None:
        trt.IProgressMonitor.__init__(self)
        self._progress = progress
        self._cancelled = cancelled
        self._steps: dict[str, int] = {}
        self._done = 0
        self._known = 0
        self.ended = False
        """Whether it has ended the build."""

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        """A phase of so many steps begins."""
        self._steps[phase_name] = num_steps
        self._known += num_steps

    def step_complete(self, phase_name: str, step: int) -> bool:
        """A step is done; False ends the build."""
        self._done += 1
        self._progress(min(self._done, self._known), self._known, phase_name[:1].lower() + phase_name[1:])
        if self._cancelled():
            self.ended = True
        return not self.ended

    def phase_finish(self, phase_name: str) -> None:
        """A phase ended; of one that ended early the rest will not come."""
        self._steps.pop(phase_name, None)

    def __repr__(self) -> str:
        return f"<Monitor {self._done} of {self._known}>"


Progressing = Callable[[int, int | None, str], None]
_CURRENT: Final = "current"
_INPUTS_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class Built:
    """What became of a model: its tensors and profiles as the plan has them, and what was remarkable."""

    version: str
    flavour: Flavour
    tensors: Sequence[Mapping[str, Any]]
    profiles: tuple[Profile, ...]
    notes: tuple[str, ...]


def build_plan(
    model: Path, target: Path, settings: PlanSettings, *, progress: Progressing, cancelled: Callable[[], bool]
) -> Built:
    """Write a plan of the ONNX file ``model`` to the file ``target``.

    Call it in a process that may end: where something is wrong with the machine, the library may end it.

    Raises:
        InvalidArgumentError: TensorRT refuses the model or a setting.
        UnsupportedError: there is no TensorRT, or this one lacks what a setting asks for.
        CancelledError: ``cancelled`` became true.
        InternalError: TensorRT cannot build it.
    """
    progress(0, None, "reading the model")
    builder = _new_builder()
    # Ignored by version 11, where every network is strongly typed; needed before.
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parse(network, model)
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    found = profiles_for([_input(one) for one in inputs], settings)
    config = _config(builder, settings)
    for profile in found.profiles:
        config.add_optimization_profile(_profile(builder, profile))
    monitor = Monitor(progress, cancelled)
    config.progress_monitor = monitor
    plan, notes = _build(builder, network, config, monitor)
    with target.open("wb") as file:
        file.write(memoryview(plan))
    tensors = [*(_described(one, is_input=True) for one in inputs), *_outputs(network)]
    return Built(trt.__version__, FLAVOUR, tensors, found.profiles, (*found.notes, *_listed(found.profiles), *notes))


def _new_builder() -> Any:
    with collected() as errors:
        try:
            builder = trt.Builder(logger)
        except Exception as error:  # "factory function returned nullptr" among them
            raise UnsupportedError(
                f"TensorRT cannot make a builder: {first_error(errors) if errors else error}"
            ) from error
    if builder is None:
        raise UnsupportedError(f"TensorRT makes no builder: {first_error(errors)}")
    return builder


def _input(tensor: Any) -> NetworkInput:
    shape = tuple(tensor.shape)
    names = tuple(tensor.get_dimension_name(axis) for axis in range(len(shape)))
    return NetworkInput(tensor.name, shape, bool(tensor.is_shape_tensor), names)


def _config(builder: Any, settings: PlanSettings) -> Any:
    config = builder.create_builder_config()
    if settings.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace)
    if settings.level is not None:
        config.builder_optimization_level = settings.level
    if settings.tf32:
        config.set_flag(trt.BuilderFlag.TF32)
    else:
        config.clear_flag(trt.BuilderFlag.TF32)
    if settings.capabilities:
        _set_capabilities(config, settings.capabilities)
    return config


def _set_capabilities(config: Any, wanted: Sequence[str]) -> None:
    rtx: Any = trt  # Only the flavour for RTX has these.
    if FLAVOUR is not Flavour.RTX:
        raise UnsupportedError(f"compute capabilities can be chosen for {Flavour.RTX.title} only")
    kinds = rtx.ComputeCapability.__members__
    known = {_dotted(name): kind for name, kind in kinds.items() if name.startswith("SM")}
    known[_CURRENT] = kinds["CURRENT"]
    config.num_compute_capabilities = len(wanted)
    for index, name in enumerate(wanted):
        if name not in known:
            raise InvalidArgumentError(
                f"{FLAVOUR.title} {trt.__version__} does not build for compute capability {name}; it knows "
                f"{', '.join(known)}"
            )
        config.set_compute_capability(known[name], index)


def _dotted(name: str) -> str:
    digits = name.removeprefix("SM")
    return f"{digits[:-1]}.{digits[-1]}"


def _profile(builder: Any, profile: Profile) -> Any:
    made = builder.create_optimization_profile()
    for name, allowed in profile.shapes.items():
        made.set_shape(name, allowed.least, allowed.best, allowed.most)
    for name, allowed in profile.values.items():
        made.set_shape_input(name, allowed.least, allowed.best, allowed.most)
    return made


def _build(builder: Any, network: Any, config: Any, monitor: Monitor) -> tuple[Any, tuple[str, ...]]:
    """The plan; attention is let to several kernels only where it cannot be built otherwise."""
    groups = attention_groups(network)
    notes: list[str] = []
    while True:
        with collected() as errors:
            plan = builder.build_serialized_network(network, config)
        if plan is not None:
            return plan, tuple(notes)
        if monitor.ended:
            raise CancelledError("the build was ended: the load was cancelled")
        if not groups or not any(UNFUSED in error for error in errors):
            raise InternalError(f"TensorRT cannot build the model: {first_error(errors)}")
        layers = groups.pop(0)
        let_decompose(layers)
        kind = layers[0].get_input(0).dtype.name
        notes.append(
            f"no fused kernel for {len(layers)} attention layers in {kind}: they take several, which is slower"
        )


def _listed(profiles: Sequence[Profile]) -> list[str]:
    """What a report shows of the profiles: of many inputs the first ones."""
    lines = []
    for index, profile in enumerate(profiles):
        ranges = [f"{name} {allowed}" for name, allowed in {**profile.shapes, **profile.values}.items()]
        more = f" and {len(ranges) - _INPUTS_SHOWN} more" if len(ranges) > _INPUTS_SHOWN else ""
        lines.append(f"profile {index}: {', '.join(ranges[:_INPUTS_SHOWN])}{more}")
    return lines


def _outputs(network: Any) -> list[dict[str, Any]]:
    aliases = _aliases(network)
    found = []
    for index in range(network.num_outputs):
        described = _described(network.get_output(index), is_input=False)
        if described["name"] in aliases:
            described["alias_of"] = aliases[described["name"]]
        found.append(described)
    return found


def _aliases(network: Any) -> dict[str, str]:
    """The outputs that share the memory of an input: caches that are updated in place."""
    kind = getattr(trt.LayerType, "KV_CACHE_UPDATE", None)  # not in the older versions
    layers = (network.get_layer(index) for index in range(network.num_layers))
    return {
        layer.get_output(0).name: layer.get_input(0).name for layer in layers if kind is not None and layer.type == kind
    }


def _described(tensor: Any, *, is_input: bool) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "is_input": is_input,
        "element": tensor.dtype.name,
        "shape": list(tensor.shape),
        "on_host": bool(tensor.is_shape_tensor),
    }
