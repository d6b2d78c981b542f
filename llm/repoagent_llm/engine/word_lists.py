"""Token sequences that end a text or must not appear in it."""

from collections.abc import Sequence

Words = Sequence[Sequence[int]]


def ends_with_any(tokens: Sequence[int], generated: int, words: Words) -> bool:
    """Whether the tokens end with one of the words, all of it within the last ``generated`` tokens."""
    if not tokens:
        return False
    last = tokens[-1]  # most words end with another token, which costs less to see than to cut off a piece
    return any(
        word and word[-1] == last and len(word) <= generated and list(tokens[-len(word) :]) == list(word)
        for word in words
    )


def banned_by_words(tokens: Sequence[int], words: Words) -> list[int]:
    """Last tokens of those words whose other tokens stand at the end already."""
    banned = []
    last = tokens[-1] if tokens else None
    for word in words:
        head = len(word) - 1
        if head == 0 or (head > 0 and word[-2] == last and list(tokens[-head:]) == list(word[:-1])):
            banned.append(word[-1])
    return banned


def banned_by_ngrams(tokens: Sequence[int], size: int) -> list[int]:
    """Tokens that would repeat an n-gram of ``size`` tokens. Takes time for each token once, however long n-grams are
    and however much the text repeats itself: this is Knuth, Morris and Pratt's search."""
    if size <= 0 or len(tokens) < size:
        return []
    head = tokens[len(tokens) - size + 1 :]
    if not head:
        return list(tokens)
    back = _borders(head)
    banned = []
    matched = 0
    for place in range(len(tokens) - 1):
        token = tokens[place]
        while matched and (matched == len(head) or head[matched] != token):
            matched = back[matched - 1]
        if head[matched] == token:
            matched += 1
        if matched == len(head):
            banned.append(tokens[place + 1])
    return banned


def _borders(head: Sequence[int]) -> list[int]:
    """For each beginning of ``head`` the length of its longest part that is a beginning and an end of it."""
    back = [0] * len(head)
    matched = 0
    for place in range(1, len(head)):
        while matched and head[matched] != head[place]:
            matched = back[matched - 1]
        if head[matched] == head[place]:
            matched += 1
        back[place] = matched
    return back
