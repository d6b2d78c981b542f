"""The fields that chats and completions share: how a text is sampled, and where it ends."""

import secrets
from dataclasses import dataclass
from typing import Any, Final

from repoagent_server.openai.fields import Fields

MOST_CHOICES: Final = 128
MOST_TOKENS: Final = 2**31 - 1
MOST_ALTERNATIVES: Final = 20
_MOST_STOPS: Final = 1024
_MOST_WORDS: Final = 64
_LONGEST_WORDS: Final = 4096
_MOST_BIASES: Final = 1024
_SERVICE: Final = "the server has one tier"
_STORE: Final = "nothing is stored"
_REFUSED: Final[dict[str, tuple[str, Any]]] = {
    "use_beam_search": ("texts are sampled", False),
    "length_penalty": ("it is of beams, and texts are sampled", 1.0),
    "logits_processors": ("the server runs no code of clients", []),
    "include_stop_str_in_output": ("texts end before what stops them", False),
    "skip_special_tokens": ("the model's parameter 'skip_special_tokens' sets it", True),
    "prompt_embeds": ("prompts are texts and tokens", []),
    "chat_template": ("the model has its own", ""),
}
"""vLLM's fields that would change the text, and the value at which each does not."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """``values``: those that are given, by vLLM's names. ``seed``: one for a request without, so that two differ.
    ``adapter``: the number under which the model keeps it."""

    values: dict[str, Any]
    stop: tuple[str, ...]
    count: int
    seed: int | None
    stream: bool
    include_usage: bool
    adapter: int | None = None
    continuous_usage: bool = False
    """Whether each chunk has the usage so far."""


def read_sampling(fields: Fields) -> Sampling:
    """Read and check them.

    Raises:
        FieldError: a value makes no sense, or cannot be honoured.
    """
    found: dict[str, Any] = {
        "temperature": fields.real("temperature", 0, 2),
        "top_p": fields.real("top_p", 0, 1),
        "presence_penalty": fields.real("presence_penalty", -2, 2),
        "frequency_penalty": fields.real("frequency_penalty", -2, 2),
        "seed": _seed(fields),
        # vLLM's, which its users send through the client's extra_body.
        "top_k": fields.whole("top_k", -1, MOST_TOKENS),
        "min_p": fields.real("min_p", 0, 1),
        "repetition_penalty": fields.real("repetition_penalty", 0.001, 1000),
        "min_tokens": fields.whole("min_tokens", 0, MOST_TOKENS),
        "ignore_eos": fields.truth("ignore_eos") or None,
        "stop_token_ids": _tokens(fields, "stop_token_ids"),
        "logit_bias": _bias(fields),
        "stop": _stop(fields) or None,
        "bad_words": fields.texts("bad_words", _MOST_STOPS) or None,
        "allowed_token_ids": _tokens(fields, "allowed_token_ids"),
        "truncate_prompt_tokens": fields.whole("truncate_prompt_tokens", 1, MOST_TOKENS),
    }
    count = fields.whole("n", 1, MOST_CHOICES) or 1
    found["n"] = count if count > 1 else None
    values = {name: value for name, value in found.items() if value is not None}
    if values.get("top_p") == 0:
        values["top_k"] = 1  # what OpenAI means: the likeliest token
        del values["top_p"]
    stream = fields.truth("stream")
    include_usage, continuous = _usage(fields, stream)
    fields.refuse("service_tier", _SERVICE, "auto", "default")
    fields.refuse("store", _STORE, False)
    for name, (text, usual) in _REFUSED.items():
        fields.refuse(name, text, usual)
    adapter = fields.whole("lora_task_id", 0, 2**64 - 1)
    seed = None if "seed" in values or values.get("temperature") == 0 else secrets.randbits(63)
    stop = tuple(values.get("stop", ()))
    return Sampling(values, stop, count, seed, stream, include_usage, adapter, continuous)


def read_ranked(fields: Fields, *, stream: bool) -> int | None:
    """vLLM's ``prompt_logprobs``: how many of the likeliest tokens are wanted at each place of the prompt.

    Raises:
        FieldError: the value makes no sense, or the answer is a stream.
    """
    found = fields.whole("prompt_logprobs", 0, MOST_ALTERNATIVES)
    if found is not None and stream:
        raise fields.wrong("prompt_logprobs", "cannot be honoured: streams have none", "unsupported_value")
    return found


def _stop(fields: Fields) -> list[str]:
    """Each piece of a text is compared with all of them."""
    words = fields.texts("stop", _MOST_WORDS)
    if sum(map(len, words)) > _LONGEST_WORDS:
        raise fields.wrong("stop", f"must have at most {_LONGEST_WORDS} characters in all")
    return words


def _seed(fields: Fields) -> int | None:
    """Negative ones are 64 bits like any other."""
    seed = fields.whole("seed", -(2**63), 2**64 - 1)
    return None if seed is None else seed % 2**64


def _usage(fields: Fields, stream: bool) -> tuple[bool, bool]:
    """Whether a stream ends with the usage, and whether each of its chunks has it, too."""
    options = fields.object("stream_options")
    if options is None:
        return False, False
    if not stream:
        raise fields.wrong("stream_options", "is only allowed when 'stream' is true")
    included, continuous = options.truth("include_usage"), options.truth("continuous_usage_stats")
    return included, included and continuous


def _tokens(fields: Fields, name: str) -> list[int] | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not list or len(value) > _MOST_STOPS or any(type(item) is not int for item in value):
        raise fields.wrong(name, f"must be an array of at most {_MOST_STOPS} tokens")
    return value


def _bias(fields: Fields) -> dict[str, float] | None:
    given = fields.object("logit_bias")
    if given is None or not given.values:
        return None
    if len(given.values) > _MOST_BIASES:
        raise fields.wrong("logit_bias", f"must have at most {_MOST_BIASES} tokens")
    if not all(name.isascii() and name.isdigit() for name in given.values):
        raise fields.wrong("logit_bias", "must be an object of token ids and numbers")
    return {name: given.real(name, -100, 100) or 0.0 for name in given.values}
