"""From the parameters of a row to a request of the executor."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.tensor import Array
from repoagent_llm import (
    Endings,
    GuidedDecodingParams,
    LoraConfig,
    OutputConfig,
    Request,
    SamplingConfig,
)
from repoagent_llm.backend.chat.renderer import ChatRenderer
from repoagent_llm.backend.request_limits import DEFAULT_REQUEST_LIMITS, RequestLimits
from repoagent_llm.backend.row_parameters import SAMPLING, RowParameters
from repoagent_llm.backend.tokenizing import Tokenizer
from repoagent_llm.lora.cache import task_of
from repoagent_llm.types.executor_errors import shown
from repoagent_llm.types.request import EngineRequest

#: Tokens of an answer whose request sets no length, as in vLLM.
_MAX_TOKENS: Final = 16
_MOST_BIAS: Final = 1_000_000
_MOST_ALTERNATIVES: Final = 20
_OUTPUTS: Final = ("return_log_probs", "return_context_logits", "return_generation_logits", "return_perf_metrics")


@dataclass(frozen=True, slots=True)
class Converter:
    """Makes the executor's requests of one model. ``end_ids`` are the model's own, from its decoder folder."""

    tokenizer: Tokenizer
    vocab_size: int
    end_ids: tuple[int, ...]
    guided: bool
    """Whether the executor can follow a grammar."""
    limits: RequestLimits = DEFAULT_REQUEST_LIMITS
    adapters: frozenset[str] = frozenset()
    """Those that requests may name."""
    chat: ChatRenderer | None = None
    """Makes prompts of conversations, if the model has a template."""
    pooling: str | None = None
    """What becomes of the hidden states of a prompt, where that is what the model answers with."""

    def request(self, asked: InferRequest, wanted: RowParameters, *, streaming: bool) -> EngineRequest:
        """The executor's request; its answers have no prompt in them.

        Raises:
            RepoAgentError: a value makes no sense, in the executor's words.
        """
        prompt = self.prompt(wanted)
        end_id, endings = self._endings(wanted)
        top, of_prompt = _alternatives(wanted, "top_log_probs"), _alternatives(wanted, "prompt_log_probs")
        alternatives = {} if top is None else {"return_log_probs": True}
        made = Request(
            prompt,
            wanted.get("max_tokens", self.limits.tokens if "messages" in wanted else _MAX_TOKENS),
            streaming=streaming,
            sampling_config=_sampling(wanted),
            output_config=OutputConfig.sparse(
                exclude_input_from_output=True,
                **{name: wanted[name] for name in _OUTPUTS if name in wanted} | alternatives,
            ),
            end_id=end_id,
            pad_id=wanted.get("pad_id"),
            stop_words=self._sayable(self.tokenizer.words(stop_texts(wanted))) or None,
            bad_words=self.tokenizer.words(_texts(wanted, "bad_words")) or None,
            embedding_bias=self._bias(wanted),
            lora_config=self._adapter(wanted),
            guided_decoding_params=self._guide(wanted),
            allotted_time_ms=_time_left(asked),
        )
        return EngineRequest.of(
            made,
            endings=endings,
            new_log_probs=True,
            top_log_probs=top,
            prompt_log_probs=of_prompt,
            pooling=self.pooling,
            return_cached_tokens=bool(wanted.get("return_num_cached_tokens", False)),
        )

    def prompt(self, wanted: RowParameters) -> list[int]:
        """The tokens of the prompt.

        Raises:
            InvalidArgumentError: something of the row is beyond a limit, or makes no sense.
        """
        self._check(wanted)
        prompt = _truncated(self._prompt(wanted), wanted)
        self.limits.check_tokens(prompt)
        return prompt

    def _prompt(self, wanted: RowParameters) -> list[int]:
        if "messages" in wanted:
            if self.chat is None:
                raise InvalidArgumentError(
                    "input 'messages' needs a chat template, which this model does not have: put chat_template.jinja "
                    "or tokenizer_config.json beside its tokenizer, or send text_input"
                )
            text = self.chat.render(wanted["messages"], wanted.get("chat_template_kwargs"))
            self.limits.check_prompt(text)
            return self.tokenizer.encode_whole(text)
        if "input_ids" in wanted:
            return self._own_tokens(wanted["input_ids"])
        return self.tokenizer.encode(wanted["text_input"])

    def _own_tokens(self, tokens: list[int]) -> list[int]:
        """A prompt that needs no tokenizer."""
        if tokens and (min(tokens) < 0 or max(tokens) >= self.vocab_size):
            raise InvalidArgumentError(f"input 'input_ids' has tokens outside of 0 to {self.vocab_size - 1}")
        return tokens

    def _check(self, wanted: RowParameters) -> None:
        """Nothing is made of a text before all of them are known to be within the limits."""
        if "text_input" in wanted:
            self.limits.check_prompt(wanted["text_input"])
        for name in ("messages", "chat_template_kwargs"):
            if name in wanted:
                self.limits.check_conversation(name, wanted[name])
        if "chat_template_kwargs" in wanted and "messages" not in wanted:
            raise InvalidArgumentError(
                "input 'chat_template_kwargs' is for 'messages', which the request does not have"
            )
        if "truncate_prompt_tokens" not in wanted:
            self.limits.check_tokens(_list(wanted, "input_ids"))
        for name in ("stop_words", "bad_words", "embedding_bias_words"):
            self.limits.check_words(name, _texts(wanted, name))
        self.limits.check_count("stop_token_ids", len(_list(wanted, "stop_token_ids")))
        if (guide := wanted.get("guided_decoding_guide")) is not None:
            self.limits.check_guide(guide)

    def _endings(self, wanted: RowParameters) -> tuple[int | None, Endings]:
        """The token that ends a text, and others that do: those of the model unless the request states otherwise."""
        others = list(_list(wanted, "stop_token_ids"))
        if "end_id" in wanted:
            return wanted["end_id"], Endings([], others)
        if wanted.get("ignore_eos") or not self.end_ids:
            return None, Endings([], others)
        return self.end_ids[0], Endings(list(self.end_ids[1:]), others)

    def _sayable(self, words: Iterable[list[int]]) -> list[list[int]]:
        """Words of tokens that the model has. A tokenizer may know more; the executor refuses what can never come."""
        return [word for word in words if max(word) < self.vocab_size]

    def _bias(self, wanted: RowParameters) -> Array | None:
        words, weights = wanted.get("embedding_bias_words", []), wanted.get("embedding_bias_weights", [])
        if len(words) != len(weights):
            raise InvalidArgumentError(
                f"embedding_bias_words and embedding_bias_weights must be as many, not {len(words)} and {len(weights)}"
            )
        of_tokens, allowed = wanted.get("logit_bias") or {}, wanted.get("allowed_token_ids")
        if not words and not of_tokens and allowed is None:
            return None
        bias = np.zeros(self.vocab_size, np.float32)
        if allowed is not None:
            bias[:] = -np.inf
            bias[self._tokens("allowed_token_ids", _list(wanted, "allowed_token_ids"))] = 0
        for token, weight in self._token_biases(of_tokens):
            bias[token] += weight
        for word, weight in zip(words, weights, strict=True):
            for tokens in self.tokenizer.words([word]):
                np.add.at(bias, tokens, weight)
        return bias

    def _tokens(self, name: str, given: Sequence[Any]) -> Sequence[int]:
        self.limits.check_count(name, len(given))
        if not given or any(type(token) is not int or not 0 <= token < self.vocab_size for token in given):
            raise InvalidArgumentError(f"{name} must be tokens of the model (0 to {self.vocab_size - 1})")
        return given

    def _token_biases(self, given: object) -> Iterator[tuple[int, float]]:
        if not isinstance(given, dict):
            raise InvalidArgumentError("logit_bias must be an object of tokens and numbers")
        self.limits.check_count("logit_bias", len(given))
        for name, weight in given.items():
            token = int(name) if name.isdecimal() and len(name) < 12 else -1
            if not 0 <= token < self.vocab_size or type(weight) not in (int, float) or not abs(weight) <= _MOST_BIAS:
                raise InvalidArgumentError(
                    f"logit_bias: {shown(name)}: {shown(weight)} is not a token of the model (0 to "
                    f"{self.vocab_size - 1}) with a number from {-_MOST_BIAS} to {_MOST_BIAS}"
                )
            yield token, float(weight)

    def _adapter(self, wanted: RowParameters) -> LoraConfig | None:
        name = wanted.get("lora_name")
        if name is None:
            return _numbered_adapter(wanted)
        if "lora_task_id" in wanted:
            raise InvalidArgumentError("lora_name and lora_task_id name one adapter each: send one of them")
        if name not in self.adapters:
            known = f"; there are {', '.join(sorted(self.adapters))}" if self.adapters else ""
            raise InvalidArgumentError(f"the model has no adapter {shown(name)}{known}")
        return LoraConfig(task_of(name))

    def _guide(self, wanted: RowParameters) -> GuidedDecodingParams | None:
        name, guide = wanted.get("guided_decoding_guide_type"), wanted.get("guided_decoding_guide")
        if name is None and guide is None:
            return None
        known = GuidedDecodingParams.GuideType.__members__
        if name is None or name.upper() not in known:
            names = ", ".join(map(str.lower, known))
            raise InvalidArgumentError(f"guided_decoding_guide_type must be one of {names}, not {shown(name or '')}")
        if not self.guided:
            raise InvalidArgumentError(
                "the request wants guided decoding, but the model's parameter 'guided_decoding_backend' is not set"
            )
        return GuidedDecodingParams(known[name.upper()], guide)


def _truncated(prompt: list[int], wanted: RowParameters) -> list[int]:
    """The end of the prompt, if the request wants no more of it."""
    most = wanted.get("truncate_prompt_tokens")
    if most is None:
        return prompt
    if type(most) is not int or most < 1:
        raise InvalidArgumentError("truncate_prompt_tokens must be a whole number above 0")
    return prompt[-most:]


def stop_texts(wanted: RowParameters) -> list[str]:
    """The texts at which an answer ends."""
    return _texts(wanted, "stop_words")


def _alternatives(wanted: RowParameters, name: str) -> int | None:
    """How many other tokens to report with each; None: not even the token itself."""
    count = wanted.get(name)
    if count is None or count == -1:
        return None
    if type(count) is not int or not 0 <= count <= _MOST_ALTERNATIVES:
        raise InvalidArgumentError(f"{name} must be a whole number from 0 to {_MOST_ALTERNATIVES}")
    if name == "top_log_probs" and wanted.get("beam_width", 1) > 1:
        raise InvalidArgumentError("top_log_probs is not possible with beam search (beam_width > 1)")
    return count


def _texts(wanted: RowParameters, name: str) -> list[str]:
    """A list of texts; an empty one counts as none, as where a row has fewer than the others."""
    texts = _list(wanted, name)
    if not all(isinstance(text, str) for text in texts):
        raise InvalidArgumentError(f"{name} must be texts, not {shown(texts)}")
    return [text for text in texts if text]


def _list(wanted: RowParameters, name: str) -> Sequence[Any]:
    value = wanted.get(name, [])
    return value if isinstance(value, list) else [value]


def _sampling(wanted: RowParameters) -> SamplingConfig:
    values = {name: wanted[name] for name in SAMPLING if name in wanted}
    # Zero, and -1 for top_k, are the ways of clients to leave these alone.
    for name, unset in (("beam_width", 0), ("num_return_sequences", 0), ("top_p", 0), ("top_k", -1)):
        if values.get(name) == unset:
            del values[name]
    if isinstance(values.get("early_stopping"), bool):
        values["early_stopping"] = int(values["early_stopping"])
    return SamplingConfig.sparse(**values)


def _numbered_adapter(wanted: RowParameters) -> LoraConfig | None:
    if "lora_task_id" in wanted:
        return LoraConfig(wanted["lora_task_id"], wanted.get("lora_weights"), wanted.get("lora_config"))
    if "lora_weights" in wanted or "lora_config" in wanted:
        raise InvalidArgumentError("lora_weights and lora_config need lora_task_id, under which the adapter is kept")
    return None


def _time_left(asked: InferRequest) -> timedelta | None:
    if not asked.asked.timeout_us:
        return None
    waited = (time.monotonic_ns() - asked.arrival_ns) // 1000
    return timedelta(microseconds=max(1, asked.asked.timeout_us - waited))
