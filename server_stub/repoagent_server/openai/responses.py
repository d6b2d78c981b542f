"""``/v1/responses``: the request, whose items become the messages of a conversation, and the answer.

The answer is one object or a stream of events. Both are made by the same steps.
"""

import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

from repoagent_server.codec.json_text import Fragment, dumps, dumps_text, loads
from repoagent_server.openai.answer import Answer
from repoagent_server.openai.choice import Choice, Delta
from repoagent_server.openai.conversation import STORED, item_messages, template_values
from repoagent_server.openai.fields import Fields
from repoagent_server.openai.response_format import format_guide
from repoagent_server.openai.sampling import MOST_ALTERNATIVES, MOST_TOKENS, read_sampling
from repoagent_server.openai.text_request import TextRequest
from repoagent_server.openai.tool_calls import CallPiece
from repoagent_server.openai.tools import read_tools

_ENDED: Final[Mapping[str, str]] = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a text is not complete, by the reason of its end."""
_FAULT: Final = "server_error"
"""OpenAI's code of an error that has no other."""
_INCLUDED: Final = "message.output_text.logprobs"
_ECHOED: Final[Mapping[str, Any]] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "user": None,
}
"""Fields that the response repeats, and their usual values."""
_MOST_ECHOED: Final = 1 << 22


def read_response(document: object) -> TextRequest:
    """Read the body of a request.

    Raises:
        InvalidArgumentError: something makes no sense, or cannot be honoured.
    """
    fields = Fields(document)
    model = fields.required("model")
    sampling = read_sampling(fields)
    _refuse(fields)
    tools = read_tools(fields, flat=True)
    guide = _guide(fields)
    if guide is not None and tools.guide is not None:
        raise fields.wrong("text", "cannot be honoured together with a 'tool_choice' that demands a call")
    alternatives = fields.whole("top_logprobs", 0, MOST_ALTERNATIVES)
    included = _INCLUDED in fields.texts("include", 64)
    reasoning = fields.object("reasoning")
    effort = None if reasoning is None else reasoning.text("effort")
    return TextRequest(
        model=model,
        prompts=[("messages", dumps_text(item_messages(fields)))],
        template_values=template_values(fields, tools=tools.given or None, reasoning_effort=effort),
        max_tokens=fields.whole("max_output_tokens", 1, MOST_TOKENS),
        sampling=sampling,
        tools=tools,
        guide=tools.guide or guide,
        top_log_probs=(alternatives or 0) if included else None,
        echoed=_echoed(fields),
    )


def _echoed(fields: Fields) -> dict[str, Any]:
    """Written once: several events have all of them."""
    found, left = {}, _MOST_ECHOED
    for name, usual in _ECHOED.items():
        text = dumps(usual if (value := fields.get(name)) is None else value)
        left -= len(text)
        if left < 0:
            raise fields.wrong(
                name, f"is too long: the fields that the response repeats have {_MOST_ECHOED} bytes at most"
            )
        found[name] = Fragment(text)
    return found


def _refuse(fields: Fields) -> None:
    for name in ("previous_response_id", "conversation", "prompt"):
        fields.refuse(name, STORED)
    fields.refuse("background", STORED, False)
    fields.refuse("truncation", "a conversation that is too long is an error", "disabled")
    fields.refuse("n", "a response has one text", 1)
    fields.refuse("prompt_logprobs", "/v1/chat/completions and /v1/completions have them")


def _guide(fields: Fields) -> Any:
    text = fields.object("text")
    if text is None:
        return None
    text.refuse("verbosity", "models here have no such setting", "medium")
    wanted = text.object("format")
    return None if wanted is None else format_guide(wanted, "text.format", wanted)


