"""How an executor decodes: the mode, speculation, logits post-processors, debugging."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from repoagent_llm.types import rules
from repoagent_llm.types.adapters import EagleConfig
from repoagent_llm.types.decoding_mode import DecodingMode
from repoagent_llm.types.errors import CheckError
from repoagent_llm.types.lookahead import LookaheadDecodingConfig
from repoagent_llm.types.record import Record

__all__ = [
    "DebugConfig",
    "DecodingConfig",
    "ExtendedRuntimePerfKnobConfig",
    "LogitsPostProcessorConfig",
    "SpeculativeDecodingConfig",
]

_flag = Annotated[bool, rules.boolean]


@dataclass(eq=False)
class DecodingConfig(Record, pickled=4):
    """The decoding mode. Setting lookahead, medusa or eagle sets the mode that belongs to it."""

    decoding_mode: Annotated[DecodingMode | None, rules.maybe(rules.instance(DecodingMode))] = None
    lookahead_decoding_config: Annotated[
        LookaheadDecodingConfig | None, rules.maybe(rules.instance(LookaheadDecodingConfig))
    ] = None
    medusa_choices: Annotated[list[list[int]] | None, rules.maybe(rules.list_of(rules.tokens))] = None
    eagle_config: Annotated[EagleConfig | None, rules.maybe(rules.instance(EagleConfig))] = None

    def __setattr__(self, name: str, value: object) -> None:
        if name == "decoding_mode" and isinstance(value, DecodingMode):
            _check_alone(value)
        super().__setattr__(name, value)
        modes = {
            "lookahead_decoding_config": DecodingMode.Lookahead,
            "medusa_choices": DecodingMode.Medusa,
            "eagle_config": DecodingMode.Eagle,
        }
        if name in modes and value is not None:
            self.__dict__["decoding_mode"] = modes[name]()


def _check_alone(mode: DecodingMode) -> None:
    if mode.isMedusa() or mode.isLookahead() or mode.isExplicitDraftTokens():
        where = "DecodingConfig.decoding_mode"
        raise CheckError(f"{where}: {mode.name} needs its own configuration and cannot be set alone")


def _names(value: object, where: str) -> list[str]:
    names: list[str] = rules.list_of(rules.text)([] if value is None else value, where)
    return names


@dataclass(eq=False)
class DebugConfig(Record, pickled=4):
    """Which tensors of an iteration are kept for ``get_latest_debug_tensors``."""

    debug_input_tensors: _flag = False
    debug_output_tensors: _flag = False
    debug_tensor_names: Annotated[list[str], _names] = ()  # type: ignore[assignment]
    debug_tensors_max_iterations: Annotated[int, rules.integer(0)] = 0


@dataclass(eq=False)
class LogitsPostProcessorConfig(Record, pickled=3):
    """Named post-processors, and one that sees all requests of an iteration at once."""

    processor_map: Annotated[dict[str, Callable[..., Any]] | None, rules.maybe(rules.mapping)] = None
    processor_batched: Annotated[Callable[..., Any] | None, rules.maybe(rules.function)] = None
    replicate: _flag = True


@dataclass(eq=False)
class ExtendedRuntimePerfKnobConfig(Record, pickled=4):
    """Knobs of the TensorRT runtime; without meaning for a CPU runner."""

    multi_block_mode: _flag = True
    enable_context_fmha_fp32_acc: _flag = False
    cuda_graph_mode: _flag = field(default_factory=bool, init=False)
    cuda_graph_cache_size: Annotated[int, rules.integer(0)] = field(default_factory=int, init=False)


@dataclass(eq=False)
class SpeculativeDecodingConfig(Record, pickled=1):
    """Whether a draft model's logits travel directly between processes."""

    fast_logits: _flag = False
