"""Requests to OpenAI's API that are small, or just allowed, and would make the server hold many times as much."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from repoagent_server.http.openai_routes import check_members
from repoagent_server.openai.chat_request import read_chat
from repoagent_server.openai.completion_request import read_completion
from repoagent_server.openai.errors import FieldError
from repoagent_server.openai.responses import ResponseAnswer, read_response
from repoagent_server.openai.tensors import asked_of

from repoagent.errors import InvalidArgumentError

_CHAT: Final[dict[str, Any]] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
_COMPLETION: Final[dict[str, Any]] = {"model": "m", "prompt": "x"}
_TEXTS: Final = ("text_input", "guided_decoding_guide_type", "guided_decoding_guide", "sampling_parameters")
_METADATA: Final[dict[str, Any]] = {
    "inputs": [{"name": name, "datatype": "BYTES", "shape": [1]} for name in _TEXTS],
    "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [-1]}],
}


@pytest.mark.parametrize(
    "body",
    [
        lambda: b'{"messages":[' + b"{}," * (1 << 21) + b"{}]}",
        lambda: b"[" * 100 + b"[],[" * (1 << 20),
        lambda: b'{"metadata":{' + b",".join(b'"%d" :0' % number for number in range(1 << 21)) + b"}}",
    ],
    ids=["objects", "arrays", "members"],
)
def test_a_body_of_millions_of_objects_is_refused_before_it_is_parsed(body: Callable[[], bytes]) -> None:
    """64 MB of ``{},`` are 1.5 GB as objects."""
    with pytest.raises(InvalidArgumentError, match="more than 2097152 objects, arrays and members"):
        check_members(body())


def test_long_texts_and_long_lists_of_tokens_are_no_such_body() -> None:
    check_members(json.dumps({"prompt": "{'a': 1} and some words of a text, " * (1 << 17)}).encode())
    check_members(json.dumps({"prompt": [[5] * 1000] * 1024}).encode())


@pytest.mark.parametrize(
    ("read", "document", "field"),
    [
        (read_chat, {**_CHAT, "messages": [{"role": "user", "content": "x"}] * 70_000}, "messages"),
        (read_chat, {**_CHAT, "tools": [{}] * 1025}, "tools"),
        (read_chat, {**_CHAT, "n": 10**6}, "n"),
        (read_chat, {**_CHAT, "logit_bias": {str(token): 1 for token in range(32_000)}}, "logit_bias"),
        (read_chat, {**_CHAT, "allowed_token_ids": list(range(32_000))}, "allowed_token_ids"),
        (read_chat, {**_CHAT, "stop_token_ids": list(range(32_000))}, "stop_token_ids"),
        (read_chat, {**_CHAT, "stop": ["x"] * 65}, "stop"),
        (read_chat, {**_CHAT, "stop": ["x" * 4097]}, "stop"),
        (read_chat, {**_CHAT, "bad_words": ["x"] * 1025}, "bad_words"),
        (read_chat, {**_CHAT, "structured_outputs": {"choice": ["x"] * 1025}}, "structured_outputs.choice"),
        (read_completion, {**_COMPLETION, "prompt": ["x"] * 1025}, "prompt"),
        (read_completion, {**_COMPLETION, "prompt": ["x"] * 9, "n": 128}, "n"),
        (read_completion, {**_COMPLETION, "prompt": "x" * (1 << 20), "n": 128, "echo": True}, "echo"),
        (read_response, {"model": "m", "input": [{}] * 70_000}, "input"),
        (read_response, {"model": "m", "input": "x", "metadata": {"a": "x" * (5 << 20)}}, "metadata"),
        (read_response, {"model": "m", "input": "x", "include": ["x"] * 65}, "include"),
    ],
)
def test_too_much_of_a_field_is_refused_by_its_name(read: Any, document: Any, field: str) -> None:
    with pytest.raises(FieldError) as raised:
        read(document)
    assert raised.value.field == field
    assert len(str(raised.value)) < 200


def test_a_thousand_prompts_share_what_they_have_in_common() -> None:
    """Each had a copy of a schema of any size, and of a thousand words."""
    schema = {"enum": ["x" * 100_000]}
    body = {**_COMPLETION, "prompt": ["a", "b"] * 512, "bad_words": ["y" * 100_000], "guided_json": schema}
    requests = asked_of(read_completion(body), "m", _METADATA)
    assert [request.inputs["text_input"].array.item() for request in requests[:3]] == [b"a", b"b", b"a"]
    for name in ("guided_decoding_guide", "sampling_parameters"):
        assert len(requests[0].inputs[name].array.item()) > 100_000
        assert len({id(request.inputs[name].array) for request in requests}) == 1


def test_what_a_response_repeats_is_written_once() -> None:
    """Four of its events have all of it."""
    asked = read_response({"model": "m", "input": "x", "stream": True, "metadata": {"a": "b"}, "instructions": "c"})
    body = json.loads(ResponseAnswer(asked).document())
    assert (body["metadata"], body["instructions"], body["top_p"]) == ({"a": "b"}, "c", 1.0)
    assert all(type(value).__name__ == "Fragment" for value in asked.echoed.values())
