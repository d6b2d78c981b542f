"""``/v1/embeddings``: any model with one input of texts and one output of FP32."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from repoagent.errors import InternalError, InvalidArgumentError
from repoagent.serving.requests.request import Asked, InferResponse
from repoagent.serving.requests.tensor import Array, DataType, Tensor
from repoagent_server.codec.json_text import array_fragment, dumps
from repoagent_server.openai.fields import Fields

_MOST: Final = 2048
"""Texts of one request, as at OpenAI."""


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Texts to be embedded."""

    model: str
    texts: list[str]
    base64: bool
    dimensions: int | None


def read_embedding(document: object) -> EmbeddingRequest:
    """Read the body of a request.

    Raises:
        InvalidArgumentError: something makes no sense, or cannot be honoured.
    """
    fields = Fields(document)
    model = fields.required("model")
    given = fields.get("input")
    texts = [given] if type(given) is str else given
    if type(texts) is list and texts and all(type(item) in (int, list) for item in texts):
        raise fields.wrong("input", "cannot be honoured as tokens: send texts")
    if type(texts) is not list or not 0 < len(texts) <= _MOST or any(type(item) is not str for item in texts):
        raise fields.wrong("input", f"must be a string, or an array of 1 to {_MOST} strings")
    form = fields.text("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise fields.wrong("encoding_format", "must be 'float' or 'base64'")
    return EmbeddingRequest(model, texts, form == "base64", fields.whole("dimensions", 1, 1 << 24))


def makes_embeddings(metadata: Mapping[str, Any]) -> bool:
    """Whether a model with these metadata has one input of texts and one output of FP32."""
    outputs = [item for item in metadata["outputs"] if item["datatype"] == "FP32"]
    inputs = metadata["inputs"]
    return len(inputs) == 1 and inputs[0]["datatype"] == "BYTES" and len(outputs) == 1


def embedding_requests(asked: EmbeddingRequest, metadata: Mapping[str, Any]) -> list[Asked]:
    """One request for each text: the server's batchers join them.

    Raises:
        InvalidArgumentError: the model makes no embeddings.
    """
    if not makes_embeddings(metadata):
        raise InvalidArgumentError(
            f"model '{asked.model}' makes no embeddings: it needs one input, of type BYTES, and one output of type FP32"
        )
    given = metadata["inputs"][0]
    return [Asked(asked.model, {given["name"]: _text(text, len(given["shape"]))}) for text in asked.texts]


def _text(text: str, rank: int) -> Tensor:
    array = np.empty((1,) * rank, np.object_)
    array[...] = text.encode("utf-8", "surrogateescape")
    return Tensor(DataType.BYTES, array)


def embedding_of(response: InferResponse) -> Array:
    """The vector in a response.

    Raises:
        InternalError: there is none.
    """
    for tensor in response.outputs.values():
        if tensor.data_type is DataType.FP32:
            return np.ascontiguousarray(tensor.array, np.float32).ravel()
    raise InternalError(f"model '{response.model_name}' has returned no FP32 output")


def embeddings_document(asked: EmbeddingRequest, vectors: Sequence[Array]) -> bytes:
    """The whole response.

    Raises:
        InvalidArgumentError: the vectors have not as many dimensions as were asked for.
    """
    size = vectors[0].size
    if asked.dimensions not in (None, size):
        raise InvalidArgumentError(f"'dimensions' cannot be honoured: vectors of model '{asked.model}' have {size}")
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(vector.tobytes()).decode() if asked.base64 else array_fragment(vector),
        }
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    return dumps({"object": "list", "data": data, "model": asked.model, "usage": usage})
