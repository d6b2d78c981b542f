"""``/v1/completions``: the request and the answer."""

from collections.abc import Sequence
from typing import Any, Final

from repoagent_server.codec.json_text import loads
from repoagent_server.openai.answer import ChoicesAnswer, ranked_log_probs
from repoagent_server.openai.choice import Choice, Delta
from repoagent_server.openai.fields import Fields
from repoagent_server.openai.response_format import response_guide
from repoagent_server.openai.sampling import MOST_ALTERNATIVES, MOST_TOKENS, read_ranked, read_sampling
from repoagent_server.openai.text_request import TextRequest


class CompletionAnswer(ChoicesAnswer):
    """Texts."""

    prefix = "cmpl-"
    whole = "text_completion"
    part = "text_completion"

    def __init__(self, asked: TextRequest) -> None:
        super().__init__(asked)
        self._offsets: dict[int, int] = {}
        """Characters of each choice that its tokens so far stand for."""

    def chunks(self, choice: Choice, delta: Delta) -> list[dict[str, Any]]:
        """See :class:`ChoicesAnswer`."""
        text, log_probs = delta.content, delta.log_probs
        if not choice.begun:
            text, log_probs = self._before(choice) + text, [*self._echoed(choice), *log_probs]
        if not (text or log_probs or choice.reason):
            return []
        return [self._choice(choice, text, log_probs)]

    def choice(self, choice: Choice, deltas: list[Delta]) -> dict[str, Any]:
        """See :class:`ChoicesAnswer`."""
        text = self._before(choice) + "".join(delta.content for delta in deltas)
        log_probs = [*self._echoed(choice), *(entry for delta in deltas for entry in delta.log_probs)]
        found, ranked = self._choice(choice, text, log_probs), self.asked.ranked
        return found if ranked is None else {**found, "prompt_logprobs": ranked_log_probs(choice.prompt, ranked)}

    def _before(self, choice: Choice) -> str:
        """The prompt, if it is wanted; one of tokens is what they stand for."""
        if not self.asked.echo:
            return ""
        name, prompt = self.asked.prompts[choice.index // self.asked.sampling.count]
        return str(prompt) if name == _TEXT else _text_of(choice.prompt)

    def _echoed(self, choice: Choice) -> Sequence[bytes]:
        return choice.prompt if self.asked.echo else ()

    def _choice(self, choice: Choice, text: str, log_probs: Sequence[bytes]) -> dict[str, Any]:
        most = self.asked.top_log_probs
        return {
            "index": choice.index,
            "text": text,
            "logprobs": None if most is None else self._table(choice, list(map(loads, log_probs)), most),
            "finish_reason": choice.reason,
            "stop_reason": choice.stop_reason,
        }

    def _table(self, choice: Choice, log_probs: Sequence[Any], most: int) -> dict[str, Any]:
        """Log-probabilities in the older form: a list of each kind, with at most ``most`` alternatives."""
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
                else {item["token"]: item["logprob"] for item in (*entry["top_logprobs"][:most], entry)}
                for entry in log_probs
            ],
            "text_offset": offsets,
        }


def _text_of(entries: Sequence[bytes]) -> str:
    return b"".join(bytes(loads(entry)["bytes"]) for entry in entries).decode(errors="replace")


_TEXT: Final = "text_input"
_TOKENS: Final = "input_ids"
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
    echoes = echo and (alternatives is not None or any(name == _TOKENS for name, _ in prompts))
    wanted = [most for most in (ranked, (alternatives or 0) if echoes else None) if most is not None]
    asked = TextRequest(
        model=model,
        prompts=prompts,
        sampling=sampling,
        max_tokens=fields.whole("max_tokens", 0, MOST_TOKENS),
        usual_tokens=_MAX_TOKENS,
        guide=response_guide(fields),
        top_log_probs=alternatives,
        prompt_log_probs=max(wanted, default=None),
        ranked=ranked,
        usage=sampling.include_usage or not sampling.stream,
        echo=echo,
    )
    if echo and sum(len(prompt) for name, prompt in prompts if name == _TEXT) * sampling.count > _MOST_ECHOED:
        raise fields.wrong(
            "echo", f"cannot be honoured: the texts before all choices have over {_MOST_ECHOED} characters"
        )
    return asked


def _prompts(fields: Fields) -> list[tuple[str, Any]]:
    """A string, an array of strings, of tokens, or of arrays of tokens."""
    given = fields.get("prompt")
    if type(given) is str:
        return [(_TEXT, given)]
    if type(given) is list and given:
        if _are_tokens(given):
            return [(_TOKENS, given)]
        if len(given) > _MOST_PROMPTS:
            raise fields.wrong("prompt", f"must have at most {_MOST_PROMPTS} prompts")
        if all(type(item) is str for item in given):
            return [(_TEXT, item) for item in given]
        if all(type(item) is list and item and _are_tokens(item) for item in given):
            return [(_TOKENS, item) for item in given]
    raise fields.wrong(
        "prompt", "must be a string, an array of strings, an array of tokens, or one of arrays of tokens"
    )


def _are_tokens(items: list[Any]) -> bool:
    return all(type(item) is int and 0 <= item <= MOST_TOKENS for item in items)
