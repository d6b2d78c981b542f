"""Pieces of text from tokens that come one by one."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repoagent_llm.backend.tokenizing import Detokenizer, Tokenizer
from repoagent_llm.guidance.vocabulary import token_bytes

from llm.tests.backend.tiny import byte_fallback, byte_level

BYTES, FALLBACK = Tokenizer(byte_level()), Tokenizer(byte_fallback())
TEXTS = ["hello world", " two  spaces ", "naïve café", "日本語 and 🙂🙃", "a\nb\tc", "e\u0301", "\ufffd", ""]


def pieces(tokenizer: Tokenizer, prompt: list[int], tokens: list[int], steps: Any = None) -> list[str]:
    """The pieces of ``tokens`` behind ``prompt``, fed one by one or as many at a time as ``steps`` says."""
    detokenizer = Detokenizer(tokenizer, prompt)
    told, rest = [], list(tokens)
    while rest:
        count = 1 if steps is None else steps()
        told.append(detokenizer.feed(rest[:count], final=count >= len(rest)))
        rest = rest[count:]
    return told


@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK], ids=["bytes", "fallback"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("prompt", ["", "Say:", "日本", "end "])
def test_the_pieces_are_the_text_behind_the_prompt(tokenizer: Tokenizer, prompt: str, text: str) -> None:
    before = tokenizer.encode(prompt)
    tokens = tokenizer.encode(text)
    told = pieces(tokenizer, before, tokens)
    assert tokenizer.decode(before) + "".join(told) == tokenizer.decode([*before, *tokens])


def test_no_piece_ends_in_the_middle_of_a_character() -> None:
    told = pieces(BYTES, [], BYTES.encode("日本"))
    assert told == ["", "", "日", "", "", "本"]
    assert pieces(FALLBACK, FALLBACK.encode("a"), FALLBACK.encode("日")[1:]) == ["", "", "日"]


def test_a_word_keeps_its_leading_space_behind_a_prompt() -> None:
    words = [token for token in FALLBACK.encode("x a b") if FALLBACK.decode([token]) in ("a", "b")]
    assert pieces(FALLBACK, FALLBACK.encode("x"), words) == [" a", " b"]
    assert pieces(FALLBACK, FALLBACK.encode("x"), [words[0], 1, words[1]]) == [" a", "", " b"]  # 1: special


def test_special_tokens_and_ids_without_a_token_have_no_text() -> None:
    (letter,) = BYTES.encode("x")
    assert pieces(BYTES, BYTES.encode("a"), [1, letter, 2, 5000, letter]) == ["", "x", "", "", "x"]


def test_special_tokens_can_be_shown() -> None:
    shown = Tokenizer(byte_level(), skip_special=False)
    assert pieces(shown, [], [*shown.encode("a"), 2]) == ["a", "</s>"]


@given(st.lists(st.integers(0, 270), max_size=40), st.lists(st.integers(0, 270), max_size=8))
def test_any_textat_all_give_the_text_that_they_give_together(tokens: list[int], prompt: list[int]) -> None:
    # The prompt is whole characters: it comes from a text.
    before = BYTES.encode(BYTES.decode(prompt))
    steps = random.Random(len(tokens)).choice
    told = pieces(BYTES, before, tokens, lambda: steps([1, 1, 2, 5]))
    assert BYTES.decode(before) + "".join(told) == BYTES.decode([*before, *tokens])


@pytest.mark.slow
@given(st.text(max_size=30), st.text(max_size=10))
def test_any_text_comes_back_through_byte_fallback(text: str, prompt: str) -> None:
    before, tokens = FALLBACK.encode(prompt), FALLBACK.encode(text)
    assert (
        "".join(pieces(FALLBACK, before, tokens)) == FALLBACK.decode([*before, *tokens])[len(FALLBACK.decode(before)) :]
    )


@given(st.lists(st.one_of(st.integers(3, 258), st.integers(259, 355)), max_size=40))
def test_malformed_textharm_no_text_that_was_told_and_none_that_follows(tokens: list[int]) -> None:
    after = FALLBACK.encode("ok")
    told = "".join(pieces(FALLBACK, FALLBACK.encode("p"), [*tokens, *after]))
    assert told.endswith(" ok")


def test_textthat_never_become_a_character_do_not_wait_for_ever() -> None:
    (lone,) = (number for number, name in enumerate(BYTES.vocabulary(300)) if name == "Ģ")  # 0x80
    told = pieces(BYTES, [], [lone] * 6)
    assert told[:3] == ["", "", ""]
    assert "".join(told) == "\ufffd" * 6
    assert "".join(told[:-1]) == "\ufffd" * 2


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@pytest.mark.parametrize("new", [[0x81], [0x81, 0x41], [0xE3, 0x41], [0x41]])
def test_a_byte_that_is_no_character_is_seen_behind_a_prompt_that_ends_with_one(
    make: Callable[[], Any], new: list[int]
) -> None:
    """M10: it vanished."""
    tokenizer = Tokenizer(make())
    ids = {text: token for token, text in enumerate(token_bytes(tokenizer.vocabulary(1 << 20), tokenizer.to_json()))}
    prompt, tokens = [ids[b"\xe3"]], [ids[bytes([byte])] for byte in new]
    made = Detokenizer(tokenizer, prompt)
    text = "".join(made.feed([token]) for token in tokens[:-1]) + made.feed(tokens[-1:], final=True)
    assert text == tokenizer.decode(tokens)


class _Counted(Tokenizer):
    """``read``: tokens that were decoded."""

    read = 0

    def decode(self, tokens: Sequence[int]) -> str:
        self.read += len(tokens)
        return super().decode(tokens)


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@pytest.mark.parametrize("kind", ["bytes", "special"])
def test_tokens_without_a_character_are_not_read_again_and_again(make: Callable[[], Any], kind: str) -> None:
    """``allowed_token_ids`` of a client: each token was read with all before it, and with the prompt, on the one thread
    that answers everybody."""
    tokenizer = _Counted(make())
    ids = {text: token for token, text in enumerate(token_bytes(tokenizer.vocabulary(1 << 20), tokenizer.to_json()))}
    token = ids[b"\x80"] if kind == "bytes" else 1
    prompt, made = tokenizer.encode("x" * 4000), 4000
    detokenizer, tokenizer.read = Detokenizer(tokenizer, prompt), 0
    text = "".join(detokenizer.feed([token]) for _ in range(made))
    text += detokenizer.feed(tokenizer.encode("ok")[-2:], final=True)
    assert text == ("\ufffd" * made if kind == "bytes" else "") + "ok"
    assert tokenizer.read < 100 * made


@given(st.lists(st.one_of(st.integers(3, 258), st.sampled_from([131, 1])), max_size=120))
def test_bytes_that_wait_long_are_those_that_they_are_together(tokens: list[int]) -> None:
    assert "".join(pieces(BYTES, [], tokens)) == BYTES.decode(tokens)
