"""How an executor decodes: the mode, speculation, logits post-processors, debugging."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from repoagent_llm.types import rules
from repoagent_llm.types.adapters import EagleConfig
from repoagent_llm.types.executor_errors import CheckError
from repoagent_llm.types.record import Record

# Bits 0..11 are options, bits 12..20 the mode itself.
_OPTIONS = {
    name: 1 << bit
    for bit, name in enumerate(
        (
            "repetition",
            "frequency",
            "presence",
            "temperature",
            "min_length",
            "ban_words",
            "stop_words",
            "max_length_stop",
            "explicit_eos",
            "no_repeat_ngram",
            "min_p",
            "variable_beam_width",
        )
    )
}


def _bits(*names: str) -> int:
    return sum(_OPTIONS[name] for name in names)


_PENALTIES = _bits("repetition", "frequency", "presence", "temperature", "min_length")
_STOPS = _bits("stop_words", "max_length_stop")
_BEAM_OPTIONS = _PENALTIES | _bits("ban_words", "no_repeat_ngram") | _STOPS
_USUAL = _BEAM_OPTIONS | _bits("min_p")
_DRAFTING = _STOPS | _bits("explicit_eos")
_AUTO, _TOP_K, _TOP_P, _BEAM, _MEDUSA, _LOOKAHEAD, _EXPLICIT, _EXTERNAL, _EAGLE = (1 << bit for bit in range(12, 21))
_MODES = (1 << 21) - (1 << 12)


class DecodingMode:
    """How tokens are chosen. Made by the static constructors only; other attributes may be set on it."""

    _NAMES: ClassVar[dict[int, str]] = {
        _TOP_K: "TopKorTopP",
        _TOP_P: "TopKorTopP",
        _TOP_K | _TOP_P: "TopKorTopP",
        _BEAM: "BeamSearch",
        _MEDUSA: "Medusa",
        _LOOKAHEAD: "Lookahead",
        _EXPLICIT: "ExplicitDraftTokens",
        _EXTERNAL: "ExternalDraftTokens",
        _EAGLE: "Eagle",
    }

    def __init__(self, state: int) -> None:
        self._state = state

    @staticmethod
    def Auto() -> "DecodingMode":  # noqa: N802
        """Beam search or top-k/top-p, by the beam width."""
        return DecodingMode(_AUTO)

    @staticmethod
    def TopK() -> "DecodingMode":  # noqa: N802
        """Top-k sampling."""
        return DecodingMode(_TOP_K | _USUAL)

    @staticmethod
    def TopP() -> "DecodingMode":  # noqa: N802
        """Top-p sampling."""
        return DecodingMode(_TOP_P | _USUAL)

    @staticmethod
    def TopKTopP() -> "DecodingMode":  # noqa: N802
        """Top-k sampling followed by top-p sampling."""
        return DecodingMode(_TOP_K | _TOP_P | _USUAL)

    @staticmethod
    def BeamSearch() -> "DecodingMode":  # noqa: N802
        """Beam search."""
        return DecodingMode(_BEAM | _BEAM_OPTIONS)

    @staticmethod
    def Medusa() -> "DecodingMode":  # noqa: N802
        """Medusa heads."""
        return DecodingMode(_MEDUSA | _DRAFTING | _bits("min_length"))

    @staticmethod
    def Lookahead() -> "DecodingMode":  # noqa: N802
        """Lookahead decoding."""
        return DecodingMode(_LOOKAHEAD | _DRAFTING | _bits("min_length"))

    @staticmethod
    def ExplicitDraftTokens() -> "DecodingMode":  # noqa: N802
        """Draft tokens from a trained recurrent drafter."""
        return DecodingMode(_EXPLICIT | _DRAFTING)

    @staticmethod
    def Eagle() -> "DecodingMode":  # noqa: N802
        """EAGLE drafting."""
        return DecodingMode(_EAGLE | _DRAFTING)

    def _has(self, bits: int) -> bool:
        return bool(self._state & bits)

    def isAuto(self) -> bool:  # noqa: N802
        """The engine chooses."""
        return self._has(_AUTO)

    def isTopK(self) -> bool:  # noqa: N802
        """Top-k is part of the mode."""
        return self._has(_TOP_K)

    def isTopP(self) -> bool:  # noqa: N802
        """Top-p is part of the mode."""
        return self._has(_TOP_P)

    def isTopKorTopP(self) -> bool:  # noqa: N802
        """Top-k or top-p is part of the mode."""
        return self._has(_TOP_K | _TOP_P)

    def isTopKandTopP(self) -> bool:  # noqa: N802
        """Both are part of the mode."""
        return self._has(_TOP_K) and self._has(_TOP_P)

    def isBeamSearch(self) -> bool:  # noqa: N802
        """Beam search."""
        return self._has(_BEAM)

    def isMedusa(self) -> bool:  # noqa: N802
        """Medusa heads."""
        return self._has(_MEDUSA)

    def isLookahead(self) -> bool:  # noqa: N802
        """Lookahead decoding."""
        return self._has(_LOOKAHEAD)

    def isExplicitDraftTokens(self) -> bool:  # noqa: N802
        """Explicit draft tokens."""
        return self._has(_EXPLICIT)

    def isEagle(self) -> bool:  # noqa: N802
        """EAGLE drafting."""
        return self._has(_EAGLE)

    def useVariableBeamWidthSearch(self, enabled: bool) -> "DecodingMode":  # noqa: N802
        """Set or clear the option; returns the mode itself."""
        bit = _OPTIONS["variable_beam_width"]
        self._state = self._state | bit if enabled else self._state & ~bit
        return self

    @property
    def name(self) -> str:
        """The name of the mode, "Unknown" for Auto."""
        return self._NAMES.get(self._state & _MODES, "Unknown")

    def __getstate__(self) -> int:
        return self._state

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, int) or not 0 <= state < 2**32:
            raise CheckError("Invalid DecodingMode state!")
        self._state = state

    def __reduce__(self) -> tuple[object, ...]:
        return (DecodingMode, (self._state,))


@dataclass(eq=False)
class LookaheadDecodingConfig(Record, readonly=True, pickled=3):
    """The sizes (window W, n-gram N, verification set G) of lookahead decoding."""

    max_window_size: Annotated[int, rules.integer(1)]
    max_ngram_size: Annotated[int, rules.integer(1)]
    max_verification_set_size: Annotated[int, rules.integer(0)]

    def _check_together(self) -> None:
        alone = self.max_window_size == 1 and self.max_verification_set_size == 0
        if self.max_ngram_size == 1 and not alone:
            raise CheckError(
                "LookaheadDecodingConfig: max_ngram_size 1 requires max_window_size 1 and max_verification_set_size 0"
            )

    def calculate_speculative_resource(self) -> tuple[int, int, int, int]:
        """(decoding tokens, path length, draft tokens, draft path length) that these sizes need at most."""
        return self.calculate_speculative_resource_tuple(
            self.max_window_size, self.max_ngram_size, self.max_verification_set_size
        )

    @staticmethod
    def calculate_speculative_resource_tuple(
        window_size: int, ngram_size: int, verification_set_size: int
    ) -> tuple[int, int, int, int]:
        """The same, without an object."""
        drafts = (0 if ngram_size == 1 else ngram_size - 2) + (window_size - 1 + verification_set_size) * (
            ngram_size - 1
        )
        return drafts + 1, ngram_size, drafts, ngram_size - 1

    @staticmethod
    def get_default_lookahead_decoding_window() -> int:
        """4."""
        return 4

    @staticmethod
    def get_default_lookahead_decoding_ngram() -> int:
        """3."""
        return 3

    @staticmethod
    def get_default_lookahead_decoding_verification_set() -> int:
        """4."""
        return 4


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
