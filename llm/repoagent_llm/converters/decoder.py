"""A decoder folder to one with a plan in the place of its graph."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from repoagent.api.converters import ConversionJob, ConversionPlan, ConversionSource, ConverterOption, Product
from repoagent.converters.onnx.plan_settings import builder_settings
from repoagent.converters.onnx.source import OnnxModel
from repoagent.converters.option_values import number
from repoagent.converters.plans import (
    BUILDER_OPTIONS,
    build_described,
    chosen_flavour,
    refuse_unsupported,
    target_of,
)
from repoagent.engines.flavours import installed_version
from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.nested_text import read_json

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent_llm.runner.decoder_spec import DecoderSpec

_PLAN: Final = "model.plan"
_BACKEND: Final = "llm"
_MOST_SEQUENCES: Final = 4096
_DEFAULT_TOKENS: Final = 512
_MOST_TOKENS: Final = 1 << 20


class DecoderConverter:
    """Two profiles: one for steps of a token per sequence, and one for pieces of prompts."""

    version = "1"
    in_child = True
    options: Mapping[str, ConverterOption] = {
        "max_sequences": ConverterOption("16", "how many sequences a step may have"),
        "max_tokens": ConverterOption(None, "how many tokens of a prompt a step may have; 512, or the context length"),
        **BUILDER_OPTIONS,
    }

    def plan(self, source: ConversionSource, options: Mapping[str, str]) -> ConversionPlan:
        """See :class:`repoagent.api.Converter`."""
        from repoagent_llm.runner.decoder_spec import CONFIG_NAME, read_spec  # with it comes ONNX Runtime

        refuse_unsupported(options)
        flavour = chosen_flavour(options)
        spec = read_spec(source.directory)
        if not spec.standard:
            raise UnsupportedError(
                f"{source.label}: the decoder is not of the std form, and TensorRT takes no other; build it again "
                'with repoagent_llm.builder.build(..., form="std", capacity=N), or convert the checkpoint with '
                "the parameters 'to' = 'decoder', 'form' = 'std' and 'capacity' = N"
            )
        model = OnnxModel.find(ConversionSource(source.directory, spec.filename, source.label))
        settings = builder_settings(options, symbols=_symbols(spec, options))
        values = {"input": model.path, "output": _PLAN, "flavour": flavour.value, "plan": settings.to_json()}
        tools = {flavour.value: installed_version(flavour)}
        files = (*model.parts, CONFIG_NAME)
        return ConversionPlan(files, _PLAN, values, tools, target_of(flavour, settings), (*model.replaced, CONFIG_NAME))

    def build(self, job: ConversionJob) -> Product:
        """See :class:`repoagent.api.Converter`."""
        from repoagent_llm.runner.decoder_spec import CONFIG_NAME

        product = build_described(job)
        config = read_json((job.source / CONFIG_NAME).read_text(encoding="utf-8"))
        config["model"]["decoder"]["filename"] = job.settings["output"]
        (job.target / CONFIG_NAME).write_text(f"{json.dumps(config, indent=2)}\n", encoding="utf-8")
        return product

    def configure(self, config: "ModelConfig", plan: ConversionPlan, product: Product) -> None:
        """See :class:`repoagent.api.Converter`."""
        if not (config.backend or config.platform):
            config.backend = _BACKEND


def _symbols(spec: "DecoderSpec", options: Mapping[str, str]) -> list[dict[str, tuple[int, int, int]]]:
    """The profiles, by the names that the graph has for its dimensions."""
    sequences = number(options, "max_sequences", 1, _MOST_SEQUENCES) or 1
    tokens = number(options, "max_tokens", 1, _MOST_TOKENS) or min(_DEFAULT_TOKENS, spec.context_length)
    if tokens > spec.context_length:
        raise InvalidArgumentError(
            f"parameter 'max_tokens': {tokens} are more than the decoder's context length of {spec.context_length}"
        )
    rows = max(sequences, tokens)
    steps = {"batch": (1, sequences, sequences), "tokens": (1, 1, 1), "rows": (1, sequences, sequences)}
    prompts = {"batch": (1, 1, sequences), "tokens": (1, tokens, tokens), "rows": (1, 1, rows)}
    return [steps, prompts]
