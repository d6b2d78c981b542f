"""ONNX to a TensorRT plan, with whichever of TensorRT and TensorRT for RTX is installed."""

import mmap
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from repoagent.api.converters import ConversionPlan, ConversionSource, ConverterOption, Product, Progressing
from repoagent.converters.choices import file_name
from repoagent.converters.onnx.plan_settings import plan_settings
from repoagent.converters.onnx.serving import refuse_other_backend
from repoagent.converters.onnx.source import OnnxModel
from repoagent.engines.building.settings import PlanSettings
from repoagent.engines.flavours import CHOICE, Flavour, installed, installed_version, not_installed
from repoagent.engines.probing.parent import probe
from repoagent.errors import InternalError, InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["ACCELERATOR", "TensorRtConverter"]

ACCELERATOR: Final = "tensorrt"
"""The name under which Triton's configuration asks for it, too: optimization.execution_accelerators."""
_PLAN: Final = "model.plan"
_REFUSED: Final[Mapping[str, str]] = {
    "precision": "plans are strongly typed: the numbers of the model are those of the plan. Convert the model itself",
    "refit": "plans with weights that can be exchanged are not supported yet",
    "strip_plan": "plans without weights are not supported yet",
    "weight_streaming": "weight streaming is not supported yet",
    "version_compatible": "a plan runs with the version that built it; load it again after an update",
    "timing_cache": "the result itself is kept, so nothing is timed twice",
}


class TensorRtConverter:
    """A plan per version, built in a process of its own: the library may end the process that it is in."""

    version = "1"
    in_child = True
    options: Mapping[str, ConverterOption] = {
        "min_shapes": ConverterOption(None, "the least shapes: NAME:1x3x224x224,OTHER:1x8; a ';' begins a profile"),
        "opt_shapes": ConverterOption(None, "the shapes that kernels are chosen for, written likewise"),
        "max_shapes": ConverterOption(None, "the largest shapes, written likewise"),
        "workspace": ConverterOption(None, "bytes of device memory that kernels may use while they run"),
        "optimization_level": ConverterOption(None, "0 to 5: how long the builder looks for better kernels"),
        "tf32": ConverterOption("true", "false: products of float32 numbers keep all their bits"),
        "compute_capabilities": ConverterOption("all", "for RTX: all, current, or a list such as 8.6,8.9"),
        "flavour": ConverterOption(None, "tensorrt or tensorrt_rtx, where both are installed"),
        "output": ConverterOption(_PLAN, "the name of the plan"),
        **{name: ConverterOption(None, f"refused: {why}") for name, why in _REFUSED.items()},
    }

    def plan(self, source: ConversionSource, options: Mapping[str, str]) -> ConversionPlan:
        """See :class:`repoagent.api.Converter`."""
        for name, why in _REFUSED.items():
            if name in options:
                raise UnsupportedError(f"parameter '{name}': {why}")
        refuse_other_backend(source.config)
        flavour = _flavour(options.get("flavour"))
        model = OnnxModel.find(source)
        settings = plan_settings(source.config, options)
        _check_groups(source.config, settings)
        output = file_name(options, "output") or _PLAN
        values = {"input": model.path, "output": output, "flavour": flavour.value, "plan": settings.to_json()}
        tools = {flavour.value: installed_version(flavour)}
        return ConversionPlan(model.parts, output, values, tools, _target(flavour, settings), model.replaced)

    def build(
        self,
        source: Path,
        target: Path,
        options: Mapping[str, Any],
        progress: Progressing,
        cancelled: Callable[[], bool],
    ) -> Product:
        """See :class:`repoagent.api.Converter`."""
        os.environ[CHOICE] = options["flavour"]  # read when the library is imported, in this process
        from repoagent.engines.building.build import build_plan
        from repoagent.engines.building.profiles import to_json

        plan = target / options["output"]
        settings = PlanSettings.from_json(options["plan"])
        built = build_plan(source / options["input"], plan, settings, progress=progress, cancelled=cancelled)
        if built.flavour != options["flavour"]:
            raise InternalError(f"the plan was built with {built.flavour.title}, not with what was asked for")
        annotations = {
            "flavour": built.flavour.value,
            "version": built.version,
            "compute_capabilities": _capabilities(plan),
            "tensors": list(built.tensors),
            "profiles": to_json(built.profiles),
        }
        return Product(annotations, built.notes)

    def configure(self, config: "ModelConfig", plan: ConversionPlan, product: Product) -> None:
        """See :class:`repoagent.api.Converter`."""
        config.backend = "tensorrt"
        config.platform = ""
        config.default_model_filename = plan.output
        count = max(1, len(product.annotations["profiles"]))
        for group in config.instance_group:
            for profile in group.profile:
                if profile.isdecimal() and int(profile) >= count:
                    raise InvalidArgumentError(
                        f"instance_group asks for profile {profile}, but the plan has {count}, counted from 0"
                    )
        _drop_accelerator(config)


def _flavour(asked: str | None) -> Flavour:
    there = installed()
    if asked is not None:
        if asked not in set(Flavour):
            raise InvalidArgumentError(f"parameter 'flavour': '{asked}' is not one of {', '.join(Flavour)}")
        if Flavour(asked) not in there:
            found = ", ".join(there) or "nothing"
            raise UnsupportedError(f"parameter 'flavour': {Flavour(asked).title} is not installed; there is {found}")
        return Flavour(asked)
    if not there:
        raise UnsupportedError(not_installed())
    return there[0]


def _target(flavour: Flavour, settings: PlanSettings) -> str:
    """The machines that a plan is for: TensorRT itself builds for the GPU that it builds on.

    Raises:
        UnsupportedError: there is no GPU, and one is needed to build.
    """
    if flavour is Flavour.RTX and list(settings.capabilities) != ["current"]:
        return f"compute capability {', '.join(settings.capabilities) or 'any'}"
    findings = probe()
    if not findings.gpus:
        what = "compute_capabilities 'current'" if flavour is Flavour.RTX else f"a plan of {flavour.title}"
        raise UnsupportedError(f"{what} needs a GPU to build for, and here is none: {findings.problem}")
    gpu = findings.gpus[0]
    return f"{gpu.name}, compute capability {gpu.capability[0]}.{gpu.capability[1]}"


def _check_groups(config: "ModelConfig | None", settings: PlanSettings) -> None:
    """Refuse, before anything is built, an instance group that asks for a profile that will not be there."""
    if config is None or not settings.profiles:
        return
    asked = {profile for group in config.instance_group for profile in group.profile}
    for profile in sorted(asked):
        if profile.isdecimal() and int(profile) >= len(settings.profiles):
            raise InvalidArgumentError(
                f"instance_group asks for profile {profile}, but {len(settings.profiles)} are given, counted from 0"
            )


def _capabilities(plan: Path) -> list[str]:
    """What the plan's own header states."""
    from repoagent.engines.plan_header import PlanHeader

    with plan.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        header = PlanHeader.of(content)
    return [f"{major}.{minor}" for major, minor in sorted(header.capabilities or ())]


def _drop_accelerator(config: "ModelConfig") -> None:
    """The plan is what the configuration asked for by this name; nothing is left to be done about it."""
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    if not any(one.name == ACCELERATOR for one in accelerators):
        return
    kept = [one for one in accelerators if one.name != ACCELERATOR]
    del accelerators[:]
    accelerators.extend(kept)
    if not kept and not config.optimization.execution_accelerators.cpu_execution_accelerator:
        config.optimization.ClearField("execution_accelerators")
