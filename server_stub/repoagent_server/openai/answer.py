"""The answer to one request: the texts of all its prompts, as one document or as a stream of events."""

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import InferResponse
from repoagent_server.codec.json_text import dumps, loads
from repoagent_server.openai.choice import Choice, Delta, StopWords
from repoagent_server.openai.text_request import TextRequest

_TEXT: Final = "text_output"
_LOG_PROBS: Final = "token_log_probs"
_OF_PROMPT: Final = "prompt_token_log_probs"
_MOST_LOG_PROBS: Final = 1 << 25
"""Bytes of them in one document: others wait while it is written."""


@dataclass(slots=True)
class Piece:
    """More of the text of number ``sequence``. ``reason`` is not empty if it is the last."""

    sequence: int
    text: str
    reason: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    log_probs: Sequence[bytes] = ()
    """Of each token, as the model has written them in JSON: read, they take many times the memory."""
    prompt_log_probs: Sequence[bytes] = ()
    """Of the tokens of the prompt."""
    cached_tokens: int = 0
    """How many of them came from the KV cache."""
    thinking: bool = False
    """Whether the prompt has opened the model's reasoning."""
    stop_token: int | None = None
    """The token of the request that has ended the text."""


def pieces_of(response: InferResponse) -> list[Piece]:
    """What a response brings: one text, or one of each sequence."""
    texts, reasons = _elements(response, _TEXT), _elements(response, "finish_reason")
    stops = _elements(response, "stop_token_id")
    log_probs = _documents(response, _LOG_PROBS)
    first = _number(response, "sequence_index")
    read, made = _number(response, "num_input_tokens"), _number(response, "num_output_tokens")
    return [
        Piece(
            first + place,
            _text(text),
            _text(reasons[place]) if place < len(reasons) else "",
            read,
            0 if place else made,
            () if place else log_probs,
            () if place else _documents(response, _OF_PROMPT),
            _number(response, "num_cached_tokens"),
            bool(_number(response, "reasoning_open")),
            int(stops[place]) if place < len(stops) and stops[place] >= 0 else None,
        )
        for place, text in enumerate(texts)
    ]


def log_prob_bytes(response: InferResponse) -> int:
    """How many bytes of log-probabilities a response brings, which take long to write."""
    if response.outputs.keys().isdisjoint((_LOG_PROBS, _OF_PROMPT)):
        return 0
    return sum(len(entry) for name in (_LOG_PROBS, _OF_PROMPT) for entry in _elements(response, name))


def _elements(response: InferResponse, name: str) -> list[Any]:
    tensor = response.outputs.get(name)
    if tensor is None:
        return []
    array = tensor.array
    return [array.item()] if array.size == 1 else array.ravel().tolist()


def _documents(response: InferResponse, name: str) -> list[bytes]:
    return [item.encode() if isinstance(item, str) else item for item in _elements(response, name)]


def _number(response: InferResponse, name: str) -> int:
    tensor = response.outputs.get(name)
    return 0 if tensor is None or not tensor.array.size else int(tensor.array.item(0))


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


class Answer(ABC):
    """Takes the responses to each prompt of a request, each with ``count`` choices."""

    keeps = False
    """Whether a stream ends with all that it has had."""

    def __init__(self, asked: TextRequest) -> None:
        self.asked: Final = asked
        sampling, prompts = asked.sampling, len(asked.prompts)
        thinks = asked.is_chat and asked.guide is None  # else the text has no reasoning to look for
        self._count = sampling.count
        self._stream = sampling.stream
        self._choices = [
            Choice(index, StopWords(sampling.stop), asked.tools, thinks=thinks)
            for index in range(prompts * sampling.count)
        ]
        self._usage = Usage()
        self._counted: set[int] = set()
        self._open = prompts
        self.held = 0
        """Bytes of log-probabilities that are kept."""

    @property
    def over(self) -> bool:
        """Whether every prompt has had its last response."""
        return not self._open

    @property
    def tokens(self) -> tuple[int, int]:
        """How many tokens have been read and made so far."""
        return self._usage.read, self._usage.made

    def take(self, prompt: int, response: InferResponse | None, *, final: bool) -> bytes:
        """Take a response to prompt number ``prompt``; the events that it makes in a stream."""
        pieces = [] if response is None else pieces_of(response)
        events = b""
        for piece in pieces:
            if piece.sequence < self._count:
                events += self._add(self._choices[prompt * self._count + piece.sequence], piece, prompt)
        if final:
            self._open -= 1
            for choice in self._choices[prompt * self._count : (prompt + 1) * self._count]:
                if choice.reason is None:  # A model that does not report how its texts end.
                    events += self._add(choice, Piece(0, "", "stop"), prompt)
        return events + self._end() if self._stream and not self._open else events

    def _add(self, choice: Choice, piece: Piece, prompt: int) -> bytes:
        first = prompt not in self._counted
        self._counted.add(prompt)
        if not self._stream or self.keeps:
            self._hold(piece)
        if choice.reason is not None:
            self._usage.count(piece, first=first, thinking=False)
            return b""
        choice.prompt = piece.prompt_log_probs or choice.prompt
        delta = choice.take(
            piece.text, piece.log_probs, piece.reason, thinking=piece.thinking, stop_token=piece.stop_token
        )
        self._usage.count(piece, first=first, thinking=bool(delta.reasoning) and not delta.content)
        return self._written(choice, delta)

    def _hold(self, piece: Piece) -> None:
        self.held += sum(map(len, piece.log_probs)) + sum(map(len, piece.prompt_log_probs))
        if self.held > _MOST_LOG_PROBS:
            raise InvalidArgumentError(
                f"the log-probabilities of the answer have more than {_MOST_LOG_PROBS >> 20} MiB; ask for fewer "
                "alternatives, tokens or prompts"
            )

    @abstractmethod
    def _written(self, choice: Choice, delta: Delta) -> bytes:
        """The events that ``delta`` makes in a stream; else it is kept."""

    @abstractmethod
    def _end(self) -> bytes:
        """The last events of a stream."""

    @abstractmethod
    def document(self) -> bytes:
        """The whole response."""

    @abstractmethod
    def failure(self, error: bytes) -> bytes:
        """The event of an error after the first event; ``error``: the body of a response with it."""


