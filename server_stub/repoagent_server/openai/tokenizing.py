"""``/tokenize`` and ``/detokenize``, as vLLM has them: what a model makes of a prompt, and nothing generated."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from repoagent.errors import InternalError
from repoagent.serving.requests.request import Asked, InferResponse
from repoagent_server.codec.json_text import dumps, dumps_text
from repoagent_server.openai.conversation import template_messages, template_values
from repoagent_server.openai.fields import Fields
from repoagent_server.openai.tensors import ModelTensors

_IDS: Final = "prompt_token_ids"
_MOST: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """``inputs``: the prompt, by the names of a model's inputs. ``field``: that of the request which has it."""

    model: str
    field: str
    inputs: Mapping[str, Any]
    wants_text: bool

    def asked(self, model: str, metadata: Mapping[str, Any]) -> Asked:
        """The request to ``model``; an adapter changes no token.

        Raises:
            FieldError: it has no input for something of it.
        """
        tensors = ModelTensors(model, metadata)
        for name, value in self.inputs.items():
            tensors.need(self.field, name, value)
        tensors.need(self.field, f"return_{_IDS}", True)
        tensors.need(self.field, "max_tokens", 0)
        tensors.offer("exclude_input_in_output", not self.wants_text)
        return Asked(model, tensors.made)

    def document(self, response: InferResponse) -> bytes:
        """The answer to the client."""
        found = response.outputs.get("text_output" if self.wants_text else _IDS)
        if found is None:
            raise InternalError(f"model '{self.model}' has answered without an output")
        if self.wants_text:
            text = found.array.item(0)
            return dumps({"prompt": text if isinstance(text, str) else text.decode(errors="replace")})
        tokens = found.array.ravel().tolist()
        return dumps({"count": len(tokens), "max_model_len": None, "tokens": tokens, "token_strs": None})


def read_tokenize(document: object) -> TokenRequest:
    """A text, or a conversation with the values for its template.

    Raises:
        InvalidArgumentError: something makes no sense, or cannot be honoured.
    """
    fields = Fields(document)
    model = fields.required("model")
    fields.refuse("return_token_strs", "the answer has numbers", False)
    if fields.get("messages") is None:
        fields.refuse("add_special_tokens", "the model's parameter of this name sets it", True)
        return TokenRequest(model, "prompt", {"text_input": fields.required("prompt")}, wants_text=False)
    fields.refuse("add_special_tokens", "the chat template writes those that it wants", False)
    values = template_values(fields, "add_generation_prompt", "continue_final_message", "tools")
    inputs = {"messages": dumps_text(template_messages(fields))}
    if values is not None:
        inputs["chat_template_kwargs"] = values
    return TokenRequest(model, "messages", inputs, wants_text=False)


def read_detokenize(document: object) -> TokenRequest:
    """Tokens to be a text.

    Raises:
        InvalidArgumentError: something makes no sense.
    """
    fields = Fields(document)
    tokens = fields.get("tokens")
    if type(tokens) is not list or any(type(token) is not int or not 0 <= token <= _MOST for token in tokens):
        raise fields.wrong("tokens", "must be an array of tokens")
    return TokenRequest(fields.required("model"), "tokens", {"input_ids": tokens}, wants_text=True)
