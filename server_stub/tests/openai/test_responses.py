"""``/v1/responses`` with the official client: whole and streamed, with tools, schemas, and earlier items."""

import json
from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai._streaming import SSEDecoder
from openai.types.responses import Response, ResponseErrorEvent
from repoagent_server.http.openai_answers import openai_error
from repoagent_server.openai.responses import error_event

from repoagent.errors import OverloadedError, RepoAgentError, UnavailableError

from .conftest import user
from .test_tool_calls import HERMES

TOOLS: Any = [
    {
        "type": "function",
        "name": "add",
        "description": "adds",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "strict": True,
    }
]
THINKS = "<think>\nAdd them.\n</think>\n\nIt is 3."


def kinds(made: Response) -> list[str]:
    return [item.type for item in made.output]


def repeated(client: OpenAI, **asked: Any) -> dict[str, Any]:
    """What the model ``parrot`` was given."""
    made = client.responses.create(model="parrot", **asked)
    found: dict[str, Any] = json.loads(made.output_text)
    return found


def test_a_text_is_answered(client: OpenAI) -> None:
    made = client.responses.create(model="sums", input="47+85:", temperature=0, max_output_tokens=40)
    Response.model_validate(made.model_dump())
    assert made.output_text
    assert (made.status, made.error, made.incomplete_details) == ("completed", None, None)
    assert kinds(made) == ["message"]
    assert made.usage is not None
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens > 0


def test_the_text_is_that_of_a_chat(client: OpenAI) -> None:
    chat = client.chat.completions.create(model="sums", messages=user("47+85:"), temperature=0)
    assert client.responses.create(model="sums", input="47+85:", temperature=0).output_text == (
        chat.choices[0].message.content
    )


STREAMS: dict[str, dict[str, Any]] = {
    "text": {"model": "sums", "input": "47+85:", "temperature": 0},
    "cut": {"model": "sums", "input": "47+85:", "temperature": 0, "max_output_tokens": 3},
    "reasoning": {"model": "parrot", "input": THINKS},
    "calls": {"model": "parrot", "input": f"First. {HERMES}\n{HERMES}", "tools": TOOLS},
    "between": {"model": "parrot", "input": f"First. {HERMES} Then. {HERMES} Last.", "tools": TOOLS},
    "required": {"model": "sums", "input": "1+1:", "tools": TOOLS, "tool_choice": "required", "seed": 1},
    "named": {"model": "sums", "input": "1+1:", "tools": TOOLS, "tool_choice": {"type": "function", "name": "add"}},
    "log-probs": {
        "model": "sums",
        "input": "47+85:",
        "temperature": 0,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    },
    "schema": {
        "model": "sums",
        "input": "1+1:",
        "text": {"format": {"type": "json_schema", "name": "s", "schema": TOOLS[0]["parameters"]}},
    },
}


def comparable(made: Response) -> dict[str, Any]:
    """Without what differs from one answer to the next."""
    document = made.model_dump(exclude={"id", "created_at", "completed_at"})
    document["usage"].pop("input_tokens_details")  # They depend on what the cache has.
    for item in document["output"]:
        for name in ("id", "call_id"):
            item.pop(name, None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
        item.pop("parsed_arguments", None)
    return document


def nearly(value: Any) -> Any:
    """`value` with a tolerance for its log-probabilities: products of matrices depend on how many rows run at once."""
    match value:
        case dict():
            return {key: nearly(one) for key, one in value.items()}
        case list():
            return [nearly(one) for one in value]
        case float():
            return pytest.approx(value, abs=1e-4)
    return value


@pytest.mark.parametrize("case", STREAMS)
def test_streamed_is_whole(case: str, client: OpenAI) -> None:
    asked = {**STREAMS[case], "extra_body": {"seed": 7}}
    asked.pop("seed", None)
    whole = client.responses.create(**asked)
    numbers, added = [], []
    with client.responses.create(**asked, stream=True) as stream:
        for event in stream:
            numbers.append(event.sequence_number)
            if event.type == "response.output_item.added":
                added.append(event.item.type)
            if event.type in ("response.completed", "response.incomplete"):
                streamed = event.response
    assert numbers == list(range(len(numbers)))
    assert added == kinds(streamed)
    assert comparable(streamed) == nearly(comparable(whole))


def test_the_clients_own_reader_of_streams_agrees(client: OpenAI) -> None:
    with client.responses.stream(model="parrot", input=f"First. {HERMES}", tools=TOOLS) as stream:
        texts = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        made = stream.get_final_response()
    assert texts.strip() == "First."
    assert kinds(made) == ["message", "function_call"]
    call = made.output[1]
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"a": 1, "b": '}"]'}


