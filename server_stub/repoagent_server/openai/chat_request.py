"""``/v1/chat/completions``: the request."""

from dataclasses import dataclass
from typing import Any, Final

from repoagent_server.codec.json_text import dumps
from repoagent_server.openai.fields import Fields
from repoagent_server.openai.generation_request import GenerationRequest
from repoagent_server.openai.messages import template_messages
from repoagent_server.openai.response_format import response_guide
from repoagent_server.openai.sampling import MOST_TOKENS, Sampling, read_sampling
from repoagent_server.openai.tools import Tools, read_tools

__all__ = ["ChatRequest", "read_chat"]

_MOST_ALTERNATIVES: Final = 20
_TEXTS_ONLY: Final = "the server has texts only"


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat to be continued."""

    model: str
    ask: GenerationRequest
    sampling: Sampling
    tools: Tools
    log_probs: bool


def read_chat(document: object) -> ChatRequest:
    """Read the body of a request.

    Raises:
        InvalidArgumentError: something makes no sense, or cannot be honoured.
    """
    fields = Fields(document)
    model = fields.required("model")
    sampling = read_sampling(fields)
    _refuse(fields)
    tools = read_tools(fields)
    guide = response_guide(fields)
    if guide is not None and tools.guide is not None:
        raise fields.wrong(guide.field, "cannot be honoured together with a 'tool_choice' that demands a call")
    log_probs = fields.truth("logprobs")
    alternatives = fields.whole("top_logprobs", 0, _MOST_ALTERNATIVES)
    if alternatives is not None and not log_probs:
        raise fields.wrong("top_logprobs", "is only allowed when 'logprobs' is true")
    ask = GenerationRequest(
        messages=_json(template_messages(fields)),
        template_values=_template_values(fields, tools),
        max_tokens=_max_tokens(fields),
        sampling=sampling.values,
        seed=sampling.seed,
        adapter=sampling.adapter,
        guide=tools.guide or guide,
        top_log_probs=(alternatives or 0) if log_probs else None,
        stream=sampling.stream,
    )
    return ChatRequest(model, ask, sampling, tools, log_probs)


def _refuse(fields: Fields) -> None:
    fields.refuse("audio", _TEXTS_ONLY)
    fields.refuse("modalities", _TEXTS_ONLY, ["text"])
    fields.refuse("web_search_options", "the server does not search the web")
    fields.refuse("verbosity", "models here have no such setting", "medium")


def _max_tokens(fields: Fields) -> int | None:
    """The newer name counts more."""
    newer, older = (fields.whole(name, 1, MOST_TOKENS) for name in ("max_completion_tokens", "max_tokens"))
    return older if newer is None else newer


def _template_values(fields: Fields, tools: Tools) -> str | None:
    given = fields.object("chat_template_kwargs")
    values: dict[str, Any] = {} if given is None else dict(given.values)
    for name in ("reasoning_effort", "documents", "add_generation_prompt", "continue_final_message"):
        if (value := fields.get(name)) is not None:
            values[name] = value
    if tools.given:
        values["tools"] = tools.given
    return _json(values) if values else None


def _json(value: object) -> str:
    return dumps(value).decode("utf-8", "surrogateescape")
