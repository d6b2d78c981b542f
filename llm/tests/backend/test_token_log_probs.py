"""Tokens with log-probabilities: beside those that the logits give."""

import json
from typing import Any

import numpy as np
import pytest

from llm.tests.backend.conftest import Asker


def entries(response: Any) -> list[dict[str, Any]]:
    return [json.loads(text) for text in response.outputs["token_log_probs"].array.ravel()]


def test_each_token_has_its_log_probability_and_the_likeliest_others(asker: Asker) -> None:
    outputs = asker.ask(
        "hello", max_tokens=6, end_id=-1, top_log_probs=3, return_generation_logits=True, exclude_input_in_output=True
    ).one()
    logits = outputs.outputs["generation_logits"].array[0].astype(np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = entries(outputs)
    assert len(found) == 6
    text = b"".join(bytes(entry["bytes"]) for entry in found).decode(errors="replace")
    for entry, row in zip(found, log_probs, strict=True):
        best = np.sort(row)[::-1][:3]
        assert entry["logprob"] == pytest.approx(best[0], abs=1e-4)
        assert [other["logprob"] for other in entry["top_logprobs"]] == pytest.approx(best.tolist(), abs=1e-4)
        assert entry["top_logprobs"][0]["bytes"] == entry["bytes"]
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
    assert outputs.outputs["text_output"].array[0].decode() in (text, text.replace("<unk>", ""))


def test_pieces_of_a_stream_have_those_of_their_tokens(asker: Asker) -> None:
    wanted: dict[str, Any] = {"max_tokens": 12, "end_id": -1, "top_log_probs": 1}
    whole = entries(asker.ask("hello", **wanted).one())
    pieces = [entries(response) for response in asker.ask("hello", stream=True, **wanted).wait()]
    assert len(pieces) > 1
    streamed = [entry for piece in pieces for entry in piece]
    assert [entry["bytes"] for entry in streamed] == [entry["bytes"] for entry in whole]
    # The prompt's beginning comes from the cache this time: other kernels, nearly the same numbers.
    assert [entry["logprob"] for entry in streamed] == pytest.approx([entry["logprob"] for entry in whole], abs=1e-3)


def test_none_of_the_others_may_be_wanted(asker: Asker) -> None:
    response = asker.ask("hello", max_tokens=2, sampling_parameters='{"logprobs": 0, "n": 2}').wait()[0]
    assert [entry["top_logprobs"] for entry in entries(response)] == [[], []]


@pytest.mark.parametrize("wanted", [21, -2])
def test_more_than_twenty_others_are_refused(wanted: int, asker: Asker) -> None:
    (response,) = asker.ask("hello", top_log_probs=wanted).wait()
    assert "top_log_probs must be a whole number from 0 to 20" in str(response.error)


def test_a_bias_of_tokens_decides(asker: Asker) -> None:
    wanted: dict[str, Any] = {"max_tokens": 4, "exclude_input_in_output": True}
    bias = json.dumps({"temperature": 0, "logit_bias": {"70": 100}})
    response = asker.ask("hello", sampling_parameters=bias, top_log_probs=0, **wanted).one()
    tokens = {entry["token"] for entry in entries(response)}
    assert len(tokens) == 1
    banned = json.dumps({"temperature": 0, "logit_bias": {"70": -100}})
    response = asker.ask("hello", sampling_parameters=banned, top_log_probs=0, **wanted).one()
    assert not tokens & {entry["token"] for entry in entries(response)}


@pytest.mark.parametrize(
    "bias", ['{"x": 1}', '{"-1": 1}', '{"99999": 1}', '{"1": "a"}', '{"1": Infinity}', "[1]", '{"1": true}']
)
def test_a_bias_that_makes_no_sense_is_refused(bias: str, asker: Asker) -> None:
    (response,) = asker.ask("hello", sampling_parameters=f'{{"logit_bias": {bias}}}').wait()
    assert str(response.error).startswith("logit_bias")
