"""Request: one prompt and everything the engine must know to continue it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Self

from repoagent_llm.types import rules
from repoagent_llm.types.adapters import (
    ContextPhaseParams,
    EagleConfig,
    ExternalDraftTokensConfig,
    LoraConfig,
    MropeConfig,
    MultimodalInput,
    PromptTuningConfig,
)
from repoagent_llm.types.cache_config import KvCacheRetentionConfig
from repoagent_llm.types.decoding_config import LookaheadDecodingConfig
from repoagent_llm.types.enums import RequestType
from repoagent_llm.types.executor_errors import CheckError
from repoagent_llm.types.guidance import GuidedDecodingParams
from repoagent_llm.types.record import Record

_not_negative = rules.maybe(rules.integer(0))
_any_float = rules.maybe(rules.float32())
MAX_BEAM_WIDTH = 1024
MAX_BEAM_WIDTH_STEPS = 8


@dataclass(eq=False)
class SamplingConfig(Record, pickled=19):
    """How tokens are chosen; None leaves a setting at the engine's default, which is greedy search.

    Floats are kept in single precision. ``beam_width_array`` raises ``beam_width`` to its maximum.
    """

    beam_width: Annotated[int, rules.integer(1, MAX_BEAM_WIDTH)] = 1
    _: KW_ONLY
    top_k: Annotated[int | None, _not_negative] = None
    top_p: Annotated[float | None, rules.maybe(rules.float32(above=0, high=1))] = None
    top_p_min: Annotated[float | None, rules.maybe(rules.float32(low=0, high=1))] = None
    top_p_reset_ids: Annotated[int | None, _not_negative] = None
    top_p_decay: Annotated[float | None, rules.maybe(rules.float32(above=0, high=1))] = None
    seed: Annotated[int | None, rules.maybe(rules.unsigned64)] = None
    temperature: Annotated[float | None, rules.maybe(rules.float32(low=0))] = None
    min_tokens: Annotated[int | None, _not_negative] = None
    beam_search_diversity_rate: Annotated[float | None, rules.maybe(rules.float32(low=0))] = None
    repetition_penalty: Annotated[float | None, rules.maybe(rules.float32(above=0))] = None
    presence_penalty: Annotated[float | None, _any_float] = None
    frequency_penalty: Annotated[float | None, _any_float] = None
    length_penalty: Annotated[float | None, _any_float] = None
    early_stopping: Annotated[int | None, rules.maybe(rules.integer())] = None
    no_repeat_ngram_size: Annotated[int | None, _not_negative] = None
    num_return_sequences: Annotated[int | None, rules.maybe(rules.integer(1))] = None
    min_p: Annotated[float | None, rules.maybe(rules.float32(low=0, high=1))] = None
    beam_width_array: Annotated[list[int] | None, rules.maybe(rules.list_of(rules.integer(1, MAX_BEAM_WIDTH)))] = None

    def __post_init__(self) -> None:
        # The C++ class checks these two in its constructor only; a setter takes anything.
        for name in ("length_penalty", "early_stopping"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise CheckError(f"SamplingConfig.{name} must be >= 0, not {value:g}")
        super().__post_init__()

    def _check_together(self) -> None:
        if self.beam_width_array:
            if len(self.beam_width_array) > MAX_BEAM_WIDTH_STEPS:
                raise CheckError(
                    f"SamplingConfig.beam_width_array holds at most {MAX_BEAM_WIDTH_STEPS} widths, "
                    f"not {len(self.beam_width_array)}"
                )
            self.__dict__["beam_width"] = max(self.beam_width, *self.beam_width_array)
        wanted = self.num_return_sequences
        if wanted is not None and self.beam_width > 1 and wanted > self.beam_width:
            raise CheckError(
                f"SamplingConfig.num_return_sequences must be <= beam_width ({self.beam_width}), not {wanted}"
            )


def _flag(value: object, where: str) -> bool:
    return False if value is None else rules.boolean(value, where)


@dataclass(eq=False)
class AdditionalModelOutput(Record, pickled=2):
    """A named tensor of the model, returned for generated tokens and, with ``gather_context``, for the prompt."""

    name: Annotated[str, rules.text]
    gather_context: Annotated[bool, rules.boolean] = False


@dataclass(eq=False)
class OutputConfig(Record, pickled=7):
    """What a request wants back besides tokens; None means False."""

    return_log_probs: Annotated[bool | None, _flag] = False
    return_context_logits: Annotated[bool | None, _flag] = False
    return_generation_logits: Annotated[bool | None, _flag] = False
    exclude_input_from_output: Annotated[bool | None, _flag] = False
    return_encoder_output: Annotated[bool | None, _flag] = False
    return_perf_metrics: Annotated[bool | None, _flag] = False
    additional_model_outputs: Annotated[
        list[AdditionalModelOutput] | None, rules.maybe(rules.list_of(rules.instance(AdditionalModelOutput)))
    ] = None


@dataclass(eq=False)
class Endings(Record, readonly=True, pickled=2):
    """Set as the attribute ``endings`` of a ``Request``; ours, without a counterpart in TensorRT-LLM.

    ``end_ids``: tokens that end a text as ``Request.end_id`` does. They are not part of the text.
    ``stop_ids``: tokens that end a text and are part of it, like a stop word. Neither comes before ``min_tokens``.
    Ids outside the vocabulary never occur.
    """

    end_ids: Annotated[list[int], rules.tokens] = ()  # type: ignore[assignment]
    stop_ids: Annotated[list[int], rules.tokens] = ()  # type: ignore[assignment]


_tensor = rules.maybe(rules.tensor())
_integer = rules.maybe(rules.integer())
_word_lists = rules.maybe(rules.list_of(rules.tokens))


def _maybe(cls: type) -> rules.Rule:
    return rules.maybe(rules.instance(cls))


@dataclass(frozen=True, slots=True)
class RequestExtras:
    """Arguments of a request that have no property."""

    priority: float = 0.5
    encoder_output_length: int | None = None
    num_return_sequences: int = 1
    language_adapter_uid: int | None = None


def _priority(value: object, where: str) -> float:
    number = rules.double(value, where)
    if number != number:  # it would stand nowhere in the order of requests, and spoil that of others
        raise CheckError(f"{where} must be a number, not nan")
    return number


class Request(Record, extensible=True, pickled=32, lost=("allotted_time_ms", "_extras")):
    """One prompt. Token lists are copied; tensors and config objects are kept by reference.

    ``priority`` (0..1) and ``num_return_sequences`` can be given here only; they have no property. A pickle loses
    ``num_return_sequences``, ``language_adapter_uid`` and ``allotted_time_ms``.
    """

    BATCHED_POST_PROCESSOR_NAME: ClassVar[str] = "batched"

    input_token_ids: Annotated[list[int], rules.tokens]
    max_tokens: Annotated[int, rules.integer(1)]
    streaming: Annotated[bool, rules.boolean]
    sampling_config: Annotated[SamplingConfig, rules.instance(SamplingConfig)]
    output_config: Annotated[OutputConfig, rules.instance(OutputConfig)]
    end_id: Annotated[int | None, _integer]
    pad_id: Annotated[int | None, _integer]
    position_ids: Annotated[list[int] | None, rules.maybe(rules.tokens)]
    bad_words: Annotated[list[list[int]] | None, _word_lists]
    stop_words: Annotated[list[list[int]] | None, _word_lists]
    embedding_bias: Annotated[Any, rules.maybe(rules.tensor(ndim=1))]
    external_draft_tokens_config: Annotated[ExternalDraftTokensConfig | None, _maybe(ExternalDraftTokensConfig)]
    prompt_tuning_config: Annotated[PromptTuningConfig | None, _maybe(PromptTuningConfig)]
    multimodal_input: Annotated[MultimodalInput | None, _maybe(MultimodalInput)]
    multimodal_embedding: Annotated[Any, _tensor]
    mrope_config: Annotated[MropeConfig | None, _maybe(MropeConfig)]
    lora_config: Annotated[LoraConfig | None, _maybe(LoraConfig)]
    lookahead_config: Annotated[LookaheadDecodingConfig | None, _maybe(LookaheadDecodingConfig)]
    kv_cache_retention_config: Annotated[KvCacheRetentionConfig | None, _maybe(KvCacheRetentionConfig)]
    logits_post_processor_name: Annotated[str | None, rules.maybe(rules.text)]
    logits_post_processor: Annotated[Callable[..., Any] | None, rules.maybe(rules.function)]
    encoder_input_token_ids: Annotated[list[int] | None, rules.maybe(rules.tokens)]
    client_id: Annotated[int | None, rules.maybe(rules.unsigned64)]
    return_all_generated_tokens: Annotated[bool, rules.boolean]
    request_type: Annotated[RequestType, rules.instance(RequestType)]
    context_phase_params: Annotated[ContextPhaseParams | None, _maybe(ContextPhaseParams)]
    encoder_input_features: Annotated[Any, _tensor]
    cross_attention_mask: Annotated[Any, _tensor]
    eagle_config: Annotated[EagleConfig | None, _maybe(EagleConfig)]
    skip_cross_attn_blocks: Annotated[Any, _tensor]
    guided_decoding_params: Annotated[GuidedDecodingParams | None, _maybe(GuidedDecodingParams)]
    allotted_time_ms: Annotated[timedelta | None, rules.maybe(rules.duration)]
    cache_salt_id: Annotated[int | None, rules.maybe(rules.unsigned64)]
    _extras: RequestExtras

    def __init__(
        self,
        input_token_ids: Sequence[int],
        max_tokens: int,
        *,
        streaming: bool = False,
        sampling_config: SamplingConfig | None = None,
        output_config: OutputConfig | None = None,
        end_id: int | None = None,
        pad_id: int | None = None,
        position_ids: Sequence[int] | None = None,
        bad_words: Sequence[Sequence[int]] | None = None,
        stop_words: Sequence[Sequence[int]] | None = None,
        embedding_bias: Any = None,
        external_draft_tokens_config: ExternalDraftTokensConfig | None = None,
        prompt_tuning_config: PromptTuningConfig | None = None,
        multimodal_input: MultimodalInput | None = None,
        multimodal_embedding: Any = None,
        mrope_config: MropeConfig | None = None,
        lora_config: LoraConfig | None = None,
        lookahead_config: LookaheadDecodingConfig | None = None,
        kv_cache_retention_config: KvCacheRetentionConfig | None = None,
        logits_post_processor_name: str | None = None,
        logits_post_processor: Callable[..., Any] | None = None,
        encoder_input_token_ids: Sequence[int] | None = None,
        client_id: int | None = None,
        return_all_generated_tokens: bool = False,
        priority: float = 0.5,
        type: RequestType = RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION,  # noqa: A002
        context_phase_params: ContextPhaseParams | None = None,
        encoder_input_features: Any = None,
        encoder_output_length: int | None = None,
        cross_attention_mask: Any = None,
        num_return_sequences: int = 1,
        eagle_config: EagleConfig | None = None,
        skip_cross_attn_blocks: Any = None,
        guided_decoding_params: GuidedDecodingParams | None = None,
        language_adapter_uid: int | None = None,
        allotted_time_ms: timedelta | None = None,
        cache_salt_id: int | None = None,
    ) -> None:
        given = locals()
        fields, optional = self.__dict__, self.__record__.optional
        for name in self.__record__.rules:
            if (value := given.get(name)) is None and name in optional:
                fields[name] = None
            elif name not in ("request_type", "_extras"):
                fields[name] = self._apply(name, value)
        self.request_type = type
        self._extras = RequestExtras(
            _priority(priority, "Request.priority"),
            _integer(encoder_output_length, "Request.encoder_output_length"),
            rules.integer(1)(num_return_sequences, "Request.num_return_sequences"),
            _integer(language_adapter_uid, "Request.language_adapter_uid"),
        )
        self._check_together()

    def _apply(self, name: str, value: object) -> Any:
        if value is None and name == "sampling_config":
            return SamplingConfig()
        if value is None and name == "output_config":
            return OutputConfig()
        return self._ruled(name, value)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("input_token_ids", "max_tokens") and name in self.__dict__:
            raise AttributeError(f"Request.{name} is read-only")
        super().__setattr__(name, value)

    def _check_together(self) -> None:
        if not self.input_token_ids:
            raise CheckError("Request.input_token_ids must not be empty")
        if self.logits_post_processor is not None and self.logits_post_processor_name is not None:
            raise CheckError("Request: give logits_post_processor or logits_post_processor_name, not both")
        if self.guided_decoding_params is not None and self.sampling_config.beam_width > 1:
            raise CheckError("Request: guided decoding is not possible with beam search (beam_width > 1)")

    def __getstate__(self) -> tuple[Any, ...]:
        return (*super().__getstate__(), self._extras.priority, self._extras.encoder_output_length)

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 34:
            raise CheckError("Invalid Request state!")
        super().__setstate__(state[:-2])
        self.__dict__["_extras"] = RequestExtras(priority=state[-2], encoder_output_length=state[-1])

    def _restore(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self.__dict__["allotted_time_ms"] = None


def _endings(value: object, where: str) -> Endings:
    if isinstance(value, Endings):
        return value
    raise TypeError(f"{where} must be Endings, not {type(value).__name__}")


def _count(value: object, where: str) -> int:
    if type(value) is not int or value < 0:
        raise CheckError(f"{where} must be a whole number from 0 on, not {value!r}")
    return value


class LogProbs:
    """How many log-probabilities the texts of one request, or of several together, may have."""

    def __init__(self, most: float) -> None:
        self.most = self.left = most


def _most(value: object, where: str) -> "LogProbs | int":
    return value if isinstance(value, LogProbs) else _count(value, where)


class EngineRequest(Request, extensible=True):
    """A ``Request`` with what TensorRT-LLM's does not have; the same may be set as attributes of a ``Request``.

    With ``top_log_probs``, so many of the likeliest tokens come with each that was generated. With
    ``prompt_log_probs``, so many come with each of the prompt. ``most_log_probs`` bounds the log-probabilities of its
    texts, all of these counted; requests with the same ``LogProbs`` share them. With ``new_log_probs``, a stream has
    those of its new tokens only. With ``pooling``, the answer is a vector. ``return_cached_tokens`` asks how many
    tokens of the prompt were retained.
    """

    endings: Annotated[Endings, _endings] = Endings()
    top_log_probs: Annotated[int | None, rules.maybe(_count)] = None
    prompt_log_probs: Annotated[int | None, rules.maybe(_count)] = None
    most_log_probs: Annotated[LogProbs | float, _most] = math.inf
    new_log_probs: Annotated[bool, rules.boolean] = False
    pooling: Any = None
    return_cached_tokens: Annotated[bool, rules.boolean] = False

    @classmethod
    def of(cls, request: Request, **more: Any) -> Self:
        """A copy of ``request`` with ``more`` of these, which are checked. None is the same as not to set one."""
        own = cls.__new__(cls)
        vars(own).update(vars(request))
        for name, rule in _OURS.items():
            value = more.get(name, vars(own).pop(name, None))
            if value is not None:
                vars(own)[name] = value if rule is None else rule(value, f"Request.{name}")
        return own


_OURS = {name: rule for name, rule in EngineRequest.__record__.rules.items() if name not in Request.__record__.rules}


def extras_of(request: Request) -> RequestExtras:
    """The arguments of ``request`` that have no property."""
    return request._extras
