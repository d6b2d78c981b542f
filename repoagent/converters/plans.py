"""What all converters to TensorRT plans share: options of the builder, flavours, machines, the build itself."""

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from repoagent.api.converters import ConversionJob, ConverterOption, Product
from repoagent.engines.builder.profiles import PlanSettings
from repoagent.engines.flavours import CHOICE, Flavour, installed, not_installed
from repoagent.engines.plan_header import PlanHeader
from repoagent.engines.probe import probe
from repoagent.errors import InternalError, InvalidArgumentError, UnsupportedError

_REFUSED: Final[Mapping[str, str]] = {
    "precision": "plans are strongly typed: the numbers of the model are those of the plan. Convert the model itself",
    "refit": "plans with weights that can be exchanged are not supported yet",
    "strip_plan": "plans without weights are not supported yet",
    "weight_streaming": "weight streaming is not supported yet",
    "version_compatible": "a plan runs with the version that built it; load it again after an update",
    "timing_cache": "the result itself is kept, so nothing is timed twice",
}

BUILDER_OPTIONS: Final[Mapping[str, ConverterOption]] = {
    "workspace": ConverterOption(None, "bytes of device memory that kernels may use while they run"),
    "optimization_level": ConverterOption(None, "0 to 5: how long the builder looks for better kernels"),
    "tf32": ConverterOption("true", "false: products of float32 numbers keep all their bits"),
    "compute_capabilities": ConverterOption("all", "for RTX: all, current, or a list such as 8.6,8.9"),
    "flavour": ConverterOption(None, "tensorrt or tensorrt_rtx, where both are installed"),
    **{name: ConverterOption(None, f"refused: {why}") for name, why in _REFUSED.items()},
}
"""What every plan can be built by."""


def refuse_unsupported(options: Mapping[str, str]) -> None:
    """Raise ``UnsupportedError`` for an option that NVIDIA's tools have and this does not."""
    for name, why in _REFUSED.items():
        if name in options:
            raise UnsupportedError(f"parameter '{name}': {why}")


def chosen_flavour(options: Mapping[str, str]) -> Flavour:
    """The flavour to build with: the one asked for, or the preferred one of those that are installed.

    Raises:
        InvalidArgumentError: there is no such flavour.
        UnsupportedError: it is not installed, or none is.
    """
    asked, there = options.get("flavour"), installed()
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


def target_of(flavour: Flavour, settings: PlanSettings) -> str:
    """The machines that a plan is for: TensorRT itself builds for the GPU that it builds on. Raises
    ``UnsupportedError`` if there is no GPU, and one is needed to build."""
    if flavour is Flavour.RTX and list(settings.capabilities) != ["current"]:
        return f"compute capability {', '.join(settings.capabilities) or 'any'}"
    findings = probe()
    if not findings.gpus:
        what = "compute_capabilities 'current'" if flavour is Flavour.RTX else f"a plan of {flavour.title}"
        raise UnsupportedError(f"{what} needs a GPU to build for, and this machine has none: {findings.problem}")
    gpu = findings.gpus[0]
    return f"{gpu.name}, compute capability {gpu.capability[0]}.{gpu.capability[1]}"


def build_described(job: ConversionJob) -> Product:
    """Build the plan that the settings of ``job`` describe, in this process; what it has is in the annotations."""
    options = job.settings
    os.environ[CHOICE] = options["flavour"]  # read when the library is imported, in this process
    from repoagent.engines.builder.build import build_plan
    from repoagent.engines.builder.profiles import to_json

    plan = job.target / options["output"]
    settings = PlanSettings.from_json(options["plan"])
    built = build_plan(job.source / options["input"], plan, settings, progress=job.progress, cancelled=job.cancelled)
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


def _capabilities(plan: Path) -> list[str]:
    """What the plan's own header states."""
    with plan.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        header = PlanHeader.of(content)
    return [f"{major}.{minor}" for major, minor in sorted(header.capabilities or ())]
