"""One choice of a response: a text as it grows, without what ends it, and the calls in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from repoagent_server.openai.reasoning import Reasoning, unfinished
from repoagent_server.openai.tool_calls import CallPiece, Part, ToolCalls
from repoagent_server.openai.tools import Tools


class StopWords:
    """Holds back what may be the beginning of a word, until it is known."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._held = ""
        self.found: str | None = None
        """The word that has come: nothing follows."""

    def feed(self, piece: str, *, final: bool) -> str:
        """What of the text may be shown now; ``final``: nothing more comes of it."""
        if self.found is not None:
            return ""
        if not self._words:
            return piece
        text = self._held + piece
        places = {word: place for word in self._words if (place := text.find(word)) >= 0}
        if places:
            self.found, self._held = min(places, key=places.__getitem__), ""
            return text[: places[self.found]]
        held = 0 if final else unfinished(text, self._words)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


@dataclass(slots=True)
class Delta:
    """What a piece of text adds."""

    parts: Sequence[Part] = ()
    """Texts and calls, in their order."""
    reasoning: str = ""
    log_probs: Sequence[bytes] = ()

    @property
    def content(self) -> str:
        """The texts."""
        return "".join([part for part in self.parts if isinstance(part, str)])

    @property
    def calls(self) -> list[CallPiece]:
        return [part for part in self.parts if isinstance(part, CallPiece)]


@dataclass(slots=True)
class Choice:
    """``reason``: why it has ended, in OpenAI's word, or None. ``stop_reason``: the word or the token of the request
    that has ended it, as vLLM has it."""

    index: int
    stop: StopWords
    tools: Tools = field(default_factory=Tools)
    reason: str | None = None
    stop_reason: str | int | None = None
    begun: bool = False
    """Whether anything of it has been sent."""
    prompt: Sequence[bytes] = ()
    """The log-probabilities of its prompt, if they are wanted."""
    thinks: bool = False
    """Whether its text is looked through for reasoning."""
    _finder: ToolCalls | None = None
    _called: bool = False
    _reasoning: Reasoning | None = None

    def __post_init__(self) -> None:
        if self.tools.names and self.tools.named is None:
            self._finder = ToolCalls(self.tools.names, parallel=self.tools.parallel)

    def take(
        self,
        text: str,
        log_probs: Sequence[bytes],
        reason: str,
        *,
        thinking: bool = False,
        stop_token: int | None = None,
    ) -> Delta:
        """The next piece of the model's text. ``reason``: why it is the last one, or empty; ``stop_token``: the one
        that has ended it. ``thinking``: whether the prompt has opened the reasoning with which the text begins."""
        if self.reason is not None:
            return Delta()
        shown = self.stop.feed(text, final=bool(reason))
        self.stop_reason = stop_token
        if self.stop.found is not None:
            reason, self.stop_reason = "stop", self.stop.found
        reasoning = ""
        if self.thinks:
            self._reasoning = self._reasoning or Reasoning(opened=thinking)
            reasoning, shown = self._reasoning.feed(shown, final=bool(reason))
        parts = self._split(shown, final=bool(reason))
        if self.tools.names:
            self._called |= any(isinstance(part, CallPiece) for part in parts)
        if reason:
            self.reason = "tool_calls" if self._called and reason == "stop" else reason
        return Delta(parts, reasoning, log_probs)

    def _split(self, text: str, *, final: bool) -> Sequence[Part]:
        if self.tools.named is not None:
            name = None if self._called else self.tools.named
            return [CallPiece(0, name, text)] if text or name else []
        found = self._finder.feed(text, final=final) if self._finder is not None else [text]
        return [part for part in found if isinstance(part, CallPiece)] if self.tools.required else found
