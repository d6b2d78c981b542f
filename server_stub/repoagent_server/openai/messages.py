"""The messages of a chat, in the form that chat templates know."""

from typing import Any, Final

from repoagent.nested_text import read_json
from repoagent_server.openai.fields import Fields

__all__ = ["template_messages"]

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
