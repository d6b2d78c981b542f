"""Calls of functions: found in texts however they are cut into pieces, and demanded by a schema."""

import json
from typing import Any

import httpx
import pytest
from openai import OpenAI
from repoagent_server.openai.chat_request import ChatAnswer, read_chat
from repoagent_server.openai.choice import Choice, Delta, StopWords
from repoagent_server.openai.tool_calls import CallObject, CallPiece, ToolCalls

from tests.counted_text import CountedText

from .conftest import Token, user

NAMES = {"get_weather", "add"}
HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "}\\"]"}}\n</tool_call>'
_DEEPSEEK = str.maketrans("|_", "\uff5c\u2581")
V3 = '<|tool_call_begin|>function<|tool_sep|>add\n```json\n{"a": 1, "b": "```"}\n```<|tool_call_end|>'.translate(
    _DEEPSEEK
)
V3_1 = '<|tool_call_begin|>add<|tool_sep|>{"a": 1, "b": "```"}<|tool_call_end|>'.translate(_DEEPSEEK)
CALLS, END, BEGIN = (f"<|tool_{name}|>".translate(_DEEPSEEK) for name in ("calls_begin", "call_end", "call_begin"))
LLAMA = '{"name": "add", "parameters": {"a": [1, {"b": null}]}}'

Found = tuple[str, list[tuple[str, Any]]]


def split(pieces: list[str], **options: Any) -> Found:
    """Text, and calls with their arguments."""
    finder = ToolCalls(NAMES, **options)
    text, calls = "", {}  # type: ignore[var-annotated]
    for number, piece in enumerate(pieces):
        for call in finder.feed(piece, final=number == len(pieces) - 1):
            if isinstance(call, str):
                text += call
                continue
            name, arguments = calls.get(call.index, (call.name, ""))
            calls[call.index] = (name, arguments + call.arguments)
    return text, [(name, json.loads(arguments)) for name, arguments in calls.values()]


CASES: dict[str, tuple[str, Found]] = {
    "hermes": (HERMES, ("", [("add", {"a": 1, "b": '}"]'})])),
    "two of hermes": (f"{HERMES}\n{HERMES}\n", ("", [("add", {"a": 1, "b": '}"]'})] * 2)),
    "after a text": (f"Let me see.\n{HERMES}", ("Let me see.\n", [("add", {"a": 1, "b": '}"]'})])),
    "between texts": (f"a {HERMES} b", ("a b", [("add", {"a": 1, "b": '}"]'})])),
    "llama": (LLAMA, ("", [("add", {"a": [1, {"b": None}]})])),
    "llama with its mark": (f"<|python_tag|>{LLAMA}", ("", [("add", {"a": [1, {"b": None}]})])),
    "two of llama": (f"{LLAMA}; {LLAMA}", ("", [("add", {"a": [1, {"b": None}]})] * 2)),
    "llama behind spaces": (f"\n\n {LLAMA}\n", ("", [("add", {"a": [1, {"b": None}]})])),
    "an array": (f"[{LLAMA}, {LLAMA}]", ("", [("add", {"a": [1, {"b": None}]})] * 2)),
    "an array with a mark": (f"[TOOL_CALLS][{LLAMA}]", ("", [("add", {"a": [1, {"b": None}]})])),
    "deepseek r1": (f"Hm.{CALLS}{V3}\n{V3}", ("Hm.", [("add", {"a": 1, "b": "```"})] * 2)),
    "deepseek v3.1": (f"{CALLS}{V3_1}{V3_1}", ("", [("add", {"a": 1, "b": "```"})] * 2)),
    "deepseek without an end": (V3_1.removesuffix(END), ("", [("add", {"a": 1, "b": "```"})])),
    "deepseek behind its calls": (f"{V3_1}{CALLS.replace('begin', 'end')}", ("", [("add", {"a": 1, "b": "```"})])),
    "a mark without a call": (f"a {BEGIN} b", (f"a {BEGIN} b", [])),
    "an unfinished mark": (f"a {BEGIN[:8]}", (f"a {BEGIN[:8]}", [])),
    "arguments first": ('{"arguments": {"a": 1}, "name": "add"}', ("", [("add", {"a": 1})])),
    "arguments in a text": ('{"name": "add", "arguments": "{\\"a\\": 1}"}', ("", [("add", {"a": 1})])),
    "no arguments": ('{"name": "add"}', ("", [("add", {})])),
    "a member more": ('{"type": "function", "name": "add", "parameters": {}, "id": 3}', ("", [("add", {})])),
    "plain": ("Hello {world}", ("Hello {world}", [])),
    "empty": ("", ("", [])),
    "an unknown name": ('{"name": "rm", "parameters": {}}', ('{"name": "rm", "parameters": {}}', [])),
    "an object of its own": ('{"answer": 42}', ('{"answer": 42}', [])),
    "an array of its own": ("[1, 2]", ("[1, 2]", [])),
    "a tag without a call": ("<tool_call>hm</tool_call>", ("<tool_call>hm</tool_call>", [])),
    "a tag that is none": ("<tool_cat> 1 < 2", ("<tool_cat> 1 < 2", [])),
    "an unfinished tag": ("a <tool_c", ("a <tool_c", [])),
    "an unfinished object": ('{"name": "ad', ('{"name": "ad', [])),
    "a key without quotes": ("{name: 1}", ("{name: 1}", [])),
    "names that are numbers": ('{"name": 1}', ('{"name": 1}', [])),
}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("case", CASES)
def test_calls_are_found_however_the_text_is_cut(case: str, size: int) -> None:
    text, wanted = CASES[case]
    pieces = [text[start : start + size] for start in range(0, len(text), size)] or [""]
    content, calls = split(pieces)
    assert calls == wanted[1]
    assert content.strip() == wanted[0].strip()


