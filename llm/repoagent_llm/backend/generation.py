"""One text, or several, that the executor generates for a row of a request, and the reply to it."""

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from repoagent.errors import CancelledError, RepoAgentError, UnavailableError
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.senders import answer_error
from repoagent.serving.requests.tensor import NUMPY_TYPES, Array, DataType, Tensor
from repoagent_llm import FinishReason, Result
from repoagent_llm.backend.llm_metrics import Course, performance
from repoagent_llm.backend.tensors import EMBEDDING, OUTPUTS, POOLED_OUTPUTS
from repoagent_llm.backend.text_outputs import StopWords, TextOutput, TextOutputs
from repoagent_llm.backend.tokenizing import Detokenizer, Tokenizer
from repoagent_llm.types.request import EngineRequest


class Reply:
    """The answer to one request of ``rows`` texts. Used by one thread at a time."""

    def __init__(
        self, request: InferRequest, version: str, rows: int, outputs: Collection[str], *, batching: bool
    ) -> None:
        """``outputs``: the names that the model's configuration has. ``batching``: tensors have a batch size."""
        self._request = request
        self._version = version
        self._open = rows
        self._several = rows > 1
        self._outputs = set(outputs).intersection(request.requested_outputs or outputs)
        self._batching = batching
        self._cancel: Callable[[], None] = lambda: None

    @property
    def over(self) -> bool:
        """Whether its end has been sent."""
        return not self._open

    def expect(self, parts: int) -> None:
        """All rows together come in so many parts, each with an end of its own."""
        self._open = parts

    def begin(self, cancel: Callable[[], None], hold: Callable[[bool], None]) -> None:
        """All rows are on their way; ``cancel`` ends those that are, for when no one waits for them any more.

        ``hold`` lets others go before them, for as long as the client does not read what it was sent."""
        self._cancel = cancel
        self._request.on_behind = hold
        if self._request.behind:
            hold(True)
            hold(self._request.behind)  # It may read on since that look.
        self._request.on_cancel = cancel
        if self._request.cancelled or not self._open:
            cancel()

    def send(self, row: int, values: Mapping[str, Any], *, last: bool) -> None:
        """Send outputs of a row; ``last``: nothing more comes of it, or of this part of it."""
        if not self._open:
            return
        self._open -= last
        if self._several:
            values = {**values, "batch_index": [row]}
        outputs = {name: self._tensor(name, value) for name, value in values.items() if name in self._outputs}
        response = InferResponse(self._request.model_name, self._version, self._request.asked.id, outputs)
        self._request.send(response, not self._open)

    def fail(self, error: RepoAgentError) -> None:
        """End with an error, whatever rows are still open."""
        if self._open:
            self._open = 0
            self._cancel()
            answer_error(self._request, error, self._version)

    def _tensor(self, name: str, value: Any) -> Tensor:
        data_type = (OUTPUTS.get(name) or POOLED_OUTPUTS[name]).data_type
        array = _texts(value) if data_type is DataType.BYTES else np.asarray(value, NUMPY_TYPES[data_type])
        return Tensor(data_type, array[np.newaxis] if self._batching else array)


def _texts(values: list[str]) -> Array:
    return np.array([text.encode() for text in values], np.object_)


_REASONS: Final = {
    FinishReason.NOT_FINISHED: "",
    FinishReason.END_ID: "stop",
    FinishReason.STOP_WORDS: "stop",
    FinishReason.LENGTH: "length",
}
_TAIL: Final = 16
"""Tokens at a prompt's end that may stand for that mark and for blanks behind it."""
_FAILURES: Final[Mapping[FinishReason, tuple[type[RepoAgentError], str]]] = {
    FinishReason.CANCELLED: (CancelledError, "request cancelled"),
    FinishReason.TIMED_OUT: (UnavailableError, "Request timeout expired"),
}


