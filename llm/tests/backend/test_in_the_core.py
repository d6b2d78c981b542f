"""A language model beside what else the core has: models in memory, warm-ups, ensembles, models that call it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm.tests.backend.conftest import Asker, WriteModel
from repoagent.serving.core import ServingCore

TENSORS = """
input { name: "text_input" data_type: TYPE_STRING dims: [1] }
input { name: "max_tokens" data_type: TYPE_INT32 dims: [1] }
input { name: "stream" data_type: TYPE_BOOL dims: [1] }
output { name: "text_output" data_type: TYPE_STRING dims: [-1] }
"""
ENSEMBLE = f"""
platform: "ensemble"
{TENSORS}
ensemble_scheduling {{ step [ {{
  model_name: "m" model_version: -1
  input_map {{ key: "text_input" value: "text_input" }}
  input_map {{ key: "max_tokens" value: "max_tokens" }}
  input_map {{ key: "stream" value: "stream" }}
  output_map {{ key: "text_output" value: "text_output" }}
}} ] }}
"""
CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            inputs = request.inputs()
            call = pb_utils.InferenceRequest(model_name="m", inputs=inputs, requested_output_names=["text_output"])
            sender = request.get_response_sender()
            for response in call.exec(decoupled=True):
                if response.output_tensors():
                    sender.send(pb_utils.InferenceResponse(response.output_tensors()))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
WARM_UP = """
model_warmup {
  name: "hello"
  inputs { key: "text_input" value { data_type: TYPE_STRING dims: [1] input_data_file: "prompt" } }
}
"""


def test_a_model_may_come_as_the_contents_of_its_files(core: ServingCore, decoder: Path) -> None:
    core.load(
        "m", files={f"1/{path.name}": path.read_bytes() for path in decoder.iterdir()}, config='{"backend": "llm"}'
    )
    assert Asker(core).ask("hello", max_tokens=3).texts()


def test_a_warm_up_generates_a_text(core: ServingCore, write_llm: WriteModel) -> None:
    place = write_llm(config=WARM_UP)
    (place / "warmup").mkdir()
    (place / "warmup" / "prompt").write_bytes(len(b"hello").to_bytes(4, "little") + b"hello")
    core.load("m")
    assert Asker(core).ask("hello", max_tokens=3).texts()


def test_an_ensemble_and_a_calling_model_hand_a_stream_on(
    core: ServingCore, write_llm: WriteModel, tmp_path: Path
) -> None:
    write_llm()
    for name, config in (("ens", ENSEMBLE), ("caller", f'backend: "python"\n{TENSORS}')):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        policy = "model_transaction_policy { decoupled: true }" if name == "caller" else ""
        (tmp_path / "models" / name / "config.pbtxt").write_text(config + policy)
    (tmp_path / "models" / "caller" / "1" / "model.py").write_text(CALLER)
    for name in ("m", "ens", "caller"):
        core.load(name)
    asker = Asker(core)
    wanted = asker.ask("hello", max_tokens=12, stream=True).texts()
    assert len(wanted) > 4
    for name in ("ens", "caller"):
        assert asker.ask("hello", name, max_tokens=12, stream=True).texts() == wanted


# Tokens with log-probabilities: beside those that the logits give.


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


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_the_prompt_have_theirs(stream: bool, asker: Asker) -> None:
    wanted: dict[str, Any] = {"max_tokens": 3, "end_id": -1, "return_context_logits": True, "stream": stream}
    first, *others = asker.ask("hello world", prompt_log_probs=2, return_prompt_token_ids=True, **wanted).wait()
    logits = first.outputs["context_logits"].array.astype(np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = [json.loads(text) for text in first.outputs["prompt_token_log_probs"].array.ravel()]
    assert len(found) == len(logits) > 2
    assert found[0]["logprob"] is None
    assert b"".join(bytes(entry["bytes"]) for entry in found).decode().split() == ["hello", "world"]
    for entry, row in zip(found[1:], log_probs[:-1], strict=True):
        assert [other["logprob"] for other in entry["top_logprobs"]] == pytest.approx(np.sort(row)[:-3:-1], abs=1e-4)
        assert np.abs(row - entry["logprob"]).min() < 1e-4
    assert not any("prompt_token_log_probs" in response.outputs for response in others)


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_that_came_from_the_cache_are_counted(stream: bool, asker: Asker) -> None:
    text = "hello world and hello " + ("streamed " if stream else "whole ") + "again"
    wanted: dict[str, Any] = {"max_tokens": 2, "end_id": -1, "return_num_cached_tokens": True, "stream": stream}
    found = [asker.ask(text, **wanted).wait()[0] for _ in range(2)]
    found.append(asker.ask(text, prompt_log_probs=0, **wanted).wait()[0])
    counts = [response.outputs["num_cached_tokens"].array.tolist()[0] for response in found]
    assert counts[0] < counts[1]
    assert counts[2] == 0  # log-probabilities of a prompt need all of it
