"""Token sequences that end a text or must not appear in it."""

from collections.abc import Sequence

__all__ = ["banned_by_ngrams", "banned_by_words", "ends_with_any"]

Words = Sequence[Sequence[int]]


def ends_with_any(tokens: Sequence[int], generated: int, words: Words) -> bool:
    """Whether the tokens end with one of the words, all of it within the last ``generated`` tokens."""
    return any(0 < len(word) <= generated and list(tokens[-len(word) :]) == list(word) for word in words)


def banned_by_words(tokens: Sequence[int], words: Words) -> list[int]:
    """Last tokens of those words whose other tokens stand at the end already."""
    banned = []
    for word in words:
        head = len(word) - 1
        if head == 0 or (head > 0 and list(tokens[-head:]) == list(word[:-1])):
            banned.append(word[-1])
    return banned


def banned_by_ngrams(tokens: Sequence[int], size: int) -> list[int]:
    """Tokens that would repeat an n-gram of ``size`` tokens."""
    if size <= 0 or len(tokens) < size:
        return []
    head = list(tokens[len(tokens) - size + 1 :])
    return [tokens[i + size - 1] for i in range(len(tokens) - size + 1) if list(tokens[i : i + size - 1]) == head]
