"""Words at which a text ends, looked for in the text itself."""

from collections.abc import Sequence

__all__ = ["StopWords"]


class StopWords:
    """Finds the first of ``words`` in a text that comes in pieces.

    The executor looks for their tokens; but a text may have a word in other tokens than the word has by itself.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._reach = max(map(len, words), default=1) - 1
        self._before = ""
        """The end of the earlier pieces, in which a word may have begun."""

    def cut(self, piece: str) -> tuple[str, bool]:
        """``piece`` up to the end of the first word that ends in it, and whether there is one."""
        if not self._words:
            return piece, False
        text = self._before + piece
        ends = [place + len(word) for word in self._words if (place := text.find(word)) >= 0]
        if ends:
            return text[len(self._before) : min(ends)], True
        self._before = text[len(text) - self._reach :] if self._reach else ""
        return piece, False
