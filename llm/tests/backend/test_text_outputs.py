"""Words at which a text ends."""

import pytest
from repoagent_llm.backend.text_outputs import StopWords


def cut(words: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    """The pieces that are left, and whether a word was found."""
    stop, kept = StopWords(words), []
    for piece in pieces:
        left, found = stop.cut(piece)
        kept.append(left)
        if found:
            return kept, True
    return kept, False


@pytest.mark.parametrize(
    ("words", "pieces", "kept"),
    [
        (["END"], ["an END of it"], ["an END"]),
        (["END"], ["an E", "N", "D of it"], ["an E", "N", "D"]),
        (["\n"], ["line\n\nmore"], ["line\n"]),
        (["x", "ab"], ["-", "ab x"], ["-", "ab"]),
        (["abc", "b"], ["abc"], ["ab"]),
        (["aab"], ["a", "a", "a", "b"], ["a", "a", "a", "b"]),
    ],
)
def test_a_text_ends_behind_the_first_word(words: list[str], pieces: list[str], kept: list[str]) -> None:
    assert cut(words, pieces) == (kept, True)


@pytest.mark.parametrize("words", [[], ["END"]])
def test_without_a_word_in_it_a_text_stays_whole(words: list[str]) -> None:
    assert cut(words, ["EN", "", "x", "D"]) == (["EN", "", "x", "D"], False)
