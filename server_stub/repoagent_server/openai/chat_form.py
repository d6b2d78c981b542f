"""``/v1/chat/completions``: responses and the chunks of a stream."""

import secrets
from collections.abc import Sequence
from typing import Any

from repoagent_server.openai.choice import Choice, Delta
from repoagent_server.openai.tool_calls import CallPiece

__all__ = ["ChatForm"]


class ChatForm:
    """Writes one response. ``log_probs``: whether it has them."""

    prefix = "chatcmpl-"
    whole = "chat.completion"
    part = "chat.completion.chunk"

    def __init__(self, *, log_probs: bool) -> None:
        self._log_probs = log_probs

    def chunks(self, choice: Choice, delta: Delta) -> list[dict[str, Any]]:
        """The members of ``choices`` that a piece makes, one of each chunk."""
        found = []
        if not choice.begun:
            found.append(self._chunk(choice, {"role": "assistant", "content": ""}))
        if delta.content or delta.log_probs:
            found.append(self._chunk(choice, {"content": delta.content}, self._listed(delta.log_probs)))
        found += [self._chunk(choice, {"tool_calls": [_call(call)]}) for call in delta.calls]
        if choice.reason is not None:
            found.append(self._chunk(choice, {}, reason=choice.reason))
        return found

    def _chunk(
        self, choice: Choice, delta: dict[str, Any], log_probs: Any = None, reason: str | None = None
    ) -> dict[str, Any]:
        return {"index": choice.index, "delta": delta, "logprobs": log_probs, "finish_reason": reason}

    def _listed(self, log_probs: Sequence[Any]) -> dict[str, Any] | None:
        return {"content": log_probs, "refusal": None} if self._log_probs else None

    def choice(self, choice: Choice, deltas: list[Delta]) -> dict[str, Any]:
        """The member of ``choices`` of a whole text."""
        text = "".join(delta.content for delta in deltas)
        calls = _joined([call for delta in deltas for call in delta.calls])
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        log_probs = self._listed([entry for delta in deltas for entry in delta.log_probs])
        return {"index": choice.index, "message": message, "logprobs": log_probs, "finish_reason": choice.reason}


def _call(call: CallPiece) -> dict[str, Any]:
    if call.name is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _joined(pieces: Sequence[CallPiece]) -> list[dict[str, Any]]:
    """Whole calls."""
    found: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        if piece.index in found:
            found[piece.index]["function"]["arguments"] += piece.arguments
        else:
            found[piece.index] = {name: value for name, value in _call(piece).items() if name != "index"}
    return list(found.values())
