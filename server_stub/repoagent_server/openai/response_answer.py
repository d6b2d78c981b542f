"""``/v1/responses``: the answer, as one object or as a stream of events. Both are made by the same steps."""

import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

from repoagent_server.codec.json_text import Fragment, dumps, loads
from repoagent_server.openai.answer import Answer
from repoagent_server.openai.choice import Choice, Delta
from repoagent_server.openai.text_request import TextRequest
from repoagent_server.openai.tool_calls import CallPiece

_ENDED: Final[Mapping[str, str]] = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a text is not complete, by the reason of its end."""
_FAULT: Final = "server_error"
"""OpenAI's code of an error that has no other."""


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
