"""Whether this executor can do what a request asks; what it cannot do is refused here, by name."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent_llm.engine.prompt_table import PromptTable, check_prompt_table
from repoagent_llm.runner.block_pool import BLOCK_TOKENS, blocks_for
from repoagent_llm.runner.protocol import RunnerInfo
from repoagent_llm.types.decoding_config import LogitsPostProcessorConfig
from repoagent_llm.types.enums import KvCacheTransferMode, RequestType
from repoagent_llm.types.executor_config import ExecutorConfig
from repoagent_llm.types.executor_errors import CheckError, UnsupportedFeatureError
from repoagent_llm.types.request import Request, SamplingConfig, extras_of

_MOST_TEXTS: Final = 1024
"""Of one prompt."""
_FINITE: Final = (
    "temperature",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "beam_search_diversity_rate",
    "length_penalty",
)


def check_sampling(config: SamplingConfig, longest: int) -> None:
    """``longest``: how many tokens a sequence may hold."""
    for name in _FINITE:
        value = getattr(config, name)
        if value is not None and not math.isfinite(value):
            raise CheckError(f"SamplingConfig.{name} must be a finite number, not {value:g}")
    if config.beam_width > 1 and config.length_penalty:
        _check_length_penalty(config.length_penalty, longest)


def _check_length_penalty(penalty: float, longest: int) -> None:
    try:
        _ = float(longest) ** penalty
    except OverflowError:
        raise CheckError(
            f"SamplingConfig.length_penalty {penalty:g} is too large: {longest} tokens ** length_penalty is "
            "not a finite number"
        ) from None


def check_tokens(request: Request, size: int, virtual: int) -> None:
    """``size``: of the vocabulary; ``virtual``: how many tokens a prompt table adds to it."""
    highest, lowest = max(request.input_token_ids), min(request.input_token_ids)
    if lowest < 0 or highest >= size + virtual:
        wrong = lowest if lowest < 0 else highest
        more = f" and the {virtual} of its prompt table" if virtual else ""
        raise CheckError(f"token id {wrong} in the prompt is not in the vocabulary of {size} tokens{more}")
    if request.embedding_bias is not None:
        _check_bias(request.embedding_bias, size)
    _check_words("bad word", request.bad_words or (), size)
    _check_words("stop word", request.stop_words or (), size)


def _check_bias(bias: npt.NDArray[Any], size: int) -> None:
    if bias.shape != (size,):
        raise CheckError(f"embedding bias shape is not as expected: it must be ({size},), not {tuple(bias.shape)}")
    if bias.dtype.kind not in "fiub":
        raise CheckError(f"embedding bias must hold numbers, not {bias.dtype}")
    if np.isnan(bias).any():
        raise CheckError(f"embedding bias is NaN for token {int(np.isnan(bias).argmax())}")


def _check_words(kind: str, words: Sequence[Sequence[int]], size: int) -> None:
    for number, word in enumerate(words):
        if not word:
            raise CheckError(f"{kind} {number} is empty")
        if any(not 0 <= token < size for token in word):
            raise CheckError(f"{kind} {list(word)} has a token that is not in the vocabulary of {size} tokens")


def check_draft_logits(logits: npt.NDArray[Any], size: int) -> None:
    """``size``: of the vocabulary."""
    if logits.shape[1] != size:
        raise CheckError(f"draft logits have {logits.shape[1]} columns, the vocabulary {size}")
    if logits.dtype.kind not in "fiu":
        raise CheckError(f"draft logits must be numbers, not {logits.dtype}")
    if not np.isfinite(logits.max(axis=1)).all():
        raise CheckError("draft logits contain infinite or NaN values, or rows of -inf only")


# Properties of a request that need a model or a machine that no runner here has.
_UNSUPPORTED = (
    "position_ids",
    "multimodal_input",
    "multimodal_embedding",
    "mrope_config",
    "encoder_input_token_ids",
    "context_phase_params",
    "encoder_input_features",
    "cross_attention_mask",
    "eagle_config",
    "skip_cross_attn_blocks",
)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one request may need at most. ``shares``: its sequences share the blocks of its prompt.

    ``most_blocks``: that a sequence ever holds, where all layers have windows.
    """

    sequences: int
    blocks: int
    prompt_tokens: int | None
    shares: bool = False
    most_blocks: int | None = None


