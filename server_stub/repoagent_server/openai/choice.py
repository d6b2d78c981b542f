"""One choice of a response: a text as it grows, without what ends it, and the calls in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from repoagent_server.openai.stop_words import StopWords
from repoagent_server.openai.tool_calls import CallPiece, ToolCalls
from repoagent_server.openai.tools import Tools

__all__ = ["Choice", "Delta"]


@dataclass(slots=True)
class Delta:
    """What a piece of text adds."""

    content: str = ""
    calls: Sequence[CallPiece] = ()
    log_probs: Sequence[Any] = ()


@dataclass(slots=True)
class Choice:
    """``reason``: why it has ended, in OpenAI's word, or None."""

    index: int
    stop: StopWords
    tools: Tools = field(default_factory=Tools)
    reason: str | None = None
    begun: bool = False
    """Whether anything of it has been sent."""
    _finder: ToolCalls | None = None
    _called: bool = False

    def __post_init__(self) -> None:
        if self.tools.names and self.tools.named is None:
            self._finder = ToolCalls(self.tools.names, parallel=self.tools.parallel)

    def take(self, text: str, log_probs: Sequence[Any], reason: str) -> Delta:
        """The next piece of the model's text; ``reason``: why it is the last one, or empty."""
        if self.reason is not None:
            return Delta()
        shown = self.stop.feed(text, final=bool(reason))
        if self.stop.found:
            reason = "stop"
        content, calls = self._split(shown, final=bool(reason))
        self._called |= bool(calls)
        if reason:
            self.reason = "tool_calls" if self._called and reason == "stop" else reason
        return Delta(content, calls, log_probs)

    def _split(self, text: str, *, final: bool) -> tuple[str, list[CallPiece]]:
        if self.tools.named is not None:
            name = None if self._called else self.tools.named
            return "", [CallPiece(0, name, text)] if text or name else []
        if self._finder is None:
            return text, []
        content, calls = self._finder.feed(text, final=final)
        return "" if self.tools.required else content, calls