def ranked_log_probs(entries: Sequence[bytes], most: int) -> list[dict[str, Any] | None]:
    """vLLM's ``prompt_logprobs``: of each token of a prompt and of the ``most`` likeliest in its place, by their ids;
    nothing of the first."""
    found: list[dict[str, Any] | None] = []
    for entry in map(loads, entries):
        listed = (entry, *entry["top_logprobs"][:most])
        ranked = {
            str(each["id"]): {"logprob": each["logprob"], "rank": each["rank"], "decoded_token": each["token"]}
            for each in listed
        }
        found.append(None if entry["logprob"] is None else ranked)
    return found


class ChoicesAnswer(Answer):
    """Chats and completions: a list of choices, or chunks of them."""

    prefix: str
    whole: str
    part: str

    def __init__(self, asked: TextRequest) -> None:
        super().__init__(asked)
        self._include_usage = asked.sampling.include_usage
        self._continuous = asked.sampling.continuous_usage
        self._deltas: list[list[Delta]] = [[] for _ in self._choices]
        self._head = {
            "id": self.prefix + secrets.token_hex(12),
            "object": self.part if self._stream else self.whole,
            "created": int(time.time()),
            "model": asked.model,
            "system_fingerprint": None,
        }

    @abstractmethod
    def chunks(self, choice: Choice, delta: Delta) -> list[dict[str, Any]]:
        """The members of ``choices`` that a piece makes, one of each chunk."""

    @abstractmethod
    def choice(self, choice: Choice, deltas: list[Delta]) -> dict[str, Any]:
        """The member of ``choices`` of a whole text."""

    def more(self, first: Choice) -> dict[str, Any]:
        """Further members of a whole response; ``first``: its first choice."""
        return {}

    def document(self) -> bytes:
        choices = list(map(self.choice, self._choices, self._deltas))
        more = self.more(self._choices[0])
        return dumps({**self._head, "choices": choices, "usage": self._usage.document(), **more})

    def failure(self, error: bytes) -> bytes:
        return b"data: %b\n\n" % error

    def _written(self, choice: Choice, delta: Delta) -> bytes:
        if not self._stream:
            self._deltas[choice.index].append(delta)
            return b""
        chunks = self.chunks(choice, delta)
        choice.begun |= bool(chunks)
        return b"".join(self._event([chunk], self._usage.document() if self._continuous else None) for chunk in chunks)

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> bytes:
        document = {**self._head, "choices": choices}
        if self._include_usage:
            document["usage"] = usage
        return b"data: %b\n\n" % dumps(document)

    def _end(self) -> bytes:
        usage = self._event([], self._usage.document()) if self._include_usage else b""
        return usage + b"data: [DONE]\n\n"


@dataclass(slots=True)
class Usage:
    """Tokens that a response has cost, counted over all prompts and choices of a request."""

    read: int = 0
    cached: int = 0
    """Those of ``read`` that came from the KV cache."""
    made: int = 0
    thought: int = 0
    """Those made of ``made`` that are reasoning, and nothing else."""

    def count(self, piece: Piece, *, first: bool, thinking: bool) -> None:
        """Count a piece; ``first``: the first one of its prompt."""
        if first:
            self.read += piece.input_tokens
            self.cached += piece.cached_tokens
        self.made += piece.output_tokens
        self.thought += piece.output_tokens if thinking else 0

    def document(self) -> dict[str, Any]:
        """As chats and completions have it."""
        found: dict[str, Any] = {
            "prompt_tokens": self.read,
            "completion_tokens": self.made,
            "total_tokens": self.read + self.made,
        }
        if self.cached:
            found["prompt_tokens_details"] = {"cached_tokens": self.cached}
        if self.thought:
            found["completion_tokens_details"] = {"reasoning_tokens": self.thought}
        return found

    def of_response(self) -> dict[str, Any]:
        """As a response of ``/v1/responses`` has it."""
        return {
            "input_tokens": self.read,
            "input_tokens_details": {"cached_tokens": self.cached, "cache_write_tokens": 0},
            "output_tokens": self.made,
            "output_tokens_details": {"reasoning_tokens": self.thought},
            "total_tokens": self.read + self.made,
        }
