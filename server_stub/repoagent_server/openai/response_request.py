"""``/v1/responses``: the request. Its items become the messages of a conversation."""

from collections.abc import Mapping
from typing import Any, Final

from repoagent_server.codec.json_text import Fragment, dumps, dumps_text
from repoagent_server.openai.conversation import STORED, item_messages, template_values
from repoagent_server.openai.fields import Fields
from repoagent_server.openai.response_format import format_guide
from repoagent_server.openai.sampling import MOST_ALTERNATIVES, MOST_TOKENS, read_sampling
from repoagent_server.openai.text_request import TextRequest
from repoagent_server.openai.tools import read_tools

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
