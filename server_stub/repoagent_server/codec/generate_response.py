"""A response as generate gives it: one flat object of parameters and outputs."""

from typing import Any

from repoagent.serving.requests.request import InferResponse
from repoagent.serving.requests.tensor import Tensor
from repoagent_server.codec.datatypes import BY_TYPE, JsonKind
from repoagent_server.codec.infer_response import json_values
from repoagent_server.codec.json_text import Fragment, dumps

__all__ = ["write_generate"]


def write_generate(response: InferResponse) -> bytes:
    """The JSON: an output of one element is a bare value, any other a flat array.

    Raises:
        InvalidArgumentError: an output has a type that JSON cannot carry.
    """
    document: dict[str, Any] = {"id": response.id} if response.id else {}
    document["model_name"] = response.model_name
    document["model_version"] = response.model_version
    document.update(response.parameters)
    document.update((name, _value(tensor)) for name, tensor in response.outputs.items())
    return dumps(document)


def _value(tensor: Tensor) -> Any:
    info = BY_TYPE[tensor.data_type]
    if tensor.array.size != 1:
        return json_values(info, tensor)
    if info.json is JsonKind.STRING:  # what streams have in each of their pieces
        text = tensor.array.item()
        return text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")
    return Fragment(dumps(json_values(info, tensor))[1:-1])