def test_of_calls_that_are_not_parallel_the_first_counts() -> None:
    assert split([f"{HERMES}{HERMES}"], parallel=False)[1] == [("add", {"a": 1, "b": '}"]'})]


def test_arguments_come_as_they_are_written() -> None:
    finder = ToolCalls(NAMES)
    assert finder.feed('{"name": "add", "argu', final=False) == [CallPiece(0, "add")]
    assert finder.feed('ments": {"a": ', final=False) == [CallPiece(0, None, '{"a": ')]
    assert finder.feed("12", final=False) == [CallPiece(0, None, "12")]
    assert finder.feed("3}}", final=True) == [CallPiece(0, None, "3}")]


_MANY = 32_768


def test_a_call_of_many_pieces_is_read_once() -> None:
    """Each piece copied all before it: 32,768 of them were some GB."""
    found, CountedText.copied, taken = CallObject(NAMES), 0, 0
    for piece in ('{"name": "add", "arguments": {"a": "', *["12345678"] * _MANY, '"}, "id": 3}'):
        assert found.feed(CountedText(piece)) == ""
        taken += len(found.take_arguments())
    assert (found.done, found.failed, taken) == (True, False, len('{"a": ""}') + 8 * _MANY)
    assert CountedText.copied == 0


def test_the_arguments_of_a_whole_answer_are_joined_once() -> None:
    pieces = [CallPiece(0, "add"), *[CallPiece(0, None, CountedText("12345678"))] * _MANY]
    CountedText.copied = 0
    answer = ChatAnswer(read_chat({"model": "m", "messages": user("x")}))
    whole = answer.choice(Choice(0, StopWords(())), [Delta(pieces)])
    assert whole["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": "12345678" * _MANY}
    assert CountedText.copied == 0


