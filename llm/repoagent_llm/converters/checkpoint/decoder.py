"""A checkpoint becomes a decoder folder, which the backend ``llm`` serves."""

from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from repoagent.api.converters import ConversionJob, ConversionPlan, ConversionSource, ConverterOption, Product
from repoagent.converters.option_values import choice, number, truth
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnsupportedError
from repoagent.installing import install_hint
from repoagent_llm.converters.checkpoint.files import CheckpointFiles

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["CheckpointConverter"]

_BACKEND: Final = "llm"
_OUTPUT: Final = "genai_config.json"
_FORMS: Final = ("gqa", "std")
_PRECISIONS: Final = ("fp32", "fp16", "int8", "int4")
_BLOCKS: Final = (16, 32, 64, 128, 256)


class CheckpointConverter:
    """Builds a decoder folder of a checkpoint of Hugging Face, with its tokenizer, template and settings."""

    version = "1"
    in_child = True
    options: Mapping[str, ConverterOption] = {
        "precision": ConverterOption("fp32", "the type of the weights: fp32, fp16, int8 or int4"),
        "form": ConverterOption("gqa", "gqa: fast on CPUs; std: standard operators, the source of TensorRT plans"),
        "block": ConverterOption("32", "with int4: how many weights share a scale: 16, 32, 64, 128 or 256"),
        "lora": ConverterOption("false", "true: the decoder takes LoRA adapters"),
        "capacity": ConverterOption(None, "with form std: the tokens of a cache, which TensorRT plans need"),
    }

    def plan(self, source: ConversionSource, options: Mapping[str, str]) -> ConversionPlan:
        """See :class:`repoagent.api.Converter`."""
        if find_spec("onnx") is None:
            raise UnsupportedError(f"a decoder needs the package onnx; {install_hint('repoagent-core', 'llm')}")
        _refuse_other_backend(source.config)
        from repoagent_llm.builder.architecture import read_architecture

        files = CheckpointFiles(source.directory, source.label)
        files.check_size_of_config()
        try:
            shape = read_architecture(source.directory)
        except RepoAgentError as error:
            raise _public(error, source.label, source.directory) from None
        files.check_tokenizer(shape.vocab_size)
        block = number(options, "block", min(_BLOCKS), max(_BLOCKS))
        settings = {
            "form": choice(options, "form", _FORMS),
            "precision": choice(options, "precision", _PRECISIONS),
            "block": block,
            "lora": truth(options, "lora"),
        }
        capacity = number(options, "capacity", 2, shape.context_length + 1)
        if capacity is not None:
            if settings["form"] != "std":
                raise InvalidArgumentError("parameter 'capacity' is for decoders of the form std: set form = std")
            settings["capacity"] = capacity
        tools = {"onnx": version("onnx"), "numpy": version("numpy")}
        return ConversionPlan(files.all, _OUTPUT, settings, tools, "any", files.all)

    def build(self, job: ConversionJob) -> Product:
        """See :class:`repoagent.api.Converter`."""
        from repoagent_llm.builder import build

        job.progress(0, None, "writing the decoder")
        target, options = job.target, job.settings
        made = target / "decoder"
        try:
            build(job.source, made, **options)
        except RepoAgentError as error:
            raise _public(error, "", job.source, target) from None
        for file in sorted(made.iterdir(), key=lambda file: file.name == _OUTPUT):
            file.rename(target / file.name)
        made.rmdir()
        size = sum(file.stat().st_size for file in target.iterdir())
        return Product({"precision": options["precision"], "form": options["form"]}, (f"a decoder of {size} bytes",))

    def configure(self, config: "ModelConfig", plan: ConversionPlan, product: Product) -> None:
        """See :class:`repoagent.api.Converter`."""
        config.backend = _BACKEND
        config.default_model_filename = ""


def _refuse_other_backend(config: "ModelConfig | None") -> None:
    if config is not None and (config.backend not in ("", _BACKEND) or config.platform):
        other = config.backend or config.platform
        raise InvalidArgumentError(f"makes models of the backend '{_BACKEND}', but the configuration has '{other}'")


def _public(error: RepoAgentError, label: str, *directories: Path) -> RepoAgentError:
    """``error`` without the private directories that it may name."""
    text = " ".join(str(error).split())
    for directory in directories:
        text = text.replace(f"{directory}/", "").replace(str(directory), "the checkpoint")
    kind = UnsupportedError if isinstance(error, UnsupportedError) else InvalidArgumentError
    return kind(f"{label}: {text}" if label else text)