class ResponseAnswer(Answer):
    """The items that a text makes: reasoning, a message, calls of functions."""

    keeps = True

    def __init__(self, asked: TextRequest) -> None:
        super().__init__(asked)
        self._id = f"resp_{secrets.token_hex(24)}"
        self._created = int(time.time())
        self._items: list[dict[str, Any]] = []
        self._item: dict[str, Any] | None = None
        """The one that grows."""
        self._grown: list[str] = []
        """Its text so far: joined at its end, as each piece would copy all before it."""
        self._status, self._ended = "in_progress", ""
        self._events: list[bytes] = []
        self._sent = 0

    def document(self) -> bytes:
        """The whole response."""
        return dumps(self._response())

    def failure(self, error: bytes) -> bytes:
        """See :class:`~repoagent_server.openai.answer.Answer`."""
        self._status = "failed"
        self._join()
        self._put("response.failed", response=self._response({"code": _FAULT, **_told(loads(error)["error"])}))
        return self._taken()

    def _written(self, choice: Choice, delta: Delta) -> bytes:
        if not choice.begun:
            choice.begun = True
            for kind in ("response.created", "response.in_progress"):
                self._put(kind, response=self._response())
        if delta.reasoning:
            self._grow("reasoning", delta.reasoning)
        log_probs = delta.log_probs
        if log_probs and not (delta.reasoning or any(delta.parts)):  # Their text is still to come.
            self._grow("message", "", log_probs)
        for part in delta.parts:
            if isinstance(part, CallPiece):
                self._call(part)
            elif part:
                self._grow("message", part, log_probs)
                log_probs = ()
        if choice.reason is not None:
            self._finish(choice.reason)
        return self._taken()

    def _end(self) -> bytes:
        return b""

    def _finish(self, reason: str) -> None:
        self._ended = _ENDED.get(reason, "")
        self._status = "incomplete" if self._ended else "completed"
        self._complete(self._status)
        self._put(f"response.{self._status}", response=self._response())

    def _grow(self, kind: str, text: str, log_probs: Any = ()) -> None:
        """More of the text of a message, or of reasoning."""
        item = self._item
        if item is None or item["type"] != kind:
            self._complete()
            item = self._begin(_message() if kind == "message" else _reasoning())
            self._put("response.content_part.added", **self._place(), part=_part(kind))
            item["content"].append(_part(kind))
        part = item["content"][0]
        self._grown.append(text)
        more = {}
        if kind == "message":
            entries = list(map(Fragment, log_probs))
            part["logprobs"] += entries
            more = {"logprobs": entries}
        self._put(f"response.{part['type']}.delta", **self._place(), delta=text, **more)

    def _call(self, call: CallPiece) -> None:
        if call.name is not None:
            self._complete()
            self._begin(_function_call(call.name))
        item = self._item
        if item is not None and call.arguments:
            self._grown.append(call.arguments)
            place = {"item_id": item["id"], "output_index": len(self._items) - 1}
            self._put("response.function_call_arguments.delta", **place, delta=call.arguments)

    def _begin(self, item: dict[str, Any]) -> dict[str, Any]:
        self._item = item
        self._items.append(item)
        added = {**item, "content": []} if "content" in item else dict(item)
        self._put("response.output_item.added", output_index=len(self._items) - 1, item=added)
        return item

    def _complete(self, status: str = "completed") -> None:
        """The item that grows is whole."""
        item = self._item
        if item is None:
            return
        self._join()
        item["status"] = status
        if item["type"] == "function_call":
            place = {"item_id": item["id"], "output_index": len(self._items) - 1}
            done = {"name": item["name"], "arguments": item["arguments"]}
            self._put("response.function_call_arguments.done", **place, **done)
        else:
            (part,) = item["content"]
            more = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
            self._put(f"response.{part['type']}.done", **self._place(), text=part["text"], **more)
            self._put("response.content_part.done", **self._place(), part=part)
        self._put("response.output_item.done", output_index=len(self._items) - 1, item=item)
        self._item = None

    def _join(self) -> None:
        if (item := self._item) is not None:
            place, name = (item, "arguments") if item["type"] == "function_call" else (item["content"][0], "text")
            place[name] += "".join(self._grown)
        self._grown = []

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1, "content_index": 0}

    def _put(self, kind: str, **members: Any) -> None:
        if self._stream:
            self._events.append(_event(kind, {"type": kind, "sequence_number": self._sent, **members}))
            self._sent += 1

    def _taken(self) -> bytes:
        events, self._events = b"".join(self._events), []
        return events

    def _response(self, error: dict[str, Any] | None = None) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": self._status,
            "background": False,
            "error": error,
            "incomplete_details": {"reason": self._ended} if self._ended else None,
            "model": self.asked.model,
            "output": self._items,
            "previous_response_id": None,
            "service_tier": "default",
            "store": False,
            "truncation": "disabled",
            "usage": None if self._status == "in_progress" else self._usage.of_response(),
            **self.asked.echoed,
        }


def error_event(error: bytes, number: int) -> bytes:
    """Event number ``number``, the last, where nothing else is known of the response; ``error``: the body of a response
    with it."""
    told = loads(error)["error"]
    event = {"type": "error", "code": told["code"] or _FAULT, "message": told["message"], "param": told["param"]}
    return _event("error", {**event, "sequence_number": number})


def _event(kind: str, document: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), dumps(document))


def _told(error: Mapping[str, Any]) -> dict[str, Any]:
    """What an event has of an error: a code only if it is one of ours."""
    return {name: error[name] for name in ("message", "code") if error.get(name) is not None}


def _part(kind: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _message() -> dict[str, Any]:
    name = f"msg_{secrets.token_hex(24)}"
    return {"id": name, "type": "message", "role": "assistant", "status": "in_progress", "content": []}


def _reasoning() -> dict[str, Any]:
    name = f"rs_{secrets.token_hex(24)}"
    return {"id": name, "type": "reasoning", "status": "in_progress", "summary": [], "content": []}


def _function_call(name: str) -> dict[str, Any]:
    return {
        "id": f"fc_{secrets.token_hex(24)}",
        "type": "function_call",
        "call_id": f"call_{secrets.token_hex(12)}",
        "name": name,
        "arguments": "",
        "status": "in_progress",
    }
