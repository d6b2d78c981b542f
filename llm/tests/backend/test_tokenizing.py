"""A tokenizer file as the backend reads it."""

from pathlib import Path

import pytest
from repoagent_llm.backend.tokenizing import Tokenizer

from llm.tests.backend.tiny import byte_fallback, byte_level
from repoagent.errors import InvalidArgumentError, UnavailableError


def saved(tmp_path: Path, inner: object) -> Path:
    inner.save(str(tmp_path / "tokenizer.json"))  # type: ignore[attr-defined]
    return tmp_path


def test_a_file_that_cuts_and_fills_texts_does_so_no_more(tmp_path: Path) -> None:
    inner = byte_level()
    inner.enable_truncation(3)
    inner.enable_padding(length=8)
    tokenizer = Tokenizer.load(saved(tmp_path, inner))
    assert tokenizer.decode(tokenizer.encode("a longer text")) == "a longer text"


def test_words_have_no_special_tokens_around_them_and_empty_ones_are_none(tmp_path: Path) -> None:
    from tokenizers import processors

    inner = byte_level()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    folder = saved(tmp_path, inner)
    tokenizer = Tokenizer.load(folder)
    (word,) = tokenizer.words(["", "x"])
    assert tokenizer.encode("x") == [1, *word]
    assert tokenizer.words(["</s>"]) == [[2]]
    assert Tokenizer.load(folder, add_special=False).encode("x") == word


@pytest.mark.parametrize("inner", [byte_level(), byte_fallback()], ids=["bytes", "fallback"])
def test_the_vocabulary_has_each_token_at_its_id(inner: object) -> None:
    tokenizer = Tokenizer(inner)
    names = tokenizer.vocabulary(10_000)
    assert names[:3] == ["<unk>", "<s>", "</s>"]
    assert all(names)
    assert tokenizer.vocabulary(2) == ["<unk>", "<s>"]


def test_a_missing_and_a_broken_file_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "1"
    folder.mkdir()
    with pytest.raises(UnavailableError, match=r"unable to find '1/tokenizer.json': put the model's tokenizer"):
        Tokenizer.load(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidArgumentError, match=r"'1/tokenizer.json' is not a tokenizer: "):
        Tokenizer.load(folder)
