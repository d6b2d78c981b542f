"""One text, or several, that the executor generates for a row of a request."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from repoagent.errors import CancelledError, RepoAgentError, UnavailableError
from repoagent.executor import FinishReason, Request, Result
from repoagent.serving.backends.llm.detokenizing import Detokenizer
from repoagent.serving.backends.llm.llm_metrics import performance
from repoagent.serving.backends.llm.reply import Reply
from repoagent.serving.backends.llm.stopping import StopWords
from repoagent.serving.backends.llm.text_outputs import TextOutput, TextOutputs
from repoagent.serving.backends.llm.tokenizing import Tokenizer
from repoagent.serving.requests.tensor import Array

__all__ = ["Form", "Generation"]

_REASONS: Final = {
    FinishReason.NOT_FINISHED: "",
    FinishReason.END_ID: "stop",
    FinishReason.STOP_WORDS: "stop",
    FinishReason.LENGTH: "length",
}


@dataclass(frozen=True, slots=True)
class Form:
    """How a row wants its answer."""

    stream: bool = False
    """As it is generated; else each text at its end."""
    with_prompt: bool = False
    finish_reason: bool = False
    input_tokens: bool = False
    output_tokens: bool = False
    stop_words: Sequence[str] = ()


class Generation:
    """A request on its way through the executor, and how its results become responses."""

    def __init__(self, request: Request, reply: Reply, row: int, tokenizer: Tokenizer, form: Form) -> None:
        self.request = request
        self.reply = reply
        self._row = row
        self._tokenizer = tokenizer
        self._form = form
        self._prompt_text = tokenizer.decode(request.input_token_ids)
        config = request.sampling_config
        self._beams = config.beam_width > 1
        self.sequences = 1 if self._beams else config.num_return_sequences or 1
        """How many texts there are, each with responses of its own. Beams come together."""
        self._outputs: dict[int, TextOutputs] = {}
        """By the index of the sequence."""
        self._ended = 0
        self.generated = 0
        """Tokens so far, of all texts."""

    def take(self, result: Result) -> bool:
        """Send what ``result`` adds; True if nothing more is to come."""
        if (error := _failure(result)) is not None:
            self.reply.fail(error)
            return True
        outputs = self._outputs.get(result.sequence_index)
        if outputs is None:
            outputs = self._outputs[result.sequence_index] = TextOutputs(self._output, whole=self._beams)
        if outputs.done:  # At a word of its text; the executor does not know yet.
            return False
        outputs.add(result)
        new = sum(map(len, result.output_token_ids))
        self.generated = new if self._beams else self.generated + new
        self._ended += outputs.done
        over = self._ended == self.sequences
        if outputs.done or (self._form.stream and _has_news(result, outputs)):
            self.reply.send(self._row, self._values(result, outputs), last=over)
            outputs.forget()
        return over

    def _output(self) -> TextOutput:
        # Beams are compared with each other at their ends: there the executor decides alone where these are.
        words = () if self._beams else self._form.stop_words
        return TextOutput(
            Detokenizer(self._tokenizer, self.request.input_token_ids, self._prompt_text), StopWords(words)
        )

    def _values(self, result: Result, outputs: TextOutputs) -> dict[str, Any]:
        form = self._form
        prompt = self._prompt_text if form.with_prompt else ""
        values: dict[str, Any] = {"text_output": [prompt + output.text for output in outputs.texts]}
        if self.sequences > 1:
            values["sequence_index"] = [result.sequence_index]
        if form.finish_reason:
            values["finish_reason"] = [_REASONS[output.reason] for output in outputs.texts]
        if form.input_tokens:
            values["num_input_tokens"] = [len(self.request.input_token_ids)]
        if form.output_tokens:
            values["num_output_tokens"] = [outputs.tokens]
        if result.cum_log_probs is not None:
            values["cum_log_probs"] = result.cum_log_probs
            values["output_log_probs"] = outputs.log_probs()
            if "top_log_probs" in vars(result):
                values["token_log_probs"] = [entry for output in outputs.texts for entry in self._tokens(output)]
        if result.context_logits is not None and not outputs.begun:
            values["context_logits"] = result.context_logits
        if result.generation_logits is not None:
            values["generation_logits"] = self._logits(outputs)
        if result.request_perf_metrics is not None:
            values.update(performance(result.request_perf_metrics))
        return values

    def _tokens(self, output: TextOutput) -> list[str]:
        return token_log_probs(self._tokenizer, output.token_ids, output.log_probs, output.alternatives)

    def _logits(self, outputs: TextOutputs) -> Array:
        """While streaming [tokens, beams, vocabulary], as the executor gives them; else [beams, tokens, vocabulary]."""
        in_pieces = self.request.streaming
        logits = outputs.logits(axis=0 if in_pieces else 1)
        return logits.swapaxes(0, 1) if in_pieces and not self._form.stream else logits


def _failure(result: Result) -> RepoAgentError | None:
    reasons = result.finish_reasons
    if FinishReason.CANCELLED in reasons:
        return CancelledError("request cancelled")
    if FinishReason.TIMED_OUT in reasons:
        return UnavailableError("Request timeout expired")
    return None


def _has_news(result: Result, outputs: TextOutputs) -> bool:
    """Whether there is anything to send: not if all that came is a part of a character."""
    more = result.log_probs, result.generation_logits, result.request_perf_metrics
    return any(output.text for output in outputs.texts) or any(item is not None for item in more)


def token_log_probs(
    tokenizer: Tokenizer,
    tokens: Iterable[int],
    log_probs: Iterable[float],
    others: Iterable[Sequence[tuple[int, float]]],
) -> list[str]:
    """One object for each of ``tokens``; ``others``: for each, the likeliest ones with theirs, the likeliest first."""
    return [
        json.dumps(
            {
                **_entry(tokenizer, token, value),
                "top_logprobs": [_entry(tokenizer, other, its) for other, its in alternatives],
            }
        )
        for token, value, alternatives in zip(tokens, log_probs, others, strict=True)
    ]


def _entry(tokenizer: Tokenizer, token: int, value: float) -> dict[str, Any]:
    data = tokenizer.bytes_of(token)
    return {
        "token": data.decode(errors="replace"),
        "logprob": value if math.isfinite(value) else -9999.0,
        "bytes": list(data),
    }
