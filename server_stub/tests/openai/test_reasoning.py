"""Reasoning is cut from answers, however the text comes in pieces."""

import json

import httpx
import pytest
from openai import OpenAI
from repoagent_server.openai.reasoning import LONGEST_BLANK, Reasoning
from repoagent_server.openai.tool_calls import CallPiece, ToolCalls

from .conftest import events, user

HARMONY = (
    "<|channel|>analysis<|message|>Add them.<|end|><|start|>assistant<|channel|>final<|message|>It is <|3.<|return|>"
)
CALL = (
    "<|channel|>analysis<|message|>A tool.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
    '<|constrain|>json<|message|>{"a": 1}<|call|>'
)
CASES: dict[str, tuple[str, str, str]] = {
    "thought": ("<think>\nAdd them.\n\n</think>\n\nIt is 3.", "Add them.", "It is 3."),
    "empty thought": ("<think>\n\n</think>\n\nIt is 3.", "", "It is 3."),
    "not ended": ("<think> Add <b>them</b> </thin", "Add <b>them</b> </thin", ""),
    "none": ("It is <think>3</think>.", "", "It is <think>3</think>."),
    "a beginning only": ("<thi", "", "<thi"),
    "blanks at first": (" \n x", "", " \n x"),
    "channels": (HARMONY, "Add them.", "It is <|3."),
    "a call on a channel": (CALL, "A tool.", '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'),
    "whom it is for before the channel": (
        HARMONY.replace("<|channel|>final", " to=functions.add<|channel|>commentary json"),
        "Add them.",
        '<tool_call>{"name": "add", "arguments": It is <|3.}</tool_call>',
    ),
    "a channel without an end": ("<|channel|>final<|message|>It is 3.", "", "It is 3."),
    "a header without an end": ("<|channel|>final", "", ""),
}


def cut(text: str, size: int, *, opened: bool = False) -> tuple[str, str]:
    splitter, thought, answer = Reasoning(opened=opened), "", ""
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    for piece in pieces:
        more = splitter.feed(piece, final=False)
        thought, answer = thought + more[0], answer + more[1]
    more = splitter.feed("", final=True)
    return thought + more[0], answer + more[1]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 1000])
@pytest.mark.parametrize("case", CASES)
def test_the_text_is_cut_the_same_in_any_pieces(case: str, size: int) -> None:
    text, thought, answer = CASES[case]
    assert cut(text, size) == (thought, answer)


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_the_prompt_may_have_the_first_mark(size: int) -> None:
    assert cut("\nAdd them.\n</think>\n\nIt is 3.", size, opened=True) == ("Add them.", "It is 3.")
    assert cut("Add them.", size, opened=True) == ("Add them.", "")


def test_a_call_on_a_channel_is_found() -> None:
    _, text = cut(CALL, 1)
    parts = ToolCalls({"add"}).feed(text, final=True)
    calls = [part for part in parts if isinstance(part, CallPiece)]
    assert not any(part for part in parts if isinstance(part, str))
    assert calls[0].name == "add"
    assert json.loads("".join(call.arguments for call in calls)) == {"a": 1}


@pytest.mark.parametrize(
    "before", ["", "<think>a", "<tool_call>", '{"name": "add"}', "[", '<tool_call>{"name": "add"}']
)
def test_no_more_than_so_many_blanks_wait_for_what_follows(before: str) -> None:
    """Each piece looks at all that waits: a text of blanks would take the square of its length."""
    reasoning, calls = Reasoning(), ToolCalls({"add"})
    for piece in [before, *[" " * 100] * 1000]:
        _, text = reasoning.feed(piece, final=False)
        calls.feed(text, final=False)
        assert len(reasoning._waiting) + len(calls._waiting) <= 2 * LONGEST_BLANK


THINKS = "<think>\nAdd them.\n</think>\n\nIt is 3."


def test_a_chat_has_its_reasoning_apart(client: OpenAI) -> None:
    (choice,) = client.chat.completions.create(model="parrot", messages=user(THINKS)).choices
    assert choice.message.content == "It is 3."
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning_content"] == "Add them."


def test_a_stream_has_its_reasoning_apart(http: httpx.Client) -> None:
    chunks = events(http, "/v1/chat/completions", {"model": "parrot", "messages": user(THINKS)})[:-1]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Add them."
    assert "".join(delta.get("content") or "" for delta in deltas) == "It is 3."
    assert sum("reasoning_content" in delta for delta in deltas) > 1


def test_what_must_follow_a_schema_is_no_reasoning(client: OpenAI) -> None:
    (choice,) = client.chat.completions.create(
        model="sums", messages=user("1+1:"), response_format={"type": "json_object"}, max_tokens=20, seed=3
    ).choices
    assert choice.message.content is not None
    assert choice.message.content.startswith("{")


def test_a_template_that_opens_the_reasoning_says_so(http: httpx.Client) -> None:
    body = {"model": "thinker", "messages": user("1+1:"), "max_tokens": 5, "temperature": 0}
    (choice,) = http.post("/v1/chat/completions", json=body).json()["choices"]
    assert choice["message"]["content"] is None or not choice["message"]["content"]
    assert choice["message"]["reasoning_content"]
    usage = http.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": usage["completion_tokens"]}
