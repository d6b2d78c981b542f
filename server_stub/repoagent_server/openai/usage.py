"""Tokens that a response has cost."""

from dataclasses import dataclass
from typing import Any

from repoagent_server.openai.outputs import Piece

__all__ = ["Usage"]


@dataclass(slots=True)
class Usage:
    """Counted over all prompts and choices of a request."""

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
