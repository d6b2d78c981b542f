"""Request: one prompt and everything the engine must know to continue it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, ClassVar

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
from repoagent_llm.types.enums import RequestType
from repoagent_llm.types.errors import CheckError
from repoagent_llm.types.guidance import GuidedDecodingParams
from repoagent_llm.types.lookahead import LookaheadDecodingConfig
from repoagent_llm.types.output import OutputConfig
from repoagent_llm.types.record import Record
from repoagent_llm.types.retention import KvCacheRetentionConfig
from repoagent_llm.types.sampling import SamplingConfig

__all__ = ["Request", "RequestExtras", "extras_of"]

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


def extras_of(request: Request) -> RequestExtras:
    """The arguments of ``request`` that have no property."""
    return request._extras
