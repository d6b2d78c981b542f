"""Embeddings of any model with one input of texts and one output of FP32, and the list of models."""

import base64
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from repoagent_llm.backend.tokenizing import Tokenizer


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_texts_become_vectors(form: Any, client: OpenAI) -> None:
    more = {} if form is None else {"encoding_format": form}
    made = client.embeddings.create(model="letters", input=["banana", "", "a" * 100], **more)
    vectors = [item.embedding for item in made.data]
    if form == "base64":
        vectors = [np.frombuffer(base64.b64decode(str(text)), np.float32).tolist() for text in vectors]
    assert vectors == [[6, 3], [0, 0], [100, 100]]
    assert [item.index for item in made.data] == [0, 1, 2]
    assert client.embeddings.create(model="letters", input="aa").data[0].embedding == [2, 2]


def test_hidden_states_of_a_language_model_are_vectors_of_length_one(client: OpenAI, http: httpx.Client) -> None:
    texts = ["1+1=", "12+30=", "1+1="]
    first, other, again = (
        np.array(item.embedding) for item in client.embeddings.create(model="states", input=texts).data
    )
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-5)
    assert first == pytest.approx(again, abs=1e-5)
    response = http.post("/v1/score", json={"model": "states", "text_1": texts[0], "text_2": texts[1:]})
    scores = [item["score"] for item in response.json()["data"]]
    assert scores == pytest.approx([float(first @ other), 1], abs=1e-5)
    with pytest.raises(BadRequestError, match="makes no embeddings"):
        client.embeddings.create(model="once", input="1+1=")
    with pytest.raises(BadRequestError):
        client.completions.create(model="states", prompt="1+1=")


def test_tokens_are_counted_as_the_tokenizer_does_and_may_be_the_input(
    client: OpenAI, http: httpx.Client, repository: Path
) -> None:
    tokenizer = Tokenizer.load(repository / "states" / "1")
    texts = ["1+1=", "12+30=", "123+456:7"]
    tokens = [tokenizer.encode(text) for text in texts]
    count = sum(map(len, tokens))
    of_texts = client.embeddings.create(model="states", input=texts)
    of_tokens = client.embeddings.create(model="states", input=tokens)
    assert (of_texts.usage.prompt_tokens, of_texts.usage.total_tokens) == (count, count)
    assert of_tokens.usage == of_texts.usage
    for one, other in zip(of_texts.data, of_tokens.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-5)
    one_text = client.embeddings.create(model="states", input=tokens[1])
    assert len(one_text.data) == 1
    assert one_text.usage.prompt_tokens == len(tokens[1])
    score = http.post("/v1/score", json={"model": "states", "text_1": texts[0], "text_2": texts[1:]}).json()
    ranked = http.post("/v1/rerank", json={"model": "states", "query": texts[0], "documents": texts[1:]}).json()
    assert score["usage"] == ranked["usage"] == {"prompt_tokens": count, "total_tokens": count}
    with pytest.raises(BadRequestError, match="tokens outside of 0 to"):
        client.embeddings.create(model="states", input=[10**6])


def test_a_model_that_takes_no_tokens_and_counts_none(client: OpenAI) -> None:
    assert client.embeddings.create(model="letters", input="banana").usage.prompt_tokens == 0
    with pytest.raises(BadRequestError, match="model 'letters' has no input 'input_ids'") as caught:
        client.embeddings.create(model="letters", input=[1, 2])
    assert caught.value.param == "input"


_NO_TEXTS: list[object] = [[], None, [[]], ["x", 1], ["x", [1]], [-1], [1 << 31], [True], [[1], 2]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("input", value) for value in _NO_TEXTS),
        ("input", ["x"] * 2049),
        ("encoding_format", "hex"),
    ],
)
def test_a_field_that_makes_no_sense_is_named(field: str, value: Any, http: httpx.Client) -> None:
    response = http.post("/v1/embeddings", json={"model": "letters", "input": "x", field: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


def test_other_sizes_and_other_models_are_refused(client: OpenAI) -> None:
    assert len(client.embeddings.create(model="letters", input="x", dimensions=2).data) == 1
    with pytest.raises(BadRequestError, match="vectors of model 'letters' have 2"):
        client.embeddings.create(model="letters", input="x", dimensions=3)
    with pytest.raises(BadRequestError, match="model 'sums' makes no embeddings"):
        client.embeddings.create(model="sums", input="x")


def test_models_are_listed_that_can_be_asked(client: OpenAI) -> None:
    names = {model.id for model in client.models.list()}
    assert names == {"sums", "once", "narrow", "over_narrow", "thinker", "parrot", "letters", "chain", "states"}
    model = client.models.retrieve("sums")
    assert (model.id, model.object, model.owned_by) == ("sums", "model", "repoagent")
    assert model.created > 1_600_000_000
    with pytest.raises(NotFoundError) as caught:
        client.models.retrieve("none")
    assert caught.value.code == "model_not_found"
