"""Texts without the words at which they stop: OpenAI's texts end before them."""

from collections.abc import Sequence

__all__ = ["StopWords"]


class StopWords:
    """Holds back what may be the beginning of a word, until it is known."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._held = ""
        self.found = False
        """Whether a word has come: nothing follows."""

    def feed(self, piece: str, *, final: bool) -> str:
        """What of the text may be shown now; ``final``: nothing more comes of it."""
        if self.found:
            return ""
        if not self._words:
            return piece
        text = self._held + piece
        places = [place for word in self._words if (place := text.find(word)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        held = 0 if final else self._beginning(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _beginning(self, text: str) -> int:
        """How many characters at the end of ``text`` are the beginning of a word."""
        longest = min(len(text), max(map(len, self._words)) - 1)
        for size in range(longest, 0, -1):
            end = text[len(text) - size :]
            if any(word.startswith(end) for word in self._words):
                return size
        return 0
