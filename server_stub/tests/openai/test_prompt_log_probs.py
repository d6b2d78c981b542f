"""Log-probabilities of prompts, as harnesses that score texts ask for them: ``echo`` with ``logprobs``."""

from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from .conftest import Token

PROMPT = "47+85:"


def of(made: Any) -> tuple[list[str], list[Any]]:
    (choice,) = made.choices
    return choice.logprobs.tokens, choice.logprobs.token_logprobs


@pytest.fixture(scope="module")
def written(client: OpenAI) -> Any:
    return client.completions.create(model="sums", prompt=PROMPT, temperature=0, max_tokens=6, logprobs=2)


def test_what_was_generated_scores_the_same_as_a_prompt(client: OpenAI, written: Any) -> None:
    text = written.choices[0].text
    made: Any = client.completions.create(model="sums", prompt=PROMPT + text, echo=True, logprobs=2, max_tokens=0)
    tokens, scores = of(made)
    wanted_tokens, wanted_scores = of(written)
    assert made.choices[0].text == PROMPT + text
    assert (tokens[-len(wanted_tokens) :], scores[0]) == (wanted_tokens, None)
    assert scores[-len(wanted_scores) :] == pytest.approx(wanted_scores, abs=1e-3)
    assert made.choices[0].logprobs.top_logprobs[0] is None
    assert made.choices[0].logprobs.text_offset[1] == len(tokens[0])
    assert made.usage is not None
    assert (made.usage.completion_tokens, made.choices[0].finish_reason) == (0, "length")


def test_what_follows_has_its_own_behind_them(client: OpenAI, written: Any) -> None:
    made = client.completions.create(model="sums", prompt=PROMPT, echo=True, logprobs=2, max_tokens=6, temperature=0)
    tokens, scores = of(made)
    wanted_tokens, wanted_scores = of(written)
    assert made.choices[0].text == PROMPT + written.choices[0].text
    assert tokens[-len(wanted_tokens) :] == wanted_tokens
    assert scores[-len(wanted_scores) :] == pytest.approx(wanted_scores, abs=1e-3)


def test_streamed_is_whole(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "sums", "prompt": PROMPT, "echo": True, "logprobs": 1, "temperature": 0}
    whole = client.completions.create(**asked)
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True) if chunk.choices]
    assert "".join(chunk.text for chunk in chunks) == whole.choices[0].text
    assert [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.tokens or ()] == of(whole)[0]


def test_prompts_of_tokens_are_echoed(client: OpenAI, token: Token) -> None:
    tokens = [token(character) for character in PROMPT]
    scored = client.completions.create(model="sums", prompt=[tokens, tokens], echo=True, logprobs=1, max_tokens=1)
    assert [choice.text[: len(PROMPT)] for choice in scored.choices] == [PROMPT, PROMPT]
    plain = client.completions.create(model="sums", prompt=tokens, echo=True, max_tokens=0)
    assert (plain.choices[0].text, plain.choices[0].logprobs) == (PROMPT, None)


def test_tokens_from_the_cache_are_counted(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "sums", "prompt": "12+34:46, 12+34:46, 12+34:46, 12+34:", "max_tokens": 1}
    usages = [client.completions.create(**asked).usage for _ in range(2)]
    assert usages[1] is not None
    details = usages[1].prompt_tokens_details
    assert details is None or 0 < (details.cached_tokens or 0) < usages[1].prompt_tokens


def test_the_field_of_another_server_is_refused_by_name(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as raised:
        client.completions.create(model="sums", prompt=PROMPT, extra_body={"prompt_logprobs": 1})
    assert raised.value.param == "prompt_logprobs"


def test_more_than_the_limit_are_refused_in_openai_form(client: OpenAI, http: httpx.Client) -> None:
    """The limit is that of the model's texts together, also for ``echo`` of tokens."""
    asked: Any = {"model": "narrow", "prompt": [5] * 20_000, "echo": True, "logprobs": 20, "max_tokens": 0}
    response = http.post("/v1/completions", json=asked)
    assert response.status_code == 400
    assert (
        "420000 log-probabilities of prompts, more than 262144; --limit-log-probs"
        in response.json()["error"]["message"]
    )
    with pytest.raises(BadRequestError, match="--limit-log-probs"):
        client.completions.create(**asked, stream=True)
