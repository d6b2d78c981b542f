"""ONNX to ONNX: ONNX Runtime's graph optimisations, run once and written down."""

import enum
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from repoagent.api.converters import ConversionJob, ConversionPlan, ConversionSource, ConverterOption, Product
from repoagent.converters.onnx.source import (
    OnnxModel,
    processor,
    public_error,
    refuse_other_backend,
    runtime_version,
    serve_with_onnx_runtime,
)
from repoagent.converters.option_values import choice, file_name
from repoagent.errors import InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

_ERRORS_ONLY: Final = 3
_MIN_EXTERNAL_BYTES: Final = "1024"


class Level(enum.StrEnum):
    """ONNX Runtime's graph optimisation levels."""

    BASIC = "basic"
    """Folding of constants and removal of what is redundant. Standard ONNX comes out."""
    EXTENDED = "extended"
    """Also fusions into operators that only ONNX Runtime has."""
    ALL = "all"
    """Also memory layouts for this machine's processor: the result belongs to this kind of machine."""


class OptimizedConverter:
    """What ONNX Runtime would do to the graph at every start, done once."""

    version = "2"
    in_child = True
    options: Mapping[str, ConverterOption] = {
        "level": ConverterOption(Level.EXTENDED.value, "how far the graph is optimised: basic, extended or all"),
        "output": ConverterOption(None, "the name of the result; that of the model unless given"),
    }

    def plan(self, source: ConversionSource, options: Mapping[str, str]) -> ConversionPlan:
        level = choice(options, "level", [level.value for level in Level])
        refuse_other_backend(source.config)
        model = OnnxModel.find(source)
        output = file_name(options, "output") or model.place
        settings = {"input": model.path, "output": output, "level": level, "external": model.writes_external}
        tools = {"onnxruntime": runtime_version()}
        return ConversionPlan(model.parts, output, settings, tools, processor(), model.replaced)

    def build(self, job: ConversionJob) -> Product:
        import onnxruntime as ort

        job.progress(0, None, "optimising")
        model = job.source / job.settings["input"]
        try:
            # The session optimises and writes as it is made; nothing else is wanted of it.
            ort.InferenceSession(str(model), _session_options(ort, job.target, job.settings), ["CPUExecutionProvider"])
        except Exception as error:  # The errors of ONNX Runtime have no base of their own.
            _check_room(model, job.target)
            text = public_error(error, model.parent, job.source, job.target)
            raise InvalidArgumentError(f"cannot be optimised: {text}") from error
        return Product(notes=(f"level {job.settings['level']}",))

    def configure(self, config: "ModelConfig", plan: ConversionPlan, product: Product) -> None:
        serve_with_onnx_runtime(config, plan.output)


def _session_options(ort: Any, target: Path, options: Mapping[str, Any]) -> Any:
    levels = ort.GraphOptimizationLevel
    made = ort.SessionOptions()
    made.graph_optimization_level = {
        Level.BASIC: levels.ORT_ENABLE_BASIC,
        Level.EXTENDED: levels.ORT_ENABLE_EXTENDED,
        Level.ALL: levels.ORT_ENABLE_ALL,
    }[Level(options["level"])]
    made.optimized_model_filepath = str(target / options["output"])
    made.log_severity_level = _ERRORS_ONLY
    made.add_session_config_entry("session.disable_prepacking", "1")
    if options["external"]:
        prefix = "session.optimized_model_external_initializers"
        made.add_session_config_entry(f"{prefix}_file_name", f"{options['output']}.data")
        made.add_session_config_entry(f"{prefix}_min_size_in_bytes", _MIN_EXTERNAL_BYTES)
    return made


def _check_room(model: Path, target: Path) -> None:
    """ONNX Runtime does not report why it could not write; this does where the disk may be it."""
    free, needed = shutil.disk_usage(target).free, model.stat().st_size
    if free < needed:
        raise UnavailableError(
            f"no space for the optimised model: {free} bytes are free where it is written, the model has {needed}"
        )