def test_a_text_that_is_cut_is_incomplete(client: OpenAI) -> None:
    made = client.responses.create(model="sums", input="47+85:", temperature=0, max_output_tokens=2)
    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"


def test_reasoning_is_an_item(client: OpenAI) -> None:
    made = client.responses.create(model="parrot", input=THINKS)
    assert kinds(made) == ["reasoning", "message"]
    assert made.output[0].model_dump()["content"] == [{"type": "reasoning_text", "text": "Add them."}]
    assert made.output_text == "It is 3."


def test_a_conversation_goes_on_with_its_items(client: OpenAI) -> None:
    """As an agent kit does: the output of one turn, and what the functions returned, are the input of the next."""
    first = client.responses.create(model="parrot", input=f"<think>Hm</think>Sure. {HERMES}", tools=TOOLS)
    call = first.output[-1]
    assert call.type == "function_call"
    items: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "1+1"}]},
        *(item.model_dump(exclude_none=True) for item in first.output),
        {"type": "function_call_output", "call_id": call.call_id, "output": "2"},
        {"role": "user", "content": "repeat the request"},
    ]
    given = repeated(client, instructions="Add.", input=items, tools=TOOLS, reasoning={"effort": "low"})
    assert given["messages"] == [
        {"role": "system", "content": "Add."},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1"},
        {
            "role": "assistant",
            "content": "Sure. ",
            "reasoning_content": "Hm",
            "tool_calls": [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": "add", "arguments": {"a": 1, "b": '}"]'}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": call.call_id, "content": "2"},
        {"role": "user", "content": "repeat the request"},
    ]
    assert given["values"]["reasoning_effort"] == "low"
    assert given["values"]["tools"] == [
        {"type": "function", "function": {name: value for name, value in TOOLS[0].items() if name != "type"}}
    ]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "stored": ({"previous_response_id": "resp_1"}, "previous_response_id"),
    "conversation": ({"conversation": "c"}, "conversation"),
    "later": ({"background": True}, "background"),
    "tool of the server": ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    "no items": ({"input": []}, "input"),
    "no input": ({"input": None}, "input"),
    "item by reference": ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    "image": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].type",
    ),
    "arguments that are no JSON": (
        {"input": [{"type": "function_call", "call_id": "1", "name": "add", "arguments": "{"}]},
        "input[0].function.arguments",
    ),
    "an output of no call": ({"input": [{"type": "function_call_output", "output": "2"}]}, "input[0].call_id"),
    "format": ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    "truncation": ({"truncation": "auto"}, "truncation"),
    "tokens": ({"max_output_tokens": 0}, "max_output_tokens"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_honoured_is_refused(case: str, client: OpenAI) -> None:
    more, field = REFUSED[case]
    with pytest.raises(BadRequestError) as raised:
        client.responses.create(model="parrot", **{"input": "x", **more})
    assert raised.value.param == field


def test_a_model_that_is_not_there(client: OpenAI) -> None:
    with pytest.raises(NotFoundError) as raised:
        client.responses.create(model="nothing", input="x")
    assert raised.value.code == "model_not_found"


def test_an_error_after_the_first_event_is_one(http: httpx.Client) -> None:
    body = {"model": "parrot", "input": "fail later", "stream": True}
    with http.stream("POST", "/v1/responses", json=body) as answer:
        text = answer.read().decode()
    last = json.loads(text.strip().rsplit("data: ", 1)[1])
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert "a fault of the model" in last["response"]["error"]["message"]
    assert last["response"]["error"]["code"] == "server_error"
    assert text.rstrip().rpartition("\n\n")[2].startswith("event: response.failed\n")
    assert http.post("/v1/responses", json={"model": "parrot", "input": "fail"}).status_code == 500


@pytest.mark.parametrize(
    ("error", "code"), [(UnavailableError("gone"), "server_error"), (OverloadedError("busy"), "rate_limit_exceeded")]
)
def test_an_error_of_what_has_passed_a_stream_on_is_an_event_of_the_official_client(
    error: RepoAgentError, code: str
) -> None:
    """An ingress of Ray, whose replica has died: it knows of the response how many events there were."""
    event = error_event(bytes(openai_error(error).body), 7)
    (found,) = SSEDecoder().iter_bytes(iter([event]))
    assert found.event == "error"
    read = ResponseErrorEvent.model_validate_json(found.data)
    assert (read.type, read.code, read.message, read.sequence_number) == ("error", code, error.message, 7)
