"""Texts of random tokens: as a whole and in pieces they are those that transformers decodes."""

import json
from pathlib import Path
from typing import Any

import pytest
from repoagent_llm.backend.tokenizing import Detokenizer, Tokenizer

from llm.tests.backend.tiny import byte_fallback, byte_level

STORED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("data").joinpath("decode/texts.json").read_text())[
    "texts"
]
TOKENIZERS = {"byte_level": Tokenizer(byte_level()), "byte_fallback": Tokenizer(byte_fallback())}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_text_of_tokens_is_that_of_transformers(name: str) -> None:
    stored = [item for item in STORED if item["tokenizer"] == name]
    assert len(stored) > 100
    for item in stored:
        assert TOKENIZERS[name].decode(item["tokens"]) == item["text"]


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_are_the_text_and_break_no_character(name: str, size: int) -> None:
    """Random bytes are characters that can never be; those that can be are never sent in parts."""
    tokenizer = TOKENIZERS[name]
    for item in STORED:
        if item["tokenizer"] != name:
            continue
        detokenizer, tokens = Detokenizer(tokenizer, []), item["tokens"]
        cuts = range(0, len(tokens), size)
        pieces = [detokenizer.feed(tokens[start : start + size], final=start + size >= len(tokens)) for start in cuts]
        if "\ufffd" not in item["text"]:
            assert "".join(pieces) == item["text"]
            assert not any("\ufffd" in piece for piece in pieces)
        elif name == "byte_level":
            assert "".join(pieces) == item["text"]
