"""``/v1/completions``: the request."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from repoagent_server.codec.json_text import loads
from repoagent_server.openai.answer import TextRequest, ranked_log_probs
from repoagent_server.openai.choice import Choice, Delta
from repoagent_server.openai.fields import Fields
from repoagent_server.openai.generation_request import GenerationRequest
from repoagent_server.openai.response_format import response_guide
from repoagent_server.openai.sampling import MOST_ALTERNATIVES, MOST_TOKENS, read_ranked, read_sampling


class CompletionForm:
    """Writes one response."""

    prefix = "cmpl-"
    whole = "text_completion"
    part = "text_completion"

    def __init__(self, asked: TextRequest) -> None:
        self._most = asked.asks[0].top_log_probs
        """How many alternatives the older form has of each token; None: it is not wanted."""
        self._ranked = asked.ranked
        self._echo = asked.echo
        self._prompts = [ask.text for ask in asked.asks]
        self._count = asked.sampling.count
        self._offsets: dict[int, int] = {}
        """Characters of each choice that its tokens so far stand for."""

    def chunks(self, choice: Choice, delta: Delta) -> list[dict[str, Any]]:
        """The members of ``choices`` that a piece makes, one of each chunk."""
        text, log_probs = delta.content, delta.log_probs
        if not choice.begun:
            text, log_probs = self._before(choice) + text, [*self._echoed(choice), *log_probs]
        if not (text or log_probs or choice.reason):
            return []
        return [self._choice(choice, text, log_probs)]

    def choice(self, choice: Choice, deltas: list[Delta]) -> dict[str, Any]:
        """The member of ``choices`` of a whole text."""
        text = self._before(choice) + "".join(delta.content for delta in deltas)
        log_probs = [*self._echoed(choice), *(entry for delta in deltas for entry in delta.log_probs)]
        return {**self._choice(choice, text, log_probs), **self._of_prompt(choice)}

    def more(self, first: Choice) -> dict[str, Any]:
        """Nothing: each choice has what is known of its prompt."""
        return {}

    def _before(self, choice: Choice) -> str:
        """The prompt, if it is wanted; one of tokens is what they stand for."""
        if not self._echo:
            return ""
        text = self._prompts[choice.index // self._count]
        return text if text is not None else _text_of(choice.prompt)

    def _echoed(self, choice: Choice) -> Sequence[bytes]:
        return choice.prompt if self._echo else ()

    def _of_prompt(self, choice: Choice) -> dict[str, Any]:
        return {} if self._ranked is None else {"prompt_logprobs": ranked_log_probs(choice.prompt, self._ranked)}

    def _choice(self, choice: Choice, text: str, log_probs: Sequence[bytes]) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": text,
            "logprobs": self._table(choice, list(map(loads, log_probs))) if self._most is not None else None,
            "finish_reason": choice.reason,
            "stop_reason": choice.stop_reason,
        }

    def _table(self, choice: Choice, log_probs: Sequence[Any]) -> dict[str, Any]:
        """Log-probabilities in the older form: a list of each kind."""
        offset = self._offsets.get(choice.index, 0)
        offsets = []
        for entry in log_probs:
            offsets.append(offset)
            offset += len(entry["token"])
        self._offsets[choice.index] = offset
        return {
            "tokens": [entry["token"] for entry in log_probs],
            "token_logprobs": [entry["logprob"] for entry in log_probs],
            "top_logprobs": [
                None  # The first of a prompt, before which nothing is.
                if entry["logprob"] is None
                else {item["token"]: item["logprob"] for item in (*entry["top_logprobs"][: self._most], entry)}
                for entry in log_probs
            ],
            "text_offset": offsets,
        }


def _text_of(entries: Sequence[bytes]) -> str:
    return b"".join(bytes(loads(entry)["bytes"]) for entry in entries).decode(errors="replace")


_MAX_TOKENS: Final = 16
_MOST_PROMPTS: Final = 1024
_MOST_ECHOED: Final = 1 << 25


def read_completion(document: object) -> TextRequest:
    """Read the body of a request.

    Raises:
        InvalidArgumentError: something makes no sense, or cannot be honoured.
    """
    fields = Fields(document)
    model = fields.required("model")
    sampling = read_sampling(fields)
    fields.refuse("suffix", "models here continue a text, and fill no gap", "")
    best = fields.whole("best_of", 1, MOST_TOKENS)
    if best is not None and best != sampling.count:
        raise fields.wrong("best_of", "cannot be honoured: it must equal 'n'")
    alternatives = fields.whole("logprobs", 0, MOST_ALTERNATIVES)
    echo = fields.truth("echo")
    ranked = read_ranked(fields, stream=sampling.stream)
    prompts = _prompts(fields)
    if len(prompts) * sampling.count > _MOST_PROMPTS:
        raise fields.wrong("n", f"cannot be honoured: there may be {_MOST_PROMPTS} choices for all prompts together")
    echoes = echo and (alternatives is not None or any("tokens" in prompt for prompt in prompts))
    wanted = [most for most in (ranked, (alternatives or 0) if echoes else None) if most is not None]
    values: Mapping[str, Any] = {
        "max_tokens": fields.whole("max_tokens", 0, MOST_TOKENS),
        "usual_tokens": _MAX_TOKENS,
        "sampling": sampling,
        "guide": response_guide(fields),
        "top_log_probs": alternatives,
        "prompt_log_probs": max(wanted, default=None),
        "prompt_field": "echo" if ranked is None else "prompt_logprobs",
        "stream": sampling.stream,
        "usage": sampling.include_usage or not sampling.stream,
    }
    asks = [GenerationRequest(**prompt, **values) for prompt in prompts]
    if echo and sum(len(ask.text or "") for ask in asks) * sampling.count > _MOST_ECHOED:
        raise fields.wrong(
            "echo", f"cannot be honoured: the texts before all choices have over {_MOST_ECHOED} characters"
        )
    return TextRequest(model=model, asks=asks, sampling=sampling, echo=echo, ranked=ranked)


def _prompts(fields: Fields) -> list[dict[str, Any]]:
    """A string, an array of strings, of tokens, or of arrays of tokens."""
    given = fields.get("prompt")
    if type(given) is str:
        return [{"text": given}]
    if type(given) is list and given:
        if _are_tokens(given):
            return [{"tokens": given}]
        if len(given) > _MOST_PROMPTS:
            raise fields.wrong("prompt", f"must have at most {_MOST_PROMPTS} prompts")
        if all(type(item) is str for item in given):
            return [{"text": item} for item in given]
        if all(type(item) is list and item and _are_tokens(item) for item in given):
            return [{"tokens": item} for item in given]
    raise fields.wrong(
        "prompt", "must be a string, an array of strings, an array of tokens, or one of arrays of tokens"
    )


def _are_tokens(items: list[Any]) -> bool:
    return all(type(item) is int and 0 <= item <= MOST_TOKENS for item in items)
