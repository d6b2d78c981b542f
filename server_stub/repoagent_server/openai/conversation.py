"""Conversations, as chat templates take them: from the messages of a chat, and from the items of a response."""

from typing import Any, Final

from repoagent.nested_text import read_json
from repoagent_server.codec.json_text import dumps_text
from repoagent_server.openai.fields import Fields

_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", "refusal"})
_MEDIA: Final = {
    "image_url": "images",
    "input_image": "images",
    "image": "images",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
    "file": "files",
}
_KEPT: Final = ("name", "tool_call_id", "reasoning_content", "reasoning", "thinking")


def template_messages(fields: Fields) -> list[dict[str, Any]]:
    """The member ``messages``. Texts in parts become one; arguments of calls become objects.

    Raises:
        FieldError: something makes no sense, or cannot be honoured.
    """
    messages = fields.objects("messages")
    if not messages:
        raise fields.wrong("messages", "must be an array of at least one message")
    return [_message(message) for message in messages]


def template_values(fields: Fields, *names: str, **given: Any) -> str | None:
    """Further values for the chat template, in JSON: those of the field for them, of the fields ``names``, and others
    that are ``given``; None is none."""
    found = fields.object("chat_template_kwargs")
    values = {} if found is None else dict(found.values)
    more = {name: fields.get(name) for name in names} | given
    values |= {name: value for name, value in more.items() if value is not None}
    return dumps_text(values) if values else None


def _message(given: Fields) -> dict[str, Any]:
    role = given.required("role")
    given.refuse("audio", "the server has texts only")
    given.refuse("function_call", "use 'tool_calls'")
    # OpenAI's newer name; templates know the older one.
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    content = _content(given)
    calls = given.objects("tool_calls")
    if content is None and not calls and role != "assistant":
        raise given.wrong("content", "is required")
    # Templates of some models take the place of a text that is not there for an error.
    message["content"] = content or ""
    for name in _KEPT:
        if (value := given.get(name)) is not None:
            message[name] = value
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    return message


def _content(given: Fields) -> str | None:
    content = given.get("content")
    if type(content) is not list:
        return given.text("content")
    return "\n".join(_part(part) for part in given.objects("content"))


def _part(part: Fields) -> str:
    kind = part.required("type")
    if kind in _MEDIA:
        raise part.wrong("type", f"cannot be honoured: models here take no {_MEDIA[kind]}")
    if kind not in _TEXT_PARTS:
        raise part.wrong("type", "must be 'text'")
    return part.required("refusal" if kind == "refusal" else "text")


def _call(call: Fields) -> dict[str, Any]:
    if call.get("type") not in (None, "function"):
        raise call.wrong("type", "must be 'function'")
    function = call.object("function")
    if function is None:
        raise call.wrong("function", "is required")
    name, text = function.required("name"), function.text("arguments") or "{}"
    try:
        arguments = read_json(text)
    except ValueError:
        raise function.wrong("arguments", "must be a string of JSON") from None
    found: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return found if call.get("id") is None else {"id": call.required("id"), **found}


STORED: Final = "nothing is stored: send all items as 'input'"


def item_messages(fields: Fields) -> list[dict[str, Any]]:
    """The members ``instructions`` and ``input`` of a request for a response.

    Raises:
        FieldError: something makes no sense, or cannot be honoured.
    """
    found: list[dict[str, Any]] = []
    if (instructions := fields.text("instructions")) is not None:
        found.append({"role": "system", "content": instructions})
    given = fields.get("input")
    if type(given) is str:
        return [*found, {"role": "user", "content": given}]
    items = fields.objects("input")
    if not items:
        raise fields.wrong("input", "must be a string, or an array of at least one item")
    for item in items:
        _add(found, item)
    return found


def _add(found: list[dict[str, Any]], item: Fields) -> None:
    """The items of one turn of a model (reasoning, a text, calls) become one message."""
    kind = item.text("type") or "message"
    if kind == "message":
        message = _message(item)
        opened = _opened(found) if message["role"] == "assistant" else None
        if opened is None or "tool_calls" in opened or opened["content"]:
            found.append(message)
        else:
            opened["content"] = message["content"]
    elif kind == "reasoning":
        found.append({"role": "assistant", "content": "", "reasoning_content": _reasoning(item)})
    elif kind == "function_call":
        function = {"name": item.required("name"), "arguments": item.required("arguments")}
        call = _call(Fields({"function": function, "id": item.get("call_id")}, item.name("")[:-1]))
        opened = _opened(found)
        if opened is None:
            opened = {"role": "assistant", "content": ""}
            found.append(opened)
        opened.setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        found.append({"role": "tool", "tool_call_id": item.required("call_id"), "content": _output(item)})
    else:
        what = STORED if kind == "item_reference" else "functions are the only tools, and models here take texts"
        raise item.wrong("type", f"'{kind}' cannot be honoured: {what}", "unsupported_value")


def _opened(found: list[dict[str, Any]]) -> dict[str, Any] | None:
    return found[-1] if found and found[-1]["role"] == "assistant" else None


def _reasoning(item: Fields) -> str:
    """Its text, else the summary of it."""
    parts = item.objects("content") or item.objects("summary")
    return "\n".join(part.required("text") for part in parts)


def _output(item: Fields) -> str:
    value = item.get("output")
    if type(value) is str:
        return value
    if type(value) is list:
        return "\n".join(part.required("text") for part in item.objects("output"))
    if value is None:
        raise item.wrong("output", "is required", "missing_required_parameter")
    return dumps_text(value)
