"""``/v1/embeddings``, ``/v1/score``, ``/v1/rerank``: any model with one input of texts and one output of FP32.

It may take tokens as well, ``input_ids``, and return how many it has read, ``num_input_tokens``.
"""

import base64
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final, TypeAlias

import numpy as np

from repoagent.errors import InternalError, InvalidArgumentError
from repoagent.serving.requests.request import Asked, InferResponse
from repoagent.serving.requests.tensor import Array, DataType
from repoagent_server.codec.json_text import array_fragment, dumps
from repoagent_server.openai.fields import Fields
from repoagent_server.openai.tensors import ModelTensors

_MOST: Final = 2048
"""Texts of one request, as at OpenAI."""
_IDS: Final = "input_ids"
_LARGEST: Final = (1 << 31) - 1
_TINY: Final = 1e-8
"""Shorter vectors have no direction, as at vLLM."""


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Texts to be embedded, or tokens of such."""

    model: str
    texts: Sequence[str | list[int]]
    base64: bool
    dimensions: int | None

    def document(self, vectors: Sequence[Array], tokens: int) -> bytes:
        """The whole response. ``tokens``: how many the model has read; 0 where it does not return that.

        Raises:
            InvalidArgumentError: the vectors have not as many dimensions as were asked for.
        """
        size = vectors[0].size
        if self.dimensions not in (None, size):
            raise InvalidArgumentError(f"'dimensions' cannot be honoured: vectors of model '{self.model}' have {size}")
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(vector.tobytes()).decode() if self.base64 else array_fragment(vector),
            }
            for index, vector in enumerate(vectors)
        ]
        return dumps({"object": "list", "data": data, "model": self.model, "usage": _usage(tokens)})


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """How similar texts are: the first one of ``texts`` to each of the rest, or those of its first half to the others.
    ``pairs``: how many scores there are. ``ranked``: the best come first, and so many at most; None: as they were."""

    model: str
    texts: list[str]
    pairs: int
    ranked: int | None = None

    def document(self, vectors: Sequence[Array], tokens: int) -> bytes:
        """The whole response, in vLLM's form."""
        firsts, others = vectors[: -self.pairs], vectors[-self.pairs :]
        scores = [self._score(one, other) for one, other in zip(cycle(firsts), others, strict=False)]
        if self.ranked is None:
            data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
            head = {"id": f"score-{secrets.token_hex(12)}", "object": "list", "created": int(time.time())}
            return dumps({**head, "model": self.model, "data": data, "usage": _usage(tokens)})
        best = sorted(range(self.pairs), key=scores.__getitem__, reverse=True)[: self.ranked]
        results = [
            {"index": index, "document": {"text": self.texts[index + 1]}, "relevance_score": scores[index]}
            for index in best
        ]
        head = {"id": f"rerank-{secrets.token_hex(12)}", "model": self.model}
        return dumps({**head, "usage": _usage(tokens), "results": results})

    def _score(self, one: Array, other: Array) -> float:
        """The cosine of their angle."""
        if one.size != other.size:
            raise InternalError(f"model '{self.model}' has returned vectors of {one.size} and {other.size} numbers")
        left, right = one.astype(np.float64), other.astype(np.float64)
        lengths = max(float(np.linalg.norm(left)), _TINY) * max(float(np.linalg.norm(right)), _TINY)
        score = float(left @ right) / lengths
        if not np.isfinite(score):
            raise InternalError(f"model '{self.model}' has returned a vector that is not finite")
        return score


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}


VectorRequest: TypeAlias = EmbeddingRequest | ScoreRequest
"""What is made of the vectors of ``texts``."""


