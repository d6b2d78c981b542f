"""Texts as they grow, and words at which they end."""

from collections.abc import Sequence
from typing import Any

import pytest
from repoagent_llm import FinishReason
from repoagent_llm.backend.text_outputs import StopWords, TextOutput
from repoagent_llm.backend.tokenizing import Detokenizer, Tokenizer

from llm.tests.backend.tiny import byte_level
from tests.counted_text import CountedText


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


def test_many_words_are_looked_for_where_they_may_end() -> None:
    """1024 words, one of them of 60 kB, were each looked for in the last 60 kB, at every token."""

    class Text(str):
        __slots__ = ()
        seen = 0

        def __radd__(self, before: str) -> "Text":
            return Text(str(before) + str(self))

        def __getitem__(self, place: Any) -> "Text":
            return Text(super().__getitem__(place))

        def find(self, word: str, start: int = 0) -> int:  # type: ignore[override]
            Text.seen += len(self) - start
            return super().find(word, start)

    words = ["y" * 60_000, *(f"word {number}" for number in range(1000))]
    stop = StopWords(words)
    stop.cut(Text("x" * 70_000))
    Text.seen = 0
    for _ in range(10):
        assert stop.cut(Text("x")) == ("x", False)
    assert Text.seen < 10 * 2 * sum(map(len, words))
    assert stop.cut(Text(" word 7 and more")) == (" word 7", True)


class _Counted(Detokenizer):
    def feed(self, tokens: Sequence[int], *, final: bool = False) -> str:
        return CountedText(super().feed(tokens, final=final))


def test_a_text_of_many_tokens_is_joined_once() -> None:
    """Each token copied all before it."""
    tokenizer = Tokenizer(byte_level())
    (letter,) = tokenizer.encode("x")
    output = TextOutput(_Counted(tokenizer, []), StopWords([]))
    CountedText.copied = 0
    for _ in range(32_768):
        output.add([letter], FinishReason.NOT_FINISHED)
    assert (output.text, CountedText.copied) == ("x" * 32_768, 0)


def test_the_token_that_has_ended_a_text_is_known() -> None:
    """Not where the text had a word, or ended for another reason."""
    tokenizer = Tokenizer(byte_level())
    letters = tokenizer.encode("ab")
    for reason, words, last in (
        (FinishReason.STOP_WORDS, [], letters[-1]),
        (FinishReason.LENGTH, [], None),
        (FinishReason.NOT_FINISHED, ["b"], None),
    ):
        output = TextOutput(Detokenizer(tokenizer, []), StopWords(words))
        output.add(letters, reason)
        assert output.last == last
