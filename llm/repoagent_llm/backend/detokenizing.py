"""Text from tokens that come one by one, in pieces that never cut a character."""

from collections.abc import Callable, Sequence
from typing import Final

from repoagent_llm.backend.tokenizing import Tokenizer

__all__ = ["Detokenizer"]

_UNKNOWN: Final = "\ufffd"
_LARGEST: Final = 3
"""Bytes of a character that lacks its last one: a tokenizer shows each of them as unknown, or all as one."""


class Detokenizer:
    """The text of one sequence behind its prompt, whose own text ``prompt_text`` makes if it is needed.

    The last tokens are decoded again with each new one, and what the text grew by is new: by itself a token does not
    know whether its text begins with a space. Where the text ends in the middle of a character, its end waits until
    the character is complete or can never be.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], prompt_text: Callable[[], str]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(prompt)
        self._prompt_text = prompt_text
        self._known: str | None = None
        """The text of the tokens that are only there to be read with new ones; None: that of the prompt."""
        self._new = len(self._tokens)
        """Where the tokens begin that have not been returned, or only in part. Those before them are known."""
        self._fresh = True
        """Whether nothing has come yet."""
        self._told = 0
        """Characters behind what is known that have been returned."""

    def feed(self, tokens: Sequence[int], *, final: bool = False) -> str:
        """The text that more tokens add; at the end also what still waits."""
        if len(tokens) < 2 and self._new == len(self._tokens):  # nothing waits
            text = self._tokenizer.whole_text(tokens[0]) if tokens else ""
            if text is not None:
                self._begin_with(tokens, text)
                return text
        whole, self._fresh = final and self._fresh, False
        if len(tokens) < 2 or whole or _UNKNOWN not in self._tokenizer.decode([*self._tokens, *tokens]):
            return self._feed(tokens, final=final)
        # One by one: a whole character together with a part of the next one may look as if both were broken.
        pieces = [self._feed((token,), final=False) for token in tokens[:-1]]
        return "".join(pieces) + self._feed(tokens[-1:], final=final)

    def _begin_with(self, tokens: Sequence[int], text: str) -> None:
        """What comes next is read with ``tokens``, which need nothing before them, or with what there is."""
        if tokens:
            self._fresh, self._tokens, self._known, self._new = False, list(tokens), text, len(tokens)

    def _feed(self, tokens: Sequence[int], *, final: bool) -> str:
        self._tokens += tokens
        text = self._grown()
        ready = len(text) if final else len(text) - _waiting(text)
        piece = text[self._told : ready]
        self._told = max(self._told, ready)
        if ready == len(text):
            self._move_on(text)
        return piece

    def _grown(self) -> str:
        text = self._tokenizer.decode(self._tokens)
        known = self._prompt_text() if self._known is None else self._known
        # A prompt that ends with a part of a character would take the bytes that follow it into the same sign.
        if text.startswith(known) and not known.endswith(_UNKNOWN):
            return text[len(known) :]
        # Bytes that fit nowhere spoil the character before them, which has been returned: they are read by themselves.
        return self._tokenizer.decode(self._tokens[self._new :])

    def _move_on(self, text: str) -> None:
        """All is returned. What had a text is what the next tokens are read with; before it nothing is needed."""
        if text:
            del self._tokens[: self._new]
            one = len(self._tokens) == 1
            self._known = self._tokenizer.decode_one(self._tokens[0]) if one else self._tokenizer.decode(self._tokens)
        self._new = len(self._tokens)
        self._told = 0


def _waiting(text: str) -> int:
    """How many characters at the end of ``text`` may become others."""
    return min(_LARGEST, len(text) - len(text.rstrip(_UNKNOWN)))
