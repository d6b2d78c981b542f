"""One text, or several, that the executor generates for a row of a request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from repoagent.errors import CancelledError, RepoAgentError, UnavailableError
from repoagent.executor import FinishReason, Request, Result
from repoagent.serving.backends.llm.detokenizing import Detokenizer
from repoagent.serving.backends.llm.measures import performance
from repoagent.serving.backends.llm.reply import Reply
from repoagent.serving.backends.llm.stopping import StopWords
from repoagent.serving.backends.llm.tokenizing import Tokenizer
from repoagent.serving.types import Array

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


class _Strand:
    """One text, and what has come with it since it was last told of."""

    def __init__(self, detokenizer: Detokenizer, stop_words: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stop_words = StopWords(stop_words)
        self.text = ""
        self.tokens = 0
        self.log_probs: list[float] = []
        self.reason = FinishReason.NOT_FINISHED
        self.done = False

    def add(self, tokens: Sequence[int], log_probs: Sequence[float], reason: FinishReason) -> None:
        ended = reason is not FinishReason.NOT_FINISHED
        piece, stopped = self._stop_words.cut(self._detokenizer.feed(tokens, final=ended))
        self.text += piece
        self.tokens += len(tokens)
        self.log_probs += log_probs
        self.reason = FinishReason.STOP_WORDS if stopped and not ended else reason
        self.done = ended or stopped

    def forget(self) -> None:
        """What there is has been told."""
        self.text, self.tokens, self.log_probs = "", 0, []


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
        self._strands: dict[int, list[_Strand]] = {}
        """By the index of the sequence: its one text, or its beams."""
        self._logits: dict[int, list[Array]] = {}
        self._begun: set[int] = set()
        """The sequences whose first response has been sent."""
        self._ended = 0

    def take(self, result: Result) -> bool:
        """Send what ``result`` adds; True if nothing more is to come."""
        if (error := _failure(result)) is not None:
            self.reply.fail(error)
            return True
        strands = self._advance(result)
        if strands is None:
            return False
        done = all(strand.done for strand in strands)
        self._ended += done
        over = self._ended == self.sequences
        if done or (self._form.stream and _has_news(result, strands)):
            self.reply.send(self._row, self._values(result, strands), last=over)
            self._begun.add(result.sequence_index)
            for strand in strands:
                strand.forget()
        return over

    def _advance(self, result: Result) -> list[_Strand] | None:
        """The texts of the sequence with what ``result`` adds; None if it has ended."""
        index = result.sequence_index
        strands = self._strands.get(index)
        if strands is not None and strands[0].done and not self._beams:
            return None
        if strands is None or self._beams:  # Beams are given whole each time: they change their past.
            strands = self._strands[index] = [self._strand() for _ in result.output_token_ids]
        log_probs = result.log_probs or [[] for _ in strands]
        for strand, tokens, probs, reason in zip(
            strands, result.output_token_ids, log_probs, result.finish_reasons, strict=True
        ):
            strand.add(tokens, probs, reason)
            strand.done = strand.done if not self._beams else result.is_final
        if result.generation_logits is not None:
            self._logits.setdefault(index, []).append(result.generation_logits)
        return strands

    def _strand(self) -> _Strand:
        detokenizer = Detokenizer(self._tokenizer, self.request.input_token_ids, self._prompt_text)
        # A beam that a word ends in the text only is compared with others at its end: there tokens decide.
        return _Strand(detokenizer, () if self._beams else self._form.stop_words)

    def _values(self, result: Result, strands: Sequence[_Strand]) -> dict[str, Any]:
        form, index = self._form, result.sequence_index
        prompt = self._prompt_text if form.with_prompt else ""
        values: dict[str, Any] = {"text_output": [prompt + strand.text for strand in strands]}
        if self.sequences > 1:
            values["sequence_index"] = [index]
        if form.finish_reason:
            values["finish_reason"] = [_REASONS[strand.reason] for strand in strands]
        if form.input_tokens:
            values["num_input_tokens"] = [len(self.request.input_token_ids)]
        if form.output_tokens:
            values["num_output_tokens"] = [sum(strand.tokens for strand in strands)]
        if result.cum_log_probs is not None:
            values["cum_log_probs"] = result.cum_log_probs
            values["output_log_probs"] = _filled([strand.log_probs for strand in strands])
        if result.context_logits is not None and index not in self._begun:
            values["context_logits"] = result.context_logits
        if logits := self._logits.pop(index, None):
            values["generation_logits"] = self._joined(logits)
        if result.request_perf_metrics is not None:
            values.update(performance(result.request_perf_metrics))
        return values

    def _joined(self, logits: Sequence[Array]) -> Array:
        """While streaming [tokens, beams, vocabulary], as the executor gives them; else [beams, tokens, vocabulary]."""
        if not self.request.streaming or self._beams:
            return logits[-1]
        together = np.concatenate(logits)
        return together if self._form.stream else together.swapaxes(0, 1)


def _failure(result: Result) -> RepoAgentError | None:
    reasons = result.finish_reasons
    if FinishReason.CANCELLED in reasons:
        return CancelledError("request cancelled")
    if FinishReason.TIMED_OUT in reasons:
        return UnavailableError("Request timeout expired")
    return None


def _has_news(result: Result, strands: Sequence[_Strand]) -> bool:
    """Whether there is anything to tell: not if all that came is a part of a character."""
    more = result.log_probs, result.generation_logits, result.request_perf_metrics
    return any(strand.text for strand in strands) or any(item is not None for item in more)


def _filled(rows: Sequence[Sequence[float]]) -> Array:
    """Rows of the same length, the shorter ones with zeros at their ends."""
    array = np.zeros((len(rows), max(map(len, rows))), np.float32)
    for target, row in zip(array, rows, strict=True):
        target[: len(row)] = row
    return array
