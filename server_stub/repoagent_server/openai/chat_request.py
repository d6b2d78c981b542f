"""``/v1/chat/completions``: the request and the answer."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from repoagent_server.codec.json_text import Fragment, dumps_text
from repoagent_server.openai.answer import ChoicesAnswer, ranked_log_probs
from repoagent_server.openai.choice import Choice, Delta
from repoagent_server.openai.conversation import template_messages, template_values
from repoagent_server.openai.fields import Fields
from repoagent_server.openai.response_format import response_guide
from repoagent_server.openai.sampling import MOST_ALTERNATIVES, MOST_TOKENS, read_ranked, read_sampling
from repoagent_server.openai.text_request import TextRequest
from repoagent_server.openai.tool_calls import CallPiece
from repoagent_server.openai.tools import read_tools


class ChatAnswer(ChoicesAnswer):
    """Messages."""

    prefix = "chatcmpl-"
    whole = "chat.completion"
    part = "chat.completion.chunk"

    def chunks(self, choice: Choice, delta: Delta) -> list[dict[str, Any]]:
        """See :class:`ChoicesAnswer`."""
        found = []
        content = delta.content
        if not choice.begun:
            found.append(self._chunk(choice, {"role": "assistant", "content": ""}))
        if delta.reasoning:
            found.append(self._chunk(choice, {"reasoning_content": delta.reasoning}))
        if content or delta.log_probs:
            found.append(self._chunk(choice, {"content": content}, self._listed(delta.log_probs)))
        found += [self._chunk(choice, {"tool_calls": [_written_call(call)]}) for call in delta.calls]
        if choice.reason is not None:
            found.append({**self._chunk(choice, {}, reason=choice.reason), "stop_reason": choice.stop_reason})
        return found

    def _chunk(
        self, choice: Choice, delta: dict[str, Any], log_probs: Any = None, reason: str | None = None
    ) -> dict[str, Any]:
        return {"index": choice.index, "delta": delta, "logprobs": log_probs, "finish_reason": reason}

    def _listed(self, log_probs: Sequence[Any]) -> dict[str, Any] | None:
        if self.asked.top_log_probs is None:
            return None
        return {"content": list(map(Fragment, log_probs)), "refusal": None}

    def choice(self, choice: Choice, deltas: list[Delta]) -> dict[str, Any]:
        """See :class:`ChoicesAnswer`."""
        text = "".join(delta.content for delta in deltas)
        calls = _joined([call for delta in deltas for call in delta.calls])
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if reasoning := "".join(delta.reasoning for delta in deltas):
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        log_probs = self._listed([entry for delta in deltas for entry in delta.log_probs])
        return {
            "index": choice.index,
            "message": message,
            "logprobs": log_probs,
            "finish_reason": choice.reason,
            "stop_reason": choice.stop_reason,
        }

    def more(self, first: Choice) -> dict[str, Any]:
        """The log-probabilities of the prompt, which all choices share."""
        ranked = self.asked.ranked
        return {} if ranked is None else {"prompt_logprobs": ranked_log_probs(first.prompt, ranked)}


def _written_call(call: CallPiece) -> dict[str, Any]:
    if call.name is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _joined(pieces: Sequence[CallPiece]) -> list[dict[str, Any]]:
    """Whole calls."""
    found: dict[int, tuple[CallPiece, list[str]]] = {}
    for piece in pieces:
        found.setdefault(piece.index, (piece, []))[1].append(piece.arguments)
    whole = [_written_call(replace(first, arguments="".join(texts))) for first, texts in found.values()]
    return [{name: value for name, value in call.items() if name != "index"} for call in whole]


_TEXTS_ONLY: Final = "the server has texts only"
_TEMPLATE: Final = ("reasoning_effort", "documents", "add_generation_prompt", "continue_final_message")
"""Fields that the chat template gets."""


def read_chat(document: object) -> TextRequest:
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
    alternatives = fields.whole("top_logprobs", 0, MOST_ALTERNATIVES)
    if alternatives is not None and not log_probs:
        raise fields.wrong("top_logprobs", "is only allowed when 'logprobs' is true")
    ranked = read_ranked(fields, stream=sampling.stream)
    return TextRequest(
        model=model,
        prompts=[("messages", dumps_text(template_messages(fields)))],
        template_values=template_values(fields, *_TEMPLATE, tools=tools.given or None),
        max_tokens=_max_tokens(fields),
        sampling=sampling,
        tools=tools,
        guide=tools.guide or guide,
        top_log_probs=(alternatives or 0) if log_probs else None,
        prompt_log_probs=ranked,
        ranked=ranked,
        usage=sampling.include_usage or not sampling.stream,
    )


def _refuse(fields: Fields) -> None:
    fields.refuse("audio", _TEXTS_ONLY)
    fields.refuse("modalities", _TEXTS_ONLY, ["text"])
    fields.refuse("web_search_options", "the server does not search the web")
    fields.refuse("verbosity", "models here have no such setting", "medium")


def _max_tokens(fields: Fields) -> int | None:
    """The newer name counts more."""
    newer, older = (fields.whole(name, 1, MOST_TOKENS) for name in ("max_completion_tokens", "max_tokens"))
    return older if newer is None else newer