def read_embedding(document: object) -> EmbeddingRequest:
    """Read the body of a request.

    Raises:
        InvalidArgumentError: something makes no sense, or cannot be honoured.
    """
    fields = Fields(document)
    model = fields.required("model")
    given = fields.get("input")
    texts = [given] if type(given) is str or _are_tokens(given) else given
    if (
        type(texts) is not list
        or not 0 < len(texts) <= _MOST
        or not (all(type(item) is str for item in texts) or all(map(_are_tokens, texts)))
    ):
        raise fields.wrong("input", f"must be a string, tokens, or an array of 1 to {_MOST} strings or lists of tokens")
    form = fields.text("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise fields.wrong("encoding_format", "must be 'float' or 'base64'")
    return EmbeddingRequest(model, texts, form == "base64", fields.whole("dimensions", 1, 1 << 24))


def _are_tokens(value: object) -> bool:
    return type(value) is list and bool(value) and all(type(item) is int and 0 <= item <= _LARGEST for item in value)


def makes_embeddings(metadata: Mapping[str, Any]) -> bool:
    """Whether a model with these metadata has one input of texts and one output of FP32."""
    outputs = [item for item in metadata["outputs"] if item["datatype"] == "FP32"]
    inputs = [item for item in metadata["inputs"] if item["name"] != _IDS]
    return len(inputs) == 1 and inputs[0]["datatype"] == "BYTES" and len(outputs) == 1


def embedding_requests(asked: VectorRequest, metadata: Mapping[str, Any]) -> list[Asked]:
    """One request for each text: the server's batchers join them.

    Raises:
        InvalidArgumentError: the model makes no embeddings, or none of tokens.
    """
    if not makes_embeddings(metadata):
        raise InvalidArgumentError(
            f"model '{asked.model}' makes no embeddings: it needs one input, of type BYTES, and one output of type FP32"
        )
    (name,) = (item["name"] for item in metadata["inputs"] if item["name"] != _IDS)
    requests = []
    for text in asked.texts:
        tensors = ModelTensors(asked.model, metadata)
        tensors.need("input", name if isinstance(text, str) else _IDS, text)
        requests.append(Asked(asked.model, tensors.made))
    return requests


def embedding_of(response: InferResponse) -> Array:
    """The vector in a response.

    Raises:
        InternalError: there is none.
    """
    for tensor in response.outputs.values():
        if tensor.data_type is DataType.FP32:
            return np.ascontiguousarray(tensor.array, np.float32).ravel()
    raise InternalError(f"model '{response.model_name}' has returned no FP32 output")


def tokens_of(response: InferResponse) -> int:
    """How many tokens the model has read for it; 0: it does not return that."""
    count = response.outputs.get("num_input_tokens")
    return 0 if count is None else int(count.array.sum())


def read_score(document: object) -> ScoreRequest:
    """Read the body of a request to ``/v1/score``: under vLLM's older names, or its newer ones.

    Raises:
        InvalidArgumentError: something makes no sense, or cannot be honoured.
    """
    fields = Fields(document)
    newer = fields.get("queries") is not None
    names = ("queries", "documents") if newer else ("text_1", "text_2")
    firsts, seconds = (
        _scored(fields, name, [given] if type(given := fields.get(name)) is str else given) for name in names
    )
    if len(firsts) not in (1, len(seconds)):
        raise fields.wrong(names[0], f"must be one text, or as many as '{names[1]}'")
    return ScoreRequest(fields.required("model"), [*firsts, *seconds], len(seconds))


def read_rerank(document: object) -> ScoreRequest:
    """Read the body of a request to ``/v1/rerank``.

    Raises:
        InvalidArgumentError: something makes no sense, or cannot be honoured.
    """
    fields = Fields(document)
    query, documents = fields.required("query"), _scored(fields, "documents", fields.get("documents"))
    most = fields.whole("top_n", 0, 1 << 31) or len(documents)
    return ScoreRequest(fields.required("model"), [query, *documents], len(documents), most)


def _scored(fields: Fields, name: str, texts: Any) -> list[str]:
    fields.refuse("truncate_prompt_tokens", "texts are embedded whole")
    if type(texts) is not list or not 0 < len(texts) <= _MOST // 2 or any(type(item) is not str for item in texts):
        raise fields.wrong(name, f"must be an array of 1 to {_MOST // 2} strings")
    return texts
