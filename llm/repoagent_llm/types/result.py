"""Result and Response: what comes back, and what it cost."""

import struct
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

import numpy as np

from repoagent.errors import RepoAgentError
from repoagent_llm.types import rules
from repoagent_llm.types.adapters import ContextPhaseParams
from repoagent_llm.types.enums import FinishReason
from repoagent_llm.types.executor_errors import CheckError, EngineError, text_of
from repoagent_llm.types.record import Record
from repoagent_llm.types.tensors import Array

_integer = rules.integer()
_moment = Annotated[timedelta, rules.duration]
_count = Annotated[int, _integer]
_number = rules.maybe(rules.unsigned64)
_iteration = Annotated[int | None, _number]
ZERO = timedelta()


@dataclass(eq=False)
class TimingMetrics(Record, pickled=7):
    """Moments as time since the epoch of ``time.monotonic()``; zero: it has not happened."""

    arrival_time: _moment = ZERO
    first_scheduled_time: _moment = ZERO
    first_token_time: _moment = ZERO
    last_token_time: _moment = ZERO
    kv_cache_transfer_start: _moment = ZERO
    kv_cache_transfer_end: _moment = ZERO
    kv_cache_size: Annotated[int, rules.unsigned64] = 0


@dataclass(eq=False)
class KvCacheMetrics(Record, pickled=5):
    """KV-cache blocks of one request; a block counts as reused when any of its tokens was."""

    num_total_allocated_blocks: _count = 0
    num_new_allocated_blocks: _count = 0
    num_reused_blocks: _count = 0
    num_missed_blocks: _count = 0
    kv_cache_hit_rate: Annotated[float, rules.float32()] = 0.0


@dataclass(eq=False)
class SpeculativeDecodingMetrics(Record, pickled=3):
    """How many draft tokens were right."""

    acceptance_rate: Annotated[float, rules.float32()] = 0.0
    total_accepted_draft_tokens: _count = 0
    total_draft_tokens: _count = 0


@dataclass(eq=False)
class RequestPerfMetrics(Record, pickled=6):
    """Performance of one request; the sub-objects are kept by reference. Iterations count from the executor's start."""

    timing_metrics: Annotated[TimingMetrics, rules.instance(TimingMetrics)] = field(default_factory=TimingMetrics)
    kv_cache_metrics: Annotated[KvCacheMetrics, rules.instance(KvCacheMetrics)] = field(default_factory=KvCacheMetrics)
    speculative_decoding: Annotated[SpeculativeDecodingMetrics, rules.instance(SpeculativeDecodingMetrics)] = field(
        default_factory=SpeculativeDecodingMetrics
    )
    first_iter: _iteration = None
    last_iter: _iteration = None
    iter: _iteration = None


_tensor = rules.maybe(rules.tensor())


@dataclass(eq=False)
class SpeculativeDecodingFastLogitsInfo(Record):
    """Where the logits of a draft model are fetched from."""

    draft_request_id: Annotated[int, rules.unsigned64] = 0
    draft_participant_id: Annotated[int, rules.integer()] = 0

    def to_tensor(self) -> Array:
        """Both numbers as the bytes of a float32 row [1, 4], the form in which they travel in place of logits."""
        packed = struct.pack("<Qixxxx", self.draft_request_id, self.draft_participant_id)
        return np.frombuffer(packed, np.float32).reshape(1, -1)


@dataclass(eq=False)
class AdditionalOutput(Record):
    """A named tensor of the model; ``context_`` stands before the name for the prompt's part."""

    name: Annotated[str, rules.text]
    output: Annotated[Any, rules.tensor()]


@dataclass(eq=False)
class Result(Record, pickled=14, lost=("spec_dec_fast_logits_info", "additional_outputs")):
    """What one response carries.

    output_token_ids: one list per beam. log_probs: one list per beam. cum_log_probs: one number per beam.
    context_logits: [prompt, vocabulary]. generation_logits: [beams, tokens, vocabulary]; while streaming
    [tokens, beams, vocabulary]. finish_reasons: one per beam.
    """

    is_final: Annotated[bool, rules.boolean] = False
    output_token_ids: Annotated[list[list[int]], rules.list_of(rules.tokens)] = ()  # type: ignore[assignment]
    cum_log_probs: Annotated[list[float] | None, rules.maybe(rules.list_of(rules.float32()))] = None
    log_probs: Annotated[list[list[float]] | None, rules.maybe(rules.list_of(rules.list_of(rules.float32())))] = None
    context_logits: Annotated[Any, _tensor] = None
    generation_logits: Annotated[Any, _tensor] = None
    spec_dec_fast_logits_info: Annotated[
        SpeculativeDecodingFastLogitsInfo | None, rules.maybe(rules.instance(SpeculativeDecodingFastLogitsInfo))
    ] = None
    encoder_output: Annotated[Any, _tensor] = None
    finish_reasons: Annotated[list[FinishReason], rules.list_of(rules.instance(FinishReason))] = ()  # type: ignore[assignment]
    sequence_index: Annotated[int, rules.integer()] = 0
    is_sequence_final: Annotated[bool, rules.boolean] = False
    decoding_iter: Annotated[int, rules.integer()] = 0
    avg_decoded_tokens_per_iter: Annotated[float, rules.float32()] = 0.0
    context_phase_params: Annotated[ContextPhaseParams | None, rules.maybe(rules.instance(ContextPhaseParams))] = None
    request_perf_metrics: Annotated[RequestPerfMetrics | None, rules.maybe(rules.instance(RequestPerfMetrics))] = None
    additional_outputs: Annotated[list[AdditionalOutput], rules.list_of(rules.instance(AdditionalOutput))] = ()  # type: ignore[assignment]

    @classmethod
    def trusted(cls, **values: Any) -> "Result":
        """A result of values that are known to be right: no rule is applied, lists are not copied. For the engine."""
        result = cls.__new__(cls)
        object.__setattr__(result, "__dict__", {**_DEFAULTS, "additional_outputs": [], **values})
        return result

    def _restore(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values, spec_dec_fast_logits_info=None, additional_outputs=[])


