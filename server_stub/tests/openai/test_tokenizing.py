"""``/tokenize`` and ``/detokenize``, beside the tokenizer's own library."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers

from .conftest import user


@pytest.fixture(scope="module")
def tokenizer(repository: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(repository / "sums" / "1" / "tokenizer.json"))


def test_a_prompt_has_the_tokens_of_the_library(http: httpx.Client, tokenizer: tokenizers.Tokenizer) -> None:
    answer = http.post("/tokenize", json={"model": "sums", "prompt": "47+85:"})
    wanted = tokenizer.encode("47+85:").ids
    assert answer.json() == {"count": len(wanted), "max_model_len": None, "tokens": wanted, "token_strs": None}


def test_a_conversation_is_what_the_template_makes(http: httpx.Client, tokenizer: tokenizers.Tokenizer) -> None:
    body = {"model": "sums", "messages": user("1+1:"), "chat_template_kwargs": {"suffix": "9"}}
    wanted = tokenizer.encode("<s>1+1:9", add_special_tokens=False).ids
    assert http.post("/tokenize", json=body).json()["tokens"] == wanted


def test_tokens_become_their_text(http: httpx.Client, tokenizer: tokenizers.Tokenizer) -> None:
    tokens = tokenizer.encode("47+85: 132", add_special_tokens=False).ids
    assert http.post("/detokenize", json={"model": "sums", "tokens": tokens}).json() == {
        "prompt": tokenizer.decode(tokens)
    }


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {"prompt": None}, "prompt"),
        ("/tokenize", {"prompt": "x", "add_special_tokens": False}, "add_special_tokens"),
        ("/tokenize", {"prompt": "x", "return_token_strs": True}, "return_token_strs"),
        ("/tokenize", {"prompt": "x", "model": "parrot"}, "prompt"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1 << 40]}, "tokens"),
    ],
)
def test_what_makes_no_sense_is_refused(path: str, body: dict[str, Any], field: str, http: httpx.Client) -> None:
    answer = http.post(path, json={"model": "sums", **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


def test_tokens_that_the_model_does_not_have(http: httpx.Client) -> None:
    answer = http.post("/detokenize", json={"model": "sums", "tokens": [1 << 20]})
    assert answer.status_code == 400
    assert "has tokens outside of" in answer.json()["error"]["message"]
    assert http.post("/tokenize", json={"model": "nothing", "prompt": "x"}).status_code == 404
