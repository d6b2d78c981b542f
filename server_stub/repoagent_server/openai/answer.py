"""The answer to one request: the texts of all its prompts, as one document or as a stream of chunks."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from repoagent.serving.requests.request import InferResponse
from repoagent_server.codec.json_text import dumps, loads
from repoagent_server.openai.choice import Choice, Delta, StopWords
from repoagent_server.openai.tools import Tools

_TEXT = "text_output"


@dataclass(slots=True)
class Piece:
    """More of the text of number ``sequence``. ``reason`` is not empty if it is the last."""

    sequence: int
    text: str
    reason: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    log_probs: Sequence[Any] = ()


def pieces_of(response: InferResponse) -> list[Piece]:
    """What a response brings: one text, or one of each sequence."""
    texts, reasons = _elements(response, _TEXT), _elements(response, "finish_reason")
    log_probs = _elements(response, "token_log_probs")
    first = _number(response, "sequence_index")
    read, made = _number(response, "num_input_tokens"), _number(response, "num_output_tokens")
    return [
        Piece(
            first + place,
            _text(text),
            _text(reasons[place]) if place < len(reasons) else "",
            read,
            0 if place else made,
            () if place else [loads(entry) for entry in log_probs],
        )
        for place, text in enumerate(texts)
    ]


def _elements(response: InferResponse, name: str) -> list[Any]:
    tensor = response.outputs.get(name)
    if tensor is None:
        return []
    array = tensor.array
    return [array.item()] if array.size == 1 else array.ravel().tolist()


def _number(response: InferResponse, name: str) -> int:
    tensor = response.outputs.get(name)
    return 0 if tensor is None or not tensor.array.size else int(tensor.array.item(0))


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


DONE = b"data: [DONE]\n\n"


class Form(Protocol):
    """What a route's responses are made of."""

    prefix: str
    whole: str
    part: str

    def chunks(self, choice: Choice, delta: Delta) -> list[dict[str, Any]]: ...

    def choice(self, choice: Choice, deltas: list[Delta]) -> dict[str, Any]: ...


class Answer:
    """Takes the responses of ``prompts`` requests, each with ``count`` choices."""

    def __init__(
        self,
        model: str,
        form: Form,
        *,
        prompts: int,
        count: int,
        stop: Sequence[str],
        tools: Tools,
        stream: bool,
        include_usage: bool,
    ) -> None:
        self._form = form
        self._count = count
        self._stream = stream
        self._include_usage = include_usage
        self._choices = [Choice(index, StopWords(stop), tools) for index in range(prompts * count)]
        self._deltas: list[list[Delta]] = [[] for _ in self._choices]
        self._usage = _Usage()
        self._counted: set[int] = set()
        self._open = prompts
        self._head = {
            "id": form.prefix + secrets.token_hex(12),
            "object": form.part if stream else form.whole,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": None,
        }

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
        events: list[dict[str, Any]] = []
        for piece in pieces:
            if piece.sequence < self._count:
                self._usage.count(piece, first=prompt not in self._counted)
                self._counted.add(prompt)
                events += self._add(self._choices[prompt * self._count + piece.sequence], piece)
        if final:
            self._open -= 1
            for choice in self._choices[prompt * self._count : (prompt + 1) * self._count]:
                if choice.reason is None:  # A model that does not report how its texts end.
                    events += self._add(choice, Piece(0, "", "stop"))
        written = b"".join(self._event([event]) for event in events)
        return written + self._end() if self._stream and not self._open else written

    def document(self) -> bytes:
        """The whole response."""
        choices = [
            self._form.choice(choice, deltas) for choice, deltas in zip(self._choices, self._deltas, strict=True)
        ]
        return dumps({**self._head, "choices": choices, "usage": self._usage.document()})

    def _add(self, choice: Choice, piece: Piece) -> list[dict[str, Any]]:
        if choice.reason is not None:
            return []
        delta = choice.take(piece.text, piece.log_probs, piece.reason)
        if not self._stream:
            self._deltas[choice.index].append(delta)
            return []
        chunks = self._form.chunks(choice, delta)
        choice.begun |= bool(chunks)
        return chunks

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        document = {**self._head, "choices": choices}
        if self._include_usage:
            document["usage"] = usage
        return b"data: %b\n\n" % dumps(document)

    def _end(self) -> bytes:
        usage = self._event([], self._usage.document()) if self._include_usage else b""
        return usage + DONE


@dataclass(slots=True)
class _Usage:
    """Tokens that a response has cost, counted over all prompts and choices of a request."""

    read: int = 0
    made: int = 0

    def count(self, piece: Piece, *, first: bool) -> None:
        """Count a piece; ``first``: the first one of its prompt."""
        self.read += piece.input_tokens if first else 0
        self.made += piece.output_tokens

    def document(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.read,
            "completion_tokens": self.made,
            "total_tokens": self.read + self.made,
        }
