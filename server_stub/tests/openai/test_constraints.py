"""What a request wants its text to follow is followed, or refused by name."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from repoagent_server import KServeHttp

from repoagent.server import ModelControlMode, Server
from repoagent.serving.versions import served_model

from .conftest import Token, user

pytestmark = pytest.mark.slow

SURE: dict[str, Any] = {"model": "sums", "temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CHAT = Path(__file__).resolve().parents[3] / "examples" / "chat" / "repository"
QUESTIONS = ["Who is the baker?", "Who lives by the mill?", "Hello", "What is your name?", "Who are you?"]
TOOL = {"type": "function", "function": {"name": "note", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def elmbrook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """The model of examples/chat, which likes to write blanks."""
    place = tmp_path_factory.mktemp("elmbrook")
    with (
        Server(
            model_repository=str(CHAT),
            model_control_mode=ModelControlMode.EXPLICIT,
            workspace_directory=str(place / "work"),
            agent_cache_directory=str(place / "cache"),
        ) as server,
        KServeHttp(server, KServeHttp.Options(port=0, allow_openai=True)) as http,
        OpenAI(base_url="http://{}:{}/v1".format(*http.address), api_key="any", timeout=60) as client,
    ):
        server.load("elmbrook")
        yield client


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(
    "wishes",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "note"}}},
        {"extra_body": {"guided_json": SCHEMA}},
        {"extra_body": {"structured_outputs": {"json": json.dumps(SCHEMA)}}},
    ],
    ids=["schema", "required", "named", "guided", "structured"],
)
def test_json_of_a_chat_ends(elmbrook: OpenAI, question: str, wishes: dict[str, Any]) -> None:
    """M1: white space without end took all of max_tokens."""
    made: Any = elmbrook.chat.completions.create(
        model="elmbrook", messages=user(question), temperature=0, max_tokens=120, **wishes
    )
    (choice,) = made.choices
    assert choice.finish_reason in ("stop", "tool_calls")
    calls = choice.message.tool_calls
    value = json.loads(calls[0].function.arguments if calls else choice.message.content)
    assert value.keys() == {"name", "age"}


@pytest.mark.parametrize(
    ("wishes", "texts"),
    [
        ({"guided_regex": "(yes|no)7"}, {"yes7", "no7"}),
        ({"guided_choice": ["1(2", "3+4\n", 'a"/\\d']}, {"1(2", "3+4\n", 'a"/\\d'}),
        ({"guided_grammar": 'root ::= "1" | "23"'}, {"1", "23"}),
        ({"structured_outputs": {"regex": "[45]"}}, {"4", "5"}),
        ({"structured_outputs": {"choice": ["6", "78"]}}, {"6", "78"}),
        ({"structured_outputs": {"grammar": 'root ::= "9"'}}, {"9"}),
    ],
)
@pytest.mark.parametrize("chat", [True, False])
def test_fields_of_other_servers_that_guide_a_text_are_obeyed(
    elmbrook: OpenAI, wishes: dict[str, Any], texts: set[str], chat: bool
) -> None:
    """M3: they were ignored, with status 200."""
    asked: dict[str, Any] = {"model": "elmbrook", "temperature": 0, "max_tokens": 60, "extra_body": wishes}
    if chat:
        text = elmbrook.chat.completions.create(messages=user("1"), **asked).choices[0].message.content
    else:
        text = elmbrook.completions.create(prompt="1", **asked).choices[0].text
    assert text in texts


def test_words_and_tokens_may_be_allowed_or_forbidden(client: OpenAI, token: Token) -> None:
    """M3: they were ignored, with status 200."""

    def text(**wishes: Any) -> str:
        return str(client.completions.create(prompt="47+85:", max_tokens=8, extra_body=wishes, **SURE).choices[0].text)

    assert set(text(allowed_token_ids=[token("1"), token("2")])) <= {"1", "2"}
    assert "7" in text()
    assert "7" not in text(bad_words=["7"])
    assert (
        text(truncate_prompt_tokens=2)
        == client.completions.create(prompt=[token("5"), token(":")], max_tokens=8, **SURE).choices[0].text
    )


@pytest.mark.parametrize(
    ("wishes", "field", "code"),
    [
        ({"lora_task_id": 5}, None, None),
        ({"guided_regex": 5}, "guided_regex", "invalid_value"),
        ({"guided_choice": []}, "guided_choice", "invalid_value"),
        ({"guided_json": "{}", "guided_regex": "a"}, "guided_regex", "invalid_value"),
        ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "invalid_value"),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
            "unsupported_value",
        ),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "unsupported_value"),
        ({"grammar": "x"}, "grammar", "unsupported_value"),
        ({"json_schema": {}}, "json_schema", "unsupported_value"),
        ({"use_beam_search": True}, "use_beam_search", "unsupported_value"),
        ({"skip_special_tokens": False}, "skip_special_tokens", "unsupported_value"),
        ({"allowed_token_ids": ["a"]}, "allowed_token_ids", "invalid_value"),
        ({"allowed_token_ids": [1 << 30]}, None, None),
        ({"allowed_token_ids": []}, None, None),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_by_name(
    client: OpenAI, wishes: dict[str, Any], field: str | None, code: str | None
) -> None:
    """M3: it was ignored, with status 200."""
    with pytest.raises(BadRequestError) as caught:
        client.completions.create(prompt="1", extra_body=wishes, **SURE)
    assert (caught.value.param, caught.value.code) == (field, code)


@pytest.mark.parametrize("prompt", ["1" * 5000, [5] * 5000, "1" * 200_000])
def test_a_prompt_that_is_too_long_has_openais_code(client: OpenAI, prompt: Any) -> None:
    """M7: the code was null."""
    with pytest.raises(BadRequestError, match=r"the prompt has .*, and the model takes at most") as caught:
        client.completions.create(prompt=prompt, **SURE)
    assert caught.value.code == "context_length_exceeded"


def test_as_many_choices_as_the_page_promises(client: OpenAI) -> None:
    """M2: more than the batch size were refused."""
    made = client.chat.completions.create(model="narrow", messages=user("1"), n=3, max_tokens=2, temperature=2)
    assert [choice.index for choice in made.choices] == [0, 1, 2]
    many = client.completions.create(model="sums", prompt="1", n=128, max_tokens=2, temperature=2)
    assert len(many.choices) == 128
    assert many.usage is not None
    assert many.usage.completion_tokens <= 256


def test_no_alternatives_leave_the_token_that_was_chosen(client: OpenAI) -> None:
    """M11: the answer had {}."""
    table = client.completions.create(prompt="1+1:", logprobs=0, max_tokens=3, **SURE).choices[0].logprobs
    assert table is not None
    assert table.top_logprobs == [
        {token: value} for token, value in zip(table.tokens, table.token_logprobs, strict=True)
    ]


def test_the_metadata_of_a_model_are_made_once(client: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """M13: every chat made them."""
    client.completions.create(prompt="1", max_tokens=1, **SURE)
    made: list[object] = []
    monkeypatch.setattr(served_model, "model_metadata", lambda *given: made.append(given))
    for stream in (False, True):
        client.chat.completions.create(messages=user("1"), max_tokens=1, stream=stream, **SURE)
    assert not made