class RequestChecks:
    """The checks of one executor. Each raises ``CheckError`` or ``UnsupportedFeatureError``."""

    def __init__(self, info: RunnerInfo, config: ExecutorConfig, capacity: Capacity) -> None:
        self._info = info
        self._config = config
        self._capacity = capacity
        self._processors = config.logits_post_processor_config or LogitsPostProcessorConfig()
        self._named = tuple(self._processors.processor_map or ())  # those that there are from the start

    def check(self, request: Request) -> tuple[int, PromptTable | None]:
        """Refuse what cannot be done; how many tokens may be made, and the rows of the prompt's own tokens."""
        _check_supported(request)
        check_sampling(request.sampling_config, self._info.max_seq_len)
        self._check_beams(request)
        self._check_outputs(request)
        self._check_lookahead(request)
        length = len(request.input_token_ids)
        longest = self._check_length(request, length)
        table = check_prompt_table(request, self._info, reuse=self._config.kv_cache_config.enable_block_reuse)
        check_tokens(request, self._info.vocab_size, 0 if table is None else len(table.rows))
        return min(request.max_tokens, longest - length), table

    def _check_lookahead(self, request: Request) -> None:
        """A request may make the executor's sizes smaller."""
        wanted = request.lookahead_config
        if wanted is None:
            return
        decoding = self._config.decoding_config
        most = None if decoding is None else decoding.lookahead_decoding_config
        if most is None:
            raise CheckError("Request.lookahead_config needs an executor with DecodingConfig.lookahead_decoding_config")
        for name in ("max_window_size", "max_ngram_size", "max_verification_set_size"):
            if getattr(wanted, name) > getattr(most, name):
                raise CheckError(
                    f"Request.lookahead_config: {name} {getattr(wanted, name)} is more than the executor's "
                    f"({getattr(most, name)})"
                )

    def _check_beams(self, request: Request) -> None:
        config = request.sampling_config
        if config.beam_width > self._config.max_beam_width:
            raise CheckError(
                f"beam_width {config.beam_width} is more than ExecutorConfig.max_beam_width "
                f"({self._config.max_beam_width})"
            )
        if config.beam_width > 1 and request.guided_decoding_params is not None:
            raise CheckError("guided decoding is not possible with beam search (beam_width > 1)")
        if config.beam_width > 1 and request.external_draft_tokens_config is not None:
            raise CheckError("external draft tokens are not possible with beam search (beam_width > 1)")
        if config.beam_width > 1 and returned_beams(request) > config.beam_width:
            raise CheckError(
                f"num_return_sequences must be <= beam_width ({config.beam_width}), not {returned_beams(request)}"
            )
        if config.beam_width > self._capacity.sequences:
            raise CheckError(
                f"the request needs {config.beam_width} sequences at once; this executor has {self._capacity.sequences}"
            )
        if sampled_sequences(request) > _MOST_TEXTS:
            raise CheckError(f"num_return_sequences must be at most {_MOST_TEXTS}, not {sampled_sequences(request)}")

    def _check_outputs(self, request: Request) -> None:
        wanted = request.output_config
        if wanted.return_encoder_output:
            raise UnsupportedFeatureError("OutputConfig.return_encoder_output", "the model has no encoder")
        for extra in wanted.additional_model_outputs or ():
            if extra.name not in self._info.extra_outputs:
                raise CheckError(
                    f"additional output {extra.name!r} is not among ExecutorConfig.additional_model_outputs "
                    f"({', '.join(self._info.extra_outputs) or 'none'})"
                )
        name = request.logits_post_processor_name
        if name == Request.BATCHED_POST_PROCESSOR_NAME:
            if self._processors.processor_batched is None:
                raise CheckError("the batched logits post-processor is asked for, but processor_batched is not set")
        elif name is not None and name not in self._named:
            known = ", ".join(self._named) or "none"
            raise CheckError(f"logits post-processor {name!r} is not in LogitsPostProcessorConfig (known: {known})")

    def _check_length(self, request: Request, length: int) -> int:
        """How many tokens the request's sequences may hold."""
        limit = self._info.max_seq_len
        if length >= limit:
            raise CheckError(
                f"Prompt length ({length}) must be less than the maximum sequence length ({limit}), which "
                "max_seq_len sets"
            )
        whole = self._capacity.prompt_tokens
        if whole is not None and length > whole:
            raise CheckError(
                f"Prompt length ({length}) exceeds max_num_tokens ({whole}); set ExecutorConfig.enable_chunked_context"
            )
        width = request.sampling_config.beam_width
        most = self._capacity.most_blocks
        if most is not None and width * most <= self._capacity.blocks:
            return limit
        shared = length // BLOCK_TOKENS if self._capacity.shares else 0
        least = shared + width * (blocks_for(length + 1) - shared)
        if least > self._capacity.blocks:
            raise CheckError(f"the request needs {least} KV blocks at least; this executor has {self._capacity.blocks}")
        return min(limit, (shared + (self._capacity.blocks - shared) // max(1, width)) * BLOCK_TOKENS)

    def check_drafts(self, request: Request) -> None:
        """What comes as drafts must be tokens that a draft model could have made."""
        config = request.external_draft_tokens_config
        if config is None:
            return
        if config.fast_logits:
            raise UnsupportedFeatureError(
                "ExternalDraftTokensConfig.fast_logits", "give the draft's logits with the request"
            )
        if config.logits is not None:
            check_draft_logits(config.logits, self._info.vocab_size)
        wrong = next((token for token in config.tokens if not 0 <= token < self._info.vocab_size), None)
        if wrong is not None:  # the graph would fail, and with it every request of the iteration
            raise CheckError(f"draft token {wrong} is not in the vocabulary of {self._info.vocab_size} tokens")
        if sampled_sequences(request) > 1:
            raise CheckError("external draft tokens are not possible with several returned sequences")
        if request.logits_post_processor is not None or request.logits_post_processor_name is not None:
            raise CheckError("external draft tokens are not possible with a logits post-processor")


def _check_supported(request: Request) -> None:
    for name in _UNSUPPORTED:
        if getattr(request, name) is not None:
            raise UnsupportedFeatureError(f"Request.{name}")
    retention = request.kv_cache_retention_config
    if retention is not None and (retention.transfer_mode is not KvCacheTransferMode.DRAM or retention.directory):
        raise UnsupportedFeatureError(
            "KvCacheRetentionConfig.transfer_mode and directory", "retained blocks lie in host memory, not in files"
        )
    if request.request_type is not RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION:
        raise UnsupportedFeatureError(f"RequestType.{request.request_type.name}", "both phases run here")
    if extras_of(request).language_adapter_uid is not None:
        raise UnsupportedFeatureError("Request.language_adapter_uid")
    if extras_of(request).encoder_output_length is not None:
        raise UnsupportedFeatureError("Request.encoder_output_length", "the model has no encoder")


def returned_beams(request: Request) -> int:
    """How many of the beams come back: all, unless the request or its sampling configuration sets how many."""
    return _wanted_sequences(request) or request.sampling_config.beam_width


def sampled_sequences(request: Request) -> int:
    """How many sequences are sampled; beams are counted apart."""
    return 1 if request.sampling_config.beam_width > 1 else _wanted_sequences(request) or 1


def _wanted_sequences(request: Request) -> int | None:
    """Where a request says it itself, its sampling configuration does not matter."""
    wanted = extras_of(request).num_return_sequences
    return wanted if wanted > 1 else request.sampling_config.num_return_sequences
