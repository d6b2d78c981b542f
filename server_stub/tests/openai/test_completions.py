"""Completions, asked with the official client."""

from typing import Any

import httpx
import pytest
from openai import OpenAI

from .conftest import Token, events

PROMPT = "47+85:"
ANSWER = " 7+5=12, 4+8+1=13. 132"
SURE: dict[str, Any] = {"model": "sums", "temperature": 0}


def test_a_prompt_is_continued(client: OpenAI) -> None:
    made = client.completions.create(prompt=PROMPT, max_tokens=40, **SURE)
    (choice,) = made.choices
    assert (choice.index, choice.text, choice.finish_reason, choice.logprobs) == (0, ANSWER, "stop", None)
    assert (made.object, made.model) == ("text_completion", "sums")
    assert made.usage is not None
    assert made.usage.completion_tokens == len(ANSWER)


def test_without_a_limit_there_are_sixteen_tokens(client: OpenAI) -> None:
    made = client.completions.create(prompt=PROMPT, **SURE)
    assert (made.choices[0].text, made.choices[0].finish_reason) == (ANSWER[:16], "length")


def test_a_stream_has_the_same_piece_by_piece(client: OpenAI) -> None:
    chunks = list(
        client.completions.create(
            prompt=PROMPT, max_tokens=40, stream=True, stream_options={"include_usage": True}, **SURE
        )
    )
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == ANSWER
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(ANSWER)


def test_several_prompts_have_several_choices(client: OpenAI) -> None:
    alone = [client.completions.create(prompt=text, **SURE).choices[0].text for text in (PROMPT, "1+1:")]
    made = client.completions.create(prompt=[PROMPT, "1+1:"], n=2, **SURE)
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in made.choices] == [alone[0], alone[0], alone[1], alone[1]]
    assert made.usage is not None
    assert made.usage.prompt_tokens == 7 + 5


def test_prompts_may_be_tokens(client: OpenAI, token: Token) -> None:
    ids = [1, *map(token, PROMPT)]
    assert client.completions.create(prompt=ids, **SURE).choices[0].text == ANSWER[:16]
    made = client.completions.create(prompt=[ids, ids], **SURE)
    assert [choice.text for choice in made.choices] == [ANSWER[:16]] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_repeats_the_prompt(stream: bool, client: OpenAI) -> None:
    made: Any = client.completions.create(prompt=PROMPT, echo=True, stream=stream, **SURE)
    chunks = list(made) if stream else [made]
    assert "".join(chunk.choices[0].text for chunk in chunks) == PROMPT + ANSWER[:16]


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_come_with_log_probabilities(stream: bool, client: OpenAI) -> None:
    made: Any = client.completions.create(prompt=PROMPT, logprobs=2, stream=stream, max_tokens=5, **SURE)
    tables = [chunk.choices[0].logprobs for chunk in made] if stream else [made.choices[0].logprobs]
    assert [text for table in tables for text in table.tokens] == list(ANSWER[:5])
    assert [place for table in tables for place in table.text_offset] == [0, 1, 2, 3, 4]
    for table in tables:
        for text, value, others in zip(table.tokens, table.token_logprobs, table.top_logprobs, strict=True):
            assert others[text] == value
            assert len(others) == 2


def test_a_word_ends_the_text_before_it(client: OpenAI) -> None:
    made = client.completions.create(prompt=PROMPT, stop=["4+8"], max_tokens=40, **SURE)
    assert (made.choices[0].text, made.choices[0].finish_reason) == (" 7+5=12, ", "stop")


@pytest.mark.parametrize("model", ["sums", "once", "parrot", "chain"])
def test_models_with_the_tensors_are_asked_alike(model: str, http: httpx.Client) -> None:
    """Those of the backend, models in Python, and ensembles over them."""
    answer = PROMPT if model in ("parrot", "chain") else ANSWER[:16]
    body = {"model": model, "prompt": PROMPT} | ({} if model == "chain" else {"temperature": 0})
    response = http.post("/v1/completions", json=body)
    assert response.json()["choices"][0]["text"] == answer
    *chunks, done = events(http, "/v1/completions", body)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == answer


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", None),
        ("prompt", []),
        ("prompt", {}),
        ("prompt", [1, "x"]),
        ("prompt", [[]]),
        ("prompt", [-1]),
        ("suffix", "end"),
        ("best_of", 3),
        ("logprobs", 21),
        ("max_tokens", -1),
    ],
)
def test_a_field_that_makes_no_sense_or_cannot_be_honoured_is_named(field: str, value: Any, http: httpx.Client) -> None:
    response = http.post("/v1/completions", json={"prompt": PROMPT, **SURE, field: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("field", "more"),
    [("n", {"prompt": ["x"] * 9, "n": 128}), ("stop", {"stop": ["x"] * 65}), ("stop", {"stop": ["x" * 4097]})],
)
def test_what_would_cost_everybody_is_limited(field: str, more: dict[str, Any], http: httpx.Client) -> None:
    response = http.post("/v1/completions", json={"prompt": PROMPT, **SURE, **more})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


def test_a_model_without_such_an_input_refuses_the_field(http: httpx.Client) -> None:
    for field in ("top_k", "max_tokens"):
        error = http.post("/v1/completions", json={"model": "chain", "prompt": PROMPT, field: 3}).json()["error"]
        assert error["message"].startswith(f"'{field}' cannot be honoured: model 'chain' has no input")
        assert error["param"] == field