def test_what_stands_between_the_members_of_a_call_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each end of a member copied all before it."""
    read, part = 0, CallObject._part

    def counted(found: CallObject, start: int, end: int) -> str:
        nonlocal read
        read += end - start
        return part(found, start, end)

    monkeypatch.setattr(CallObject, "_part", counted)
    text = '{"name": "add", ' + '"arguments": 5 , ' * 1000 + '"id": 3}'
    found = CallObject(NAMES)
    assert (found.feed(text), found.done, found.take_arguments()) == ("", True, "5")
    assert read < len(text)


# With the official client.

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "adds",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("add", "get_weather")
]


@pytest.mark.slow
@pytest.mark.parametrize("text", [HERMES, f"<|python_tag|>{LLAMA}", f"[{LLAMA}]"])
def test_a_call_is_recognised(text: str, client: OpenAI) -> None:
    made = client.chat.completions.create(model="parrot", messages=user(text), tools=TOOLS)
    (choice,) = made.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.id.startswith("call_")
    assert call.type == "function"
    assert call.function.name == "add"
    assert isinstance(json.loads(call.function.arguments), dict)


@pytest.mark.parametrize("text", [f"First. {HERMES}\n{HERMES}", f"{LLAMA}; {LLAMA}"])
def test_calls_are_streamed(text: str, client: OpenAI) -> None:
    asked: Any = {"model": "parrot", "messages": user(text), "tools": TOOLS}
    calls: dict[int, dict[str, str]] = {}
    content, reasons = "", []
    for chunk in client.chat.completions.create(stream=True, **asked):
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        reasons.append(choice.finish_reason)
        for piece in choice.delta.tool_calls or []:
            assert piece.function is not None
            if piece.index not in calls:
                assert piece.id is not None
                calls[piece.index] = {"id": piece.id, "name": piece.function.name or "", "arguments": ""}
            calls[piece.index]["arguments"] += piece.function.arguments or ""
    assert reasons[-1] == "tool_calls"
    whole = client.chat.completions.create(**asked).choices[0].message
    assert whole.tool_calls is not None
    assert [(call["name"], call["arguments"]) for call in calls.values()] == [
        (call.function.name, call.function.arguments) for call in whole.tool_calls
    ]
    assert len({call["id"] for call in calls.values()}) == 2
    assert content.strip() == (whole.content or "").strip()


def test_the_tools_reach_the_template_unless_none_may_be_called(client: OpenAI) -> None:
    def seen(**more: Any) -> dict[str, Any]:
        made = client.chat.completions.create(model="parrot", messages=user("repeat the request"), tools=TOOLS, **more)
        values: dict[str, Any] = json.loads(made.choices[0].message.content or "")["values"]
        return values

    assert seen()["tools"] == TOOLS
    assert seen(tool_choice="auto")["tools"] == TOOLS
    assert "tools" not in seen(tool_choice="none")


def test_where_no_tool_may_be_called_a_call_is_text(client: OpenAI) -> None:
    made = client.chat.completions.create(model="parrot", messages=user(LLAMA), tools=TOOLS, tool_choice="none")
    assert made.choices[0].message.content == LLAMA
    assert made.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_can_be_demanded(choice: Any, stream: bool, client: OpenAI, token: Token) -> None:
    spaces = {str(token(space)): -100 for space in " \n\t\r"}
    made: Any = client.chat.completions.create(
        model="sums",
        messages=user("47+85:"),
        tools=TOOLS,
        tool_choice=choice,
        parallel_tool_calls=False,
        logit_bias=spaces,
        temperature=0,
        max_tokens=150,
        stream=stream,
    )
    if stream:
        chunks = [chunk.choices[0] for chunk in made]
        pieces = [piece.function for chunk in chunks for piece in chunk.delta.tool_calls or []]
        name, arguments = pieces[0].name, "".join(piece.arguments or "" for piece in pieces)
        reason = chunks[-1].finish_reason
        assert not any(chunk.delta.content for chunk in chunks)
    else:
        (call,) = made.choices[0].message.tool_calls
        name, arguments = call.function.name, call.function.arguments
        reason = made.choices[0].finish_reason
    assert reason == "tool_calls"
    assert name == "get_weather" if isinstance(choice, dict) else name in ("add", "get_weather")
    assert 0 <= json.loads(arguments)["a"] <= 9


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", {}),
        ("tools", [1]),
        ("tools", [{"type": "web_search"}]),
        ("tools", [{"type": "function"}]),
        ("tools", [{"type": "function", "function": {}}]),
        ("tools", [{"type": "function", "function": {"name": "a b"}}]),
        ("tools", [{"type": "function", "function": {"name": "a", "parameters": []}}]),
        ("tool_choice", "any"),
        ("tool_choice", 1),
        ("tool_choice", {"type": "function"}),
        ("tool_choice", {"type": "function", "function": {"name": "rm"}}),
    ],
)
def test_a_field_that_makes_no_sense_is_named(field: str, value: Any, http: httpx.Client) -> None:
    body = {"model": "parrot", "messages": user("x"), "tools": TOOLS, field: value}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(field)


def test_a_choice_without_tools_and_a_schema_beside_one_are_refused(http: httpx.Client) -> None:
    body: dict[str, Any] = {"model": "parrot", "messages": user("x"), "tool_choice": "required"}
    assert http.post("/v1/chat/completions", json=body).json()["error"]["param"] == "tool_choice"
    body |= {"tools": TOOLS, "response_format": {"type": "json_object"}}
    assert http.post("/v1/chat/completions", json=body).json()["error"]["param"] == "response_format"
