"""The responses of a model, read as texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repoagent.serving.requests.request import InferResponse
from repoagent_server.codec.json_text import loads

__all__ = ["Piece", "pieces_of"]

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
