"""What the log-probabilities of an answer may take: they are by far the largest part of it."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from repoagent_server.openai.answer import Answer, ChoicesAnswer
from repoagent_server.openai.chat_request import ChatAnswer, read_chat
from repoagent_server.openai.responses import ResponseAnswer, read_response

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import InferResponse
from repoagent.serving.requests.tensor import DataType, Tensor

from .conftest import user

ENTRY = json.dumps({"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []})
PIECE = [ENTRY] * 10_000


def _answer(kind: str, *, stream: bool) -> Answer:
    asked: dict[str, Any] = {"model": "m", "stream": stream}
    if kind == "response":
        return ResponseAnswer(read_response({**asked, "input": "x", "include": ["message.output_text.logprobs"]}))
    return ChatAnswer(read_chat({**asked, "messages": user("x"), "logprobs": True}))


def _response(text: str = "a", log_probs: Sequence[str] = ()) -> InferResponse:
    outputs = {"text_output": [text], "token_log_probs": log_probs}
    tensors = {name: Tensor(DataType.BYTES, np.array(value, np.object_)) for name, value in outputs.items()}
    return InferResponse("m", "1", "", tensors)


@pytest.mark.parametrize(("kind", "stream"), [("chat", False), ("response", False), ("response", True)])
def test_an_answer_that_keeps_them_has_a_limit(kind: str, stream: bool) -> None:
    answer, response = _answer(kind, stream=stream), _response(log_probs=PIECE)
    fits = (1 << 25) // (len(ENTRY) * len(PIECE))
    for _ in range(fits):
        answer.take(0, response, final=False)
    with pytest.raises(InvalidArgumentError, match="fewer alternatives"):
        answer.take(0, response, final=False)


def test_a_stream_that_keeps_none_has_no_limit() -> None:
    answer, response = _answer("chat", stream=True), _response(log_probs=PIECE)
    for _ in range((1 << 25) // (len(ENTRY) * len(PIECE)) + 2):
        assert answer.take(0, response, final=False).count(b"data: ") >= 1


def test_what_a_model_has_written_is_not_read() -> None:
    """Read, an entry with 20 alternatives takes ten times its memory."""
    answer = _answer("chat", stream=False)
    answer.take(0, _response(log_probs=PIECE), final=False)
    assert isinstance(answer, ChoicesAnswer)
    assert answer._deltas[0][0].log_probs[0] == ENTRY.encode()
    answer.take(0, None, final=True)
    assert json.loads(answer.document())["choices"][0]["logprobs"]["content"][0] == json.loads(ENTRY)


def test_the_text_of_a_response_is_joined_at_its_end() -> None:
    """Else each piece would copy all that came before it."""
    answer = _answer("response", stream=True)
    assert isinstance(answer, ResponseAnswer)
    for _ in range(3):
        answer.take(0, _response("a"), final=False)
    assert answer._items[0]["content"][0]["text"] == ""
    failed = answer.failure(b'{"error": {"message": "a fault"}}')
    assert json.loads(failed.partition(b"data: ")[2])["response"]["output"][0]["content"][0]["text"] == "aaa"