_DEFAULTS = {name: value for name, value in Result().__dict__.items() if not isinstance(value, list)}


#: Of a stream: its new tokens, why it ended, and in how many iterations it got how many tokens so far.
Streamed = tuple[list[int], FinishReason, int, int]


def _streamed_result(new: list[int], reason: FinishReason, iterations: int, generated: int) -> Result:
    finished = reason is not FinishReason.NOT_FINISHED
    return Result.trusted(
        is_final=finished,
        output_token_ids=[new],
        finish_reasons=[reason],
        is_sequence_final=finished,
        decoding_iter=iterations,
        avg_decoded_tokens_per_iter=generated / max(1, iterations),
    )


class Response:
    """One answer to one request: an error text or a ``Result``."""

    __slots__ = ("_client_id", "_error", "_outcome", "_request_id")

    def __init__(
        self,
        request_id: int,
        outcome: "str | Result | None" = None,
        client_id: int | None = None,
        *,
        error_msg: str | None = None,
        result: Result | None = None,
    ) -> None:
        """A text makes an error response, a ``Result`` a good one; either may be given by its name or without."""
        given = [value for value in (outcome, error_msg, result) if value is not None]
        if len(given) != 1 or not isinstance(given[0], (str, Result)):
            kinds = ", ".join(type(value).__name__ for value in given) or "neither"
            raise TypeError(f"Response needs an error message or a Result, not {kinds}")
        outcome = given[0]
        if outcome == "":
            raise CheckError("Error message should not be empty")
        self._request_id: int = rules.unsigned64(request_id, "Response.request_id")
        self._client_id: int | None = _number(client_id, "Response.client_id")
        self._outcome: str | Result | Streamed = outcome
        self._error: RepoAgentError | None = None

    @classmethod
    def refused(cls, request_id: int, client_id: int | None, error: BaseException) -> "Response":
        """An error response to a request that was not taken. For the executor."""
        response = cls(request_id, text_of(error), client_id)
        response._error = error if isinstance(error, RepoAgentError) else None
        return response

    @classmethod
    def streamed(cls, request_id: int, client_id: int | None, streamed: Streamed) -> "Response":
        """A good response, its result made when it is asked for: not by the engine's thread. For the engine."""
        response = cls.__new__(cls)
        response._request_id, response._client_id, response._outcome = request_id, client_id, streamed
        return response

    @property
    def request_id(self) -> int:
        """The id that ``Executor.enqueue_request`` returned."""
        return self._request_id

    @property
    def client_id(self) -> int | None:
        """The id that the request brought along."""
        return self._client_id

    @property
    def streamed_tokens(self) -> tuple[list[int], FinishReason] | None:
        """New tokens and why they are the last, where a stream has nothing else and no one has asked for its result.

        For those who have many streams: to make a ``Result`` takes longer than all else that is done with it.
        """
        return self._outcome[:2] if isinstance(self._outcome, tuple) else None

    @property
    def is_last(self) -> bool:
        """Whether its request gets no other one after it."""
        outcome = self._outcome
        if isinstance(outcome, tuple):
            return outcome[1] is not FinishReason.NOT_FINISHED
        return isinstance(outcome, str) or outcome.is_final

    def has_error(self) -> bool:
        """Whether this response carries an error text."""
        return isinstance(self._outcome, str)

    @property
    def error_msg(self) -> str:
        """The error text; raises on a good response."""
        if not isinstance(self._outcome, str):
            raise CheckError("Cannot get the error message for a response without error")
        return self._outcome

    @property
    def error(self) -> RepoAgentError:
        """The error with its class: what is wrong with the request, else EngineError; raises on a good response."""
        text = self.error_msg
        return self._error or EngineError(text)

    @property
    def result(self) -> Result:
        """The result, by reference; raises on an error response."""
        if isinstance(self._outcome, str):
            raise CheckError(f"Cannot get the result for a response with an error: {self._outcome}")
        if isinstance(self._outcome, tuple):
            self._outcome = _streamed_result(*self._outcome)
        return self._outcome

    def clear_context_logits(self) -> None:
        """Drop the context logits of a good response, to save memory."""
        if isinstance(self._outcome, Result):
            self._outcome.context_logits = None

    def clear_generation_logits(self) -> None:
        """Drop the generation logits of a good response, to save memory."""
        if isinstance(self._outcome, Result):
            self._outcome.generation_logits = None

    def __getstate__(self) -> tuple[int, Result, int | None]:
        return (self._request_id, self.result, self._client_id)

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 3:
            raise CheckError("Invalid Response state!")
        Response.__init__(self, *state)

    def __repr__(self) -> str:
        kind, outcome = ("error", self._outcome) if self.has_error() else ("result", self.result)
        return f"Response(request_id={self._request_id}, {kind}={outcome!r})"
