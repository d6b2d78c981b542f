"""Tokenizers of GGUF files beside llama.cpp and SentencePiece."""

import json
import re
from typing import Any

import numpy as np
import pytest
import tokenizers
from repoagent_llm.builder.gguf import GgufFile
from repoagent_llm.builder.gguf_tokenizer import GgufTokenizer

from llm.tests.builder.conftest import FILES, GGUF, RECORDED
from repoagent.errors import InvalidArgumentError, UnsupportedError


def _tokenizer(files: dict[str, str]) -> Any:
    return tokenizers.Tokenizer.from_str(files["tokenizer.json"])


@pytest.mark.parametrize("name", list(FILES))
def test_tokens_are_those_of_llama_cpp_and_of_sentence_piece(name: str) -> None:
    inner = _tokenizer(GgufTokenizer(GgufFile(GGUF / f"{name}.gguf")).files(330))
    for text, wanted in zip(RECORDED["questions"], FILES[name]["tokens"], strict=True):
        found = inner.encode(text).ids
        assert found == wanted, text
        assert found == FILES[name].get("pieces", {}).get(text, found)
        plain = inner.encode(text, add_special_tokens=False).ids
        if "<" not in text:
            assert inner.decode(plain) == text


@pytest.mark.parametrize("pre", list(RECORDED["words"]))
def test_words_are_those_of_tiktoken(pre: str) -> None:
    inner = _tokenizer(_changed("llama-f32", pre=pre).files(290))
    for text, wanted in RECORDED["words"][pre].items():
        assert [text[slice(*place)] for _, place in inner.pre_tokenizer.pre_tokenize_str(text)] == wanted
        assert inner.decode(inner.encode(text).ids, skip_special_tokens=False) == text


def test_template_and_special_tokens_lie_beside_it() -> None:
    files = GgufTokenizer(GgufFile(GGUF / "llama-f32.gguf")).files(290)
    assert "messages" in files["chat_template.jinja"]
    assert json.loads(files["tokenizer_config.json"]) == {"bos_token": "<s>", "eos_token": "</s>"}
    assert "chat_template.jinja" not in GgufTokenizer(GgufFile(GGUF / "llama-q8_0.gguf")).files(330)


def _changed(name: str, **values: Any) -> GgufTokenizer:
    file = GgufFile(GGUF / f"{name}.gguf")
    file.values = {**file.values, **{f"tokenizer.ggml.{key}": value for key, value in values.items()}}
    return GgufTokenizer(file)


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("llama-f32", {"tokens": [], "token_type": None}, "tokens' is missing"),
        ("llama-f32", {"tokens": 5}, "tokens' must be an array of texts"),
        ("llama-f32", {"tokens": ["a"] * 290}, "tokens' has a token twice"),
        ("llama-f32", {"token_type": np.ones(3, np.int32)}, "token_type' must be an array of 290 numbers"),
        ("llama-f32", {"token_type": np.ones(290, np.float32)}, "token_type' must be an array of 290 numbers"),
        ("llama-f32", {"merges": ["nothing here"]}, "merges' has a pair that is not of tokens: 'nothing here'"),
        ("llama-f32", {"merges": [" "]}, "merges' has a pair"),
        ("llama-f32", {"bos_token_id": 290}, "bos_token_id' must be the number of a token below 290"),
        ("llama-f32", {"add_bos_token": 1}, "add_bos_token' must be true or false"),
        ("llama-q8_0", {"scores": np.zeros(9, np.float32)}, "scores' must be an array of 330 numbers"),
        ("llama-q8_0", {"scores": np.full(330, np.nan, np.float32)}, "scores' must be 330 numbers, all of them finite"),
        (
            "llama-q8_0",
            {"tokens": [f"{number:0>2000}" for number in range(330)]},
            "tokens' has tokens of more than 1024 characters",
        ),
    ],
)
def test_a_tokenizer_that_lies_is_refused_by_its_key(name: str, values: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"the key 'tokenizer.ggml.{text}"):
        _changed(name, **values).files(330)


def test_more_tokens_than_the_model_has_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="has 290 tokens, but the model has 289"):
        GgufTokenizer(GgufFile(GGUF / "llama-f32.gguf")).files(289)


@pytest.mark.parametrize("values", [{"model": "t5"}, {"pre": "tekken"}, {"pre": 5}, {"model": np.ones(2)}])
def test_kinds_that_are_not_known_are_refused_by_name(values: dict[str, Any]) -> None:
    shown = re.escape(repr(next(iter(values.values()))))
    with pytest.raises(UnsupportedError, match=f"{shown}.* is not supported: read are"):
        _changed("llama-f32", **values).files(330)