@dataclass(frozen=True, slots=True)
class Form:
    """How a row wants its answer."""

    stream: bool = False
    """As it is generated; else each text at its end."""
    with_prompt: bool = False
    only_prompt: bool = False
    """Whether what is generated is left out: one token was, for what is known of the prompt only then."""
    finish_reason: bool = False
    input_tokens: bool = False
    output_tokens: bool = False
    cached_tokens: bool = False
    reasoning_open: bool = False
    """Whether the first response has ``reasoning_open``: the prompt ends where a model begins to think."""
    stop_words: Sequence[str] = ()


class Generation:
    """A request on its way through the executor, and how its results become responses."""

    def __init__(self, request: EngineRequest, reply: Reply, row: int, tokenizer: Tokenizer, form: Form) -> None:
        self.request = request
        self.reply = reply
        self._row = row
        self._tokenizer = tokenizer
        self._form = form
        config = request.sampling_config
        self._beams = config.beam_width > 1
        self.sequences = 1 if self._beams else config.num_return_sequences or 1
        """How many texts there are, each with responses of its own. Beams come together."""
        self._stop_ids = frozenset(request.endings.stop_ids)
        self._outputs: dict[int, TextOutputs] = {}
        """By the index of the sequence."""
        self._ended = 0
        self.generated = 0
        """Tokens so far, of all texts."""
        self.adapter = ""
        """The name or the number of its LoRA adapter."""
        self.course = Course()
        self.streamed = request.streaming and self.sequences == 1 and not self._beams
        """Whether it is one text, whose tokens the executor gives as they are made."""

    def take(self, result: Result) -> bool:
        """Send what ``result`` adds; True if nothing more is to come."""
        if any(self._fails(reason) for reason in result.finish_reasons):
            return True
        if (vector := vars(result).get(EMBEDDING)) is not None:
            read = {EMBEDDING: vector, "num_input_tokens": [len(self.request.input_token_ids)]}
            self.reply.send(self._row, read, last=True)
            self.course.ending = "stop"
            return True
        outputs = self._of(result.sequence_index)
        if outputs.done:  # At a word of its text; the executor does not know yet.
            return False
        outputs.add(result)
        new = sum(map(len, result.output_token_ids))
        self.generated = new if self._beams else self.generated + new
        self._ended += outputs.done
        over = self._ended == self.sequences
        if outputs.done or (self._form.stream and _has_news(result, outputs)):
            values = self._texts(outputs, result.sequence_index)
            self._add_values(values, result, outputs)
            self.reply.send(self._row, values, last=over)
            self._end(outputs)
            outputs.forget()
        return over

    def take_tokens(self, tokens: Sequence[int], reason: FinishReason) -> bool:
        """The same as ``take`` for what most results of streams are, but faster: of one text, and nothing else."""
        if self._fails(reason):
            return True
        outputs = self._of(0)
        output = outputs.add_tokens(tokens, reason)
        self.generated += len(tokens)
        if outputs.done or (self._form.stream and output.text):
            self.reply.send(self._row, self._texts(outputs, 0), last=outputs.done)
            self._end(outputs)
            outputs.forget()
        return outputs.done

    def _end(self, outputs: TextOutputs) -> None:
        """Note how the text ended, if it did."""
        if outputs.done:
            self.course.ending = _REASONS[outputs.texts[0].reason] or "abort"

    def _fails(self, reason: FinishReason) -> bool:
        """Whether the text ends by an error; then that has been sent."""
        if (failure := _FAILURES.get(reason)) is None:
            return False
        self.course.ending = "abort"
        kind, text = failure
        self.reply.fail(kind(text))
        return True

    def _of(self, sequence: int) -> TextOutputs:
        outputs = self._outputs.get(sequence)
        if outputs is None:
            outputs = self._outputs[sequence] = TextOutputs(self._output, whole=self._beams)
        return outputs

    def _output(self) -> TextOutput:
        # Beams are compared with each other at their ends: there the executor decides alone where these are.
        words = () if self._beams else self._form.stop_words
        return TextOutput(Detokenizer(self._tokenizer, self.request.input_token_ids), StopWords(words))

    @cached_property
    def _prompt_text(self) -> str:
        """Many answers need no text of their prompt, and that of a long one takes a while to make."""
        return self._tokenizer.decode(self.request.input_token_ids)

    @cached_property
    def _opens_reasoning(self) -> bool:
        """Some chat templates end with the mark at which a model begins to think."""
        return self._tokenizer.decode(self.request.input_token_ids[-_TAIL:]).rstrip().endswith("<think>")

    def _texts(self, outputs: TextOutputs, sequence: int) -> dict[str, Any]:
        """The values of every response."""
        form = self._form
        prompt = self._prompt_text if form.with_prompt else ""
        made = [("", "length") if form.only_prompt else (each.text, _REASONS[each.reason]) for each in outputs.texts]
        values: dict[str, Any] = {"text_output": [prompt + text for text, _ in made]}
        if self.sequences > 1:
            values["sequence_index"] = [sequence]
        if form.finish_reason:
            values["finish_reason"] = [reason for _, reason in made]
            stops = [each.last if each.last in self._stop_ids else -1 for each in outputs.texts]
            if any(stop != -1 for stop in stops):
                values["stop_token_id"] = stops
        if form.input_tokens:
            values["num_input_tokens"] = [len(self.request.input_token_ids)]
        if form.output_tokens:
            values["num_output_tokens"] = [0 if form.only_prompt else outputs.tokens]
        if form.reasoning_open and not outputs.begun:
            values["reasoning_open"] = [self._opens_reasoning]
        return values

    def _add_values(self, values: dict[str, Any], result: Result, outputs: TextOutputs) -> None:
        """Those that only some have."""
        if result.cum_log_probs is not None and not self._form.only_prompt:
            values["cum_log_probs"] = result.cum_log_probs
            values["output_log_probs"] = outputs.log_probs()
            if "top_log_probs" in vars(result):
                values["token_log_probs"] = [entry for output in outputs.texts for entry in self._tokens(output)]
        if "prompt_log_probs" in vars(result) and not outputs.begun:
            values["prompt_token_log_probs"] = self._prompt_tokens(vars(result)["prompt_log_probs"])
        if self._form.cached_tokens:
            values["num_cached_tokens"] = [vars(result)["cached_tokens"]]
        if result.context_logits is not None and not outputs.begun:
            values["context_logits"] = result.context_logits
        if result.generation_logits is not None:
            values["generation_logits"] = self._logits(outputs)
        if result.request_perf_metrics is not None:
            values.update(performance(result.request_perf_metrics))

    def _tokens(self, output: TextOutput) -> list[str]:
        return token_log_probs(self._tokenizer, output.token_ids, output.log_probs, output.alternatives)

    def _prompt_tokens(self, found: Sequence[tuple[float, int, Sequence[tuple[int, float]]]]) -> list[str]:
        """One object for each token of the prompt; nothing comes before the first, which has no log-probability."""
        first, *others = self.request.input_token_ids
        entries = [{**self._ranked(first, 0.0, None), "logprob": None, "top_logprobs": []}]
        for token, (value, rank, likeliest) in zip(others, found, strict=True):
            top = [self._ranked(other, its, place) for place, (other, its) in enumerate(likeliest, 1)]
            entries.append({**self._ranked(token, value, rank), "top_logprobs": top})
        return list(map(json.dumps, entries))

    def _ranked(self, token: int, value: float, rank: int | None) -> dict[str, Any]:
        return {"id": token, "rank": rank, **_entry(self._tokenizer, token, value)}

    def _logits(self, outputs: TextOutputs) -> Array:
        """While streaming [tokens, beams, vocabulary], as the executor gives them; else [beams, tokens, vocabulary]."""
        in_pieces = self.request.streaming
        logits = outputs.logits(axis=0 if in_pieces else 1)
        return logits.swapaxes(0, 1) if in_pieces and not self._form.stream else logits


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
