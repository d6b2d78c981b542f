"""ONNX to a TensorRT plan, with whichever of TensorRT and TensorRT for RTX is installed."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from repoagent.api.converters import ConversionJob, ConversionPlan, ConversionSource, ConverterOption, Product
from repoagent.config import ModelConfig
from repoagent.config.backends import converter_format
from repoagent.converters.onnx.plan_settings import plan_settings
from repoagent.converters.onnx.source import OnnxModel, refuse_other_backend
from repoagent.converters.option_values import file_name
from repoagent.converters.plans import (
    BUILDER_OPTIONS,
    build_described,
    chosen_flavour,
    refuse_unsupported,
    target_of,
)
from repoagent.engines.flavours import installed_version
from repoagent.errors import InvalidArgumentError

ACCELERATOR: Final = "tensorrt"
"""The name under which Triton's configuration asks for it, too: optimization.execution_accelerators."""
_PLAN: Final = "model.plan"


class TensorRtConverter:
    """A plan per version, built in a process of its own: the library may end the process that it is in."""

    version = "1"
    in_child = True
    options: Mapping[str, ConverterOption] = {
        "min_shapes": ConverterOption(None, "the least shapes: NAME:1x3x224x224,OTHER:1x8; a ';' begins a profile"),
        "opt_shapes": ConverterOption(None, "the shapes that kernels are chosen for, written likewise"),
        "max_shapes": ConverterOption(None, "the largest shapes, written likewise"),
        "output": ConverterOption(_PLAN, "the name of the plan"),
        **BUILDER_OPTIONS,
    }

    def plan(self, source: ConversionSource, options: Mapping[str, str]) -> ConversionPlan:
        refuse_unsupported(options)
        with _format_hint(source.directory):
            refuse_other_backend(source.config)
        flavour = chosen_flavour(options)
        model = OnnxModel.find(source)
        settings = plan_settings(source.config, options)
        if source.config is not None and (given := len(settings.profiles)):
            _check_groups(source.config, given, f"{given} are given")  # Before anything is built.
        output = file_name(options, "output") or _PLAN
        values = {"input": model.path, "output": output, "flavour": flavour.value, "plan": settings.to_json()}
        tools = {flavour.value: installed_version(flavour)}
        return ConversionPlan(model.parts, output, values, tools, target_of(flavour, settings), model.replaced)

    def build(self, job: ConversionJob) -> Product:
        with _format_hint(job.source):
            return build_described(job)

    def configure(self, config: ModelConfig, plan: ConversionPlan, product: Product) -> None:
        config.backend = "tensorrt"
        config.platform = ""
        config.default_model_filename = plan.output
        count = max(1, len(product.annotations["profiles"]))
        _check_groups(config, count, f"the plan has {count}")
        _drop_accelerator(config)


@contextmanager
def _format_hint(directory: Path) -> Iterator[None]:
    """To what is refused of a folder with another backend's model, add the format that converters know it by."""
    try:
        yield
    except InvalidArgumentError as error:
        found = converter_format(os.listdir(directory))
        if found is None:
            raise
        filename, form = found
        raise InvalidArgumentError(
            f"{error}; the folder has a {filename}, so the model is a {form}: convert it with the parameter 'from' = "
            f"'{form}'"
        ) from error


def _check_groups(config: ModelConfig, count: int, stated: str) -> None:
    """Refuse an instance group that asks for a profile beyond ``count``."""
    for profile in sorted({profile for group in config.instance_group for profile in group.profile}):
        if profile.isdecimal() and int(profile) >= count:
            raise InvalidArgumentError(f"instance_group asks for profile {profile}, but {stated}, counted from 0")


def _drop_accelerator(config: ModelConfig) -> None:
    """The plan is what the configuration asked for by this name; nothing is left to be done about it."""
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    if not any(one.name == ACCELERATOR for one in accelerators):
        return
    kept = [one for one in accelerators if one.name != ACCELERATOR]
    del accelerators[:]
    accelerators.extend(kept)
    if not kept and not config.optimization.execution_accelerators.cpu_execution_accelerator:
        config.optimization.ClearField("execution_accelerators")
