"""Every field means the same in a stream, asked with the official client."""

from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types import Completion, CompletionUsage
from openai.types.chat import ChatCompletion

from .conftest import Token, events, user

PROMPT = "47+85:"
DRAWN: dict[str, Any] = {"temperature": 1.5, "seed": 11, "max_tokens": 12}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"], "additionalProperties": False}
FIELDS: dict[str, dict[str, Any]] = {
    "nothing": {"temperature": 0},
    "max_tokens": {"temperature": 0, "max_tokens": 5},
    "temperature and seed": DRAWN,
    "top_p": {**DRAWN, "top_p": 0.5},
    "n": {**DRAWN, "n": 3},
    "stop": {"temperature": 0, "stop": [", 4", "never"]},
    "presence_penalty": {**DRAWN, "presence_penalty": 1.5},
    "frequency_penalty": {**DRAWN, "frequency_penalty": 1.5},
    "user": {"temperature": 0, "user": "me"},
    "fields of vLLM": {**DRAWN, "extra_body": {"top_k": 5, "min_p": 0.05, "repetition_penalty": 1.2, "min_tokens": 3}},
    "ignore_eos": {"temperature": 0, "max_tokens": 40, "extra_body": {"ignore_eos": True}},
    "logit_bias": {"temperature": 0, "max_tokens": 8, "logit_bias": {"7": -100}},
}
CHATS: dict[str, dict[str, Any]] = {
    "max_completion_tokens": {"temperature": 0, "max_completion_tokens": 5},
    "logprobs": {**DRAWN, "logprobs": True, "top_logprobs": 3},
    "text": {"temperature": 0, "response_format": {"type": "text"}},
    "json_object": {"response_format": {"type": "json_object"}, "temperature": 1, "seed": 3, "max_tokens": 30},
    "json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
        "temperature": 1,
        "seed": 3,
        "max_tokens": 30,
    },
    "reasoning_effort": {"temperature": 0, "reasoning_effort": "low"},
    "values for the template": {"temperature": 0, "extra_body": {"chat_template_kwargs": {"suffix": "1"}}},
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "logprobs": {**DRAWN, "logprobs": 3},
    "echo": {"temperature": 0, "echo": True},
    "best_of": {**DRAWN, "n": 2, "best_of": 2},
    "several prompts": {"prompt": [PROMPT, "1+1:", "22+9:"], "temperature": 0},
}
Summary = list[tuple[int, str, str | None, list[Any]]]


def tokens(usage: CompletionUsage | None) -> tuple[int, int]:
    """The counts that do not depend on what the cache has."""
    assert usage is not None
    return usage.prompt_tokens, usage.completion_tokens


def _of_chat(made: ChatCompletion) -> Summary:
    return [
        (
            choice.index,
            choice.message.content or "",
            choice.finish_reason,
            [] if choice.logprobs is None else choice.logprobs.content or [],
        )
        for choice in made.choices
    ]


def _of_completion(made: Completion) -> Summary:
    return [
        (
            choice.index,
            choice.text,
            choice.finish_reason,
            [] if choice.logprobs is None else list(zip(*_columns(choice.logprobs), strict=True)),
        )
        for choice in made.choices
    ]


def _columns(log_probs: Any) -> list[list[Any]]:
    return [log_probs.tokens, log_probs.token_logprobs, log_probs.top_logprobs, log_probs.text_offset]


def _joined(pieces: list[Summary]) -> Summary:
    """The summary of a stream."""
    found: dict[int, tuple[int, str, str | None, list[Any]]] = {}
    for index, text, reason, log_probs in (entry for piece in pieces for entry in piece):
        _, before, ended, known = found.get(index, (index, "", None, []))
        assert ended is None
        found[index] = (index, before + text, reason, known + log_probs)
    return [found[index] for index in sorted(found)]


def _of_chunk(chunk: Any) -> Summary:
    return [
        (
            choice.index,
            choice.delta.content or "",
            choice.finish_reason,
            [] if choice.logprobs is None else choice.logprobs.content or [],
        )
        for choice in chunk.choices
    ]


@pytest.mark.parametrize("name", [*FIELDS, *CHATS])
def test_a_chat_is_the_same_in_pieces(name: str, client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "sums", "messages": user(PROMPT), **(FIELDS | CHATS)[name]}
    whole = client.chat.completions.create(**asked)
    *chunks, last = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **asked)
    assert _joined([_of_chunk(chunk) for chunk in chunks]) == _of_chat(whole)
    assert tokens(last.usage) == tokens(whole.usage)
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 0


@pytest.mark.parametrize("name", [*FIELDS, *COMPLETIONS])
def test_a_completion_is_the_same_in_pieces(name: str, client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "sums", "prompt": PROMPT, **(FIELDS | COMPLETIONS)[name]}
    whole = client.completions.create(**asked)
    *chunks, last = client.completions.create(stream=True, stream_options={"include_usage": True}, **asked)
    assert _joined([_of_completion(chunk) for chunk in chunks]) == _of_completion(whole)
    assert tokens(last.usage) == tokens(whole.usage)


def test_tokens_as_prompts_are_the_same_in_pieces(client: OpenAI, token: Token) -> None:
    tokens = [token(letter) for letter in PROMPT]
    for prompt in (tokens, [tokens, tokens[:4]]):
        asked: dict[str, Any] = {"model": "sums", "prompt": prompt, "temperature": 0}
        whole = client.completions.create(**asked)
        chunks = list(client.completions.create(stream=True, **asked))
        assert _joined([_of_completion(chunk) for chunk in chunks]) == _of_completion(whole)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("ended", ["word", "token", "length", "end"])
def test_what_has_ended_a_text_is_reported_as_by_vllm(
    ended: str, path: str, stream: bool, http: httpx.Client, token: Token
) -> None:
    comma = token(",")
    cases: dict[str, tuple[dict[str, Any], Any]] = {
        "word": ({"stop": ["never", ", 4", ", 4+"]}, ("stop", ", 4")),
        "token": ({"stop_token_ids": [comma], "stop": ["never"]}, ("stop", comma)),
        "length": ({"max_tokens": 2}, ("length", None)),
        "end": ({}, ("stop", None)),
    }
    fields, wanted = cases[ended]
    prompt = {"messages": user(PROMPT)} if path.startswith("chat") else {"prompt": PROMPT}
    body = {"model": "sums", "temperature": 0, "max_tokens": 40, **prompt, **fields}
    if stream:
        *chunks, _ = events(http, f"/v1/{path}", body)
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        assert all(choice.get("stop_reason") is None for choice in choices[:-1])
    else:
        choices = http.post(f"/v1/{path}", json=body).json()["choices"]
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == wanted


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_each_chunk_has_the_usage_so_far_if_that_is_wanted(path: str, http: httpx.Client) -> None:
    prompt = {"messages": user(PROMPT)} if path.startswith("chat") else {"prompt": PROMPT}
    body = {"model": "sums", "temperature": 0, "max_tokens": 5, **prompt}
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _ = events(http, f"/v1/{path}", {**body, "stream_options": options})
    made = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert made == sorted(made)
    assert set(range(1, 6)) <= set(made)
    assert all(chunk["usage"]["prompt_tokens"] == chunks[-1]["usage"]["prompt_tokens"] for chunk in chunks)
    *chunks, _ = events(http, f"/v1/{path}", {**body, "stream_options": {**options, "include_usage": False}})
    assert not any("usage" in chunk for chunk in chunks)
