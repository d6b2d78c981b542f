"""Chats, asked with the official client."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI

from tests.extent import in_full

from .conftest import Token, events, user

PROMPT = "47+85:"
ANSWER = " 7+5=12, 4+8+1=13. 132"
SURE: dict[str, Any] = {"model": "sums", "temperature": 0}


def test_a_chat_is_answered(client: OpenAI) -> None:
    made = client.chat.completions.create(messages=user(PROMPT), **SURE)
    (choice,) = made.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (choice.message.role, choice.message.content, choice.message.tool_calls) == ("assistant", ANSWER, None)
    assert made.object == "chat.completion"
    assert made.model == "sums"
    assert made.id.startswith("chatcmpl-")
    assert made.usage is not None
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (7, len(ANSWER))
    assert made.usage.total_tokens == 7 + len(ANSWER)


def test_a_stream_has_the_same_piece_by_piece(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            messages=user(PROMPT), stream=True, stream_options={"include_usage": True}, **SURE
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    *pieces, last = chunks
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == len(ANSWER)
    assert all(chunk.usage is None for chunk in pieces)
    assert pieces[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == ANSWER
    assert [chunk.choices[0].finish_reason for chunk in pieces][-2:] == [None, "stop"]
    assert len(pieces) > 10


def test_without_the_wish_a_stream_has_no_usage(http: httpx.Client) -> None:
    *chunks, done = events(http, "/v1/chat/completions", {"messages": user(PROMPT), **SURE})
    assert done == "[DONE]"
    assert not any("usage" in chunk for chunk in chunks)


async def test_the_asynchronous_client_gets_the_same(aclient: AsyncOpenAI) -> None:
    made = await aclient.chat.completions.create(messages=user(PROMPT), **SURE)
    assert made.choices[0].message.content == ANSWER
    pieces = [
        chunk.choices[0].delta.content or ""
        async for chunk in await aclient.chat.completions.create(messages=user(PROMPT), stream=True, **SURE)
    ]
    assert "".join(pieces) == ANSWER


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_text_ends_at_its_limit(name: str, client: OpenAI) -> None:
    limit: dict[str, Any] = {name: 5}
    made = client.chat.completions.create(messages=user(PROMPT), **limit, **SURE)
    assert (made.choices[0].message.content, made.choices[0].finish_reason) == (ANSWER[:5], "length")


@pytest.mark.parametrize("stop", [", 4", [", 4", "nothing of it"], ["never", ",", " 4+8"], [" 7+5=12, 4"]])
@pytest.mark.parametrize("stream", [False, True])
def test_a_text_ends_before_a_word(stop: Any, stream: bool, client: OpenAI) -> None:
    wanted = min(ANSWER.find(word) for word in ([stop] if isinstance(stop, str) else stop) if word in ANSWER)
    made: Any = client.chat.completions.create(messages=user(PROMPT), stop=stop, stream=stream, **SURE)
    if stream:
        choices = [chunk.choices[0] for chunk in made]
        text, reason = "".join(choice.delta.content or "" for choice in choices), choices[-1].finish_reason
    else:
        text, reason = made.choices[0].message.content, made.choices[0].finish_reason
    assert (text, reason) == (ANSWER[:wanted], "stop")


def test_seeds_decide_and_without_one_texts_differ(client: OpenAI) -> None:
    def drawn(**more: Any) -> list[str | None]:
        made = client.chat.completions.create(
            model="sums", messages=user("1"), temperature=2, max_tokens=20, n=3, **more
        )
        assert [choice.index for choice in made.choices] == [0, 1, 2]
        return [choice.message.content for choice in made.choices]

    first = drawn(seed=7)
    assert len(set(first)) > 1
    assert drawn(seed=7) == first
    assert drawn(seed=8) != first
    assert drawn() != drawn()
    assert drawn(seed=-1) == drawn(seed=-1)


def test_choices_of_a_stream_are_told_apart(client: OpenAI) -> None:
    texts = {0: "", 1: ""}
    sampled: dict[str, Any] = {"model": "sums", "messages": user("1"), "temperature": 2, "seed": 5, "n": 2}
    for chunk in client.chat.completions.create(stream=True, max_tokens=10, **sampled):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    whole = client.chat.completions.create(max_tokens=10, **sampled)
    assert [choice.message.content for choice in whole.choices] == list(texts.values())


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_come_with_log_probabilities(stream: bool, client: OpenAI) -> None:
    asked: dict[str, Any] = {"messages": user(PROMPT), "logprobs": True, "top_logprobs": 3, "max_tokens": 6, **SURE}
    made: Any = client.chat.completions.create(stream=stream, **asked)
    pieces = [chunk.choices[0].logprobs for chunk in made] if stream else [made.choices[0].logprobs]
    tokens = [token for piece in pieces if piece for token in piece.content]
    assert "".join(token.token for token in tokens) == ANSWER[:6]
    for token in tokens:
        assert bytes(token.bytes).decode() == token.token
        assert token.top_logprobs[0].token == token.token
        assert sorted((other.logprob for other in token.top_logprobs), reverse=True) == [
            other.logprob for other in token.top_logprobs
        ]
        assert token.logprob == token.top_logprobs[0].logprob <= 0


def test_alone_log_probabilities_have_no_others(client: OpenAI) -> None:
    made = client.chat.completions.create(messages=user(PROMPT), logprobs=True, max_tokens=3, **SURE)
    assert made.choices[0].logprobs is not None
    assert made.choices[0].logprobs.content is not None
    assert [token.top_logprobs for token in made.choices[0].logprobs.content] == [[], [], []]


def test_a_bias_and_penalties_change_the_text(client: OpenAI, token: Token) -> None:
    def text(**more: Any) -> str:
        return client.chat.completions.create(messages=user(PROMPT), **SURE, **more).choices[0].message.content or ""

    assert text() == ANSWER
    assert "7" not in text(logit_bias={str(token("7")): -100}, max_tokens=8)
    assert text(logit_bias={str(token("7")): 100}, max_tokens=4) == "7777"
    penalties: list[dict[str, Any]] = [{}, {"frequency_penalty": 2, "presence_penalty": 2}]
    plain, punished = (
        client.chat.completions.create(messages=user(PROMPT), logprobs=True, max_tokens=5, **SURE, **more)
        for more in penalties
    )
    assert plain.choices[0].logprobs != punished.choices[0].logprobs


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_followed(stream: bool, client: OpenAI, token: Token) -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}, "sure": {"type": "boolean"}},
        "required": ["age", "sure"],
        "additionalProperties": False,
    }
    # A model of sums would rather write spaces without end.
    spaces = {str(token(space)): -100 for space in " \n\t\r"}
    form: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    made: Any = client.chat.completions.create(
        messages=user(PROMPT), response_format=form, stream=stream, logit_bias=spaces, max_tokens=100, **SURE
    )
    text = (
        "".join(chunk.choices[0].delta.content or "" for chunk in made) if stream else made.choices[0].message.content
    )
    found = json.loads(text)
    assert 0 <= found["age"] <= 99
    assert isinstance(found["sure"], bool)


def test_any_object_will_do_if_no_schema_is_given(client: OpenAI, token: Token) -> None:
    biases = {str(token(space)): -100 for space in " \n\t\r"} | {str(token("}")): 100}
    made = client.chat.completions.create(
        messages=user(PROMPT), response_format={"type": "json_object"}, logit_bias=biases, max_tokens=100, **SURE
    )
    assert made.choices[0].message.content == "{}"
    free = client.chat.completions.create(messages=user(PROMPT), response_format={"type": "text"}, **SURE)
    assert free.choices[0].message.content == ANSWER


def test_values_for_the_template_reach_it(client: OpenAI) -> None:
    suffixed = client.chat.completions.create(
        messages=user("47+8"), extra_body={"chat_template_kwargs": {"suffix": "5:"}}, **SURE
    )
    assert suffixed.choices[0].message.content == ANSWER


def test_parts_of_a_text_are_joined_and_newer_roles_known(client: OpenAI) -> None:
    parts: Any = [
        {"role": "developer", "content": "4"},
        {"role": "user", "content": [{"type": "text", "text": "repeat the"}, {"type": "text", "text": "request"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1, 2]}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "user", "content": "repeat the request"},
    ]
    made = client.chat.completions.create(
        model="parrot", messages=parts, temperature=0.5, reasoning_effort="low", extra_body={"min_p": 0.25}
    )
    assert made.choices[0].message.content is not None
    seen = json.loads(made.choices[0].message.content)
    assert [message["role"] for message in seen["messages"]] == ["system", "user", "assistant", "tool", "user"]
    assert seen["messages"][1]["content"] == "repeat the\nrequest"
    assert seen["messages"][2]["content"] == ""
    assert seen["messages"][2]["tool_calls"][0]["function"]["arguments"] == {"x": [1, 2]}
    assert seen["messages"][3]["tool_call_id"] == "c1"
    assert seen["values"] == {"reasoning_effort": "low"}
    assert seen["sampling"].pop("seed") >= 0
    assert seen["sampling"] == {"temperature": 0.5, "min_p": 0.25}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["sums", "once", "parrot"])
def test_models_that_stream_and_models_that_do_not_are_asked_alike(model: str, stream: bool, client: OpenAI) -> None:
    made: Any = client.chat.completions.create(model=model, messages=user(PROMPT), temperature=0, stream=stream)
    if stream:
        choices = [chunk.choices[0] for chunk in made]
        text, reason = "".join(choice.delta.content or "" for choice in choices), choices[-1].finish_reason
    else:
        text, reason = made.choices[0].message.content, made.choices[0].finish_reason
    assert text == (PROMPT if model == "parrot" else ANSWER)
    assert reason == "stop"


@pytest.mark.slow
def test_many_chats_at_once_are_those_one_by_one(client: OpenAI) -> None:
    prompts = [f"{a}+{b}:" for a in range(30, in_full(40, otherwise=33)) for b in range(60, 70)]

    def streamed(prompt: str) -> str:
        pieces = client.chat.completions.create(messages=user(prompt), stream=True, **SURE)
        return "".join(chunk.choices[0].delta.content or "" for chunk in pieces)

    alone = [streamed(prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(streamed, prompts)) == alone
    assert len(set(alone)) > len(alone) // 2


def test_fields_that_are_not_known_are_ignored(http: httpx.Client) -> None:
    body = {"messages": user(PROMPT), "user": "me", "metadata": {}, "prediction": None, "invented": [1], **SURE}
    assert http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"] == ANSWER


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 3),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 1.5),
        ("n", 0),
        ("n", 1.5),
        ("max_tokens", 0),
        ("max_completion_tokens", -1),
        ("stop", {}),
        ("stop", ["x", 1]),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", []),
        ("top_logprobs", 2),
        ("seed", "x"),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
        ("messages", []),
        ("messages", "hello"),
        ("messages", [{"content": "x"}]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": 1}]),
        ("messages", [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x", "format": "mp3"}),
        ("web_search_options", {}),
        ("verbosity", "high"),
        ("store", True),
        ("service_tier", "priority"),
    ],
)
def test_a_field_that_makes_no_sense_or_cannot_be_honoured_is_named(field: str, value: Any, http: httpx.Client) -> None:
    body = {"messages": user(PROMPT), **SURE, field: value}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"].startswith(field)
    assert error["type"] == "invalid_request_error"
    assert f"'{error['param']}" in error["message"]


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ({"type": "image_url", "image_url": {"url": "data:"}}, "images"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "audio"),
        ({"type": "file", "file": {}}, "files"),
    ],
)
def test_images_and_audio_are_refused_by_name(part: Any, what: str, client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match=f"models here take no {what}") as caught:
        client.chat.completions.create(messages=[{"role": "user", "content": [part]}], **SURE)
    assert caught.value.param == "messages[0].content[0].type"


@pytest.mark.parametrize("value", [None])
@pytest.mark.parametrize("field", ["temperature", "n", "stop", "tools", "response_format", "stream_options", "seed"])
def test_null_counts_as_not_given(field: str, value: None, http: httpx.Client) -> None:
    body = {"messages": user(PROMPT), **SURE, field: value, "max_tokens": 4}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
