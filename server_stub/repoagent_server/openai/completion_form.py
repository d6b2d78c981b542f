"""``/v1/completions``: responses and the chunks of a stream."""

from collections.abc import Sequence
from typing import Any

from repoagent_server.openai.choice import Choice, Delta

__all__ = ["CompletionForm"]


class CompletionForm:
    """Writes one response. ``echoes``: what goes before the texts of each prompt, which has ``count`` choices."""

    prefix = "cmpl-"
    whole = "text_completion"
    part = "text_completion"

    def __init__(self, *, log_probs: bool, echoes: Sequence[str], count: int) -> None:
        self._log_probs = log_probs
        self._echoes = echoes
        self._count = count
        self._offsets: dict[int, int] = {}
        """Characters of each choice that its tokens so far stand for."""

    def chunks(self, choice: Choice, delta: Delta) -> list[dict[str, Any]]:
        """The members of ``choices`` that a piece makes, one of each chunk."""
        text = delta.content if choice.begun else self._echo(choice) + delta.content
        if not (text or delta.log_probs or choice.reason):
            return []
        return [self._choice(choice, text, delta.log_probs)]

    def choice(self, choice: Choice, deltas: list[Delta]) -> dict[str, Any]:
        """The member of ``choices`` of a whole text."""
        text = self._echo(choice) + "".join(delta.content for delta in deltas)
        return self._choice(choice, text, [entry for delta in deltas for entry in delta.log_probs])

    def _echo(self, choice: Choice) -> str:
        return self._echoes[choice.index // self._count]

    def _choice(self, choice: Choice, text: str, log_probs: Sequence[Any]) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": text,
            "logprobs": self._table(choice, log_probs) if self._log_probs else None,
            "finish_reason": choice.reason,
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
                {item["token"]: item["logprob"] for item in (*entry["top_logprobs"], entry)} for entry in log_probs
            ],
            "text_offset": offsets,
        }
