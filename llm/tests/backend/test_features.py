"""What the executor can do beyond plain texts, asked for through a model's parameters and a request's tensors."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm.backend.tokenizing import Tokenizer

from llm.tests.backend.conftest import Asker, WriteModel
from llm.tests.backend.tiny import byte_fallback, byte_level, write_decoder
from llm.tests.reference import Reference
from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor

STOP = "stop_token_id"
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_text_follows_a_guide(core: ServingCore, write_llm: WriteModel, backend: str, stream: bool) -> None:
    write_llm(guided_decoding_backend=backend)
    core.load("m")
    asked: dict[str, Any] = {"max_tokens": 60, "exclude_input_in_output": True, "stream": stream}

    def text(kind: str, guide: str, **more: Any) -> str:
        guides: dict[str, Any] = {"guided_decoding_guide_type": kind, "guided_decoding_guide": guide}
        return "".join(Asker(core).ask("x", **asked, **guides, **more).texts())

    assert re.fullmatch("(yes|no)é[0-9]{3}", text("regex", "(yes|no)é[0-9]{3}"))
    assert json.loads(text("json_schema", json.dumps(SCHEMA)))["a"] in (1, 22)
    assert text("ebnf_grammar", 'root ::= "ab" "c"') == "abc"
    with pytest.raises(InvalidArgumentError):
        Asker(core).ask("x", guided_decoding_guide_type="json_schema", guided_decoding_guide='{"type": 7}').one()


def test_a_vocabulary_with_byte_fallback_follows_a_guide(
    core: ServingCore, write_llm: WriteModel, tmp_path: Path
) -> None:
    write_llm(folder=write_decoder(tmp_path / "fallback", byte_fallback()), guided_decoding_backend="llguidance")
    core.load("m")
    answers = Asker(core).ask(
        "a b",
        max_tokens=20,
        exclude_input_in_output=True,
        stream=True,
        guided_decoding_guide_type="regex",
        guided_decoding_guide=" a日本[xy]",
    )
    assert re.fullmatch(" a日本[xy]", "".join(answers.texts()))


def test_an_adapter_comes_with_the_first_request_and_is_known_by_its_number_then(
    core: ServingCore, write_llm: WriteModel
) -> None:
    write_llm(lora="true")
    core.load("m")
    asker = Asker(core)
    plain = asker.ask("hello", max_tokens=10).texts()
    source = np.random.default_rng(1)
    weights = source.standard_normal((1, 2 * 64 + 64 * 2)).astype(np.float16)  # queries of layer 0, rank 2
    config = np.array([[1, 0, 2]], np.int32)
    adapted = asker.ask("hello", max_tokens=10, lora_task_id=7, lora_weights=weights, lora_config=config).texts()
    assert adapted != plain
    assert asker.ask("hello", max_tokens=10, lora_task_id=7).texts() == adapted
    assert asker.ask("hello", max_tokens=10).texts() == plain
    with pytest.raises(InvalidArgumentError, match="LoRA task 8 not found in cache"):
        asker.ask("hello", lora_task_id=8).one()


def test_a_draft_model_changes_no_text(core: ServingCore, write_llm: WriteModel, decoder: Path) -> None:
    write_llm("plain")
    shutil.copytree(decoder, write_llm(speculative_model_dir="draft", max_draft_len=2) / "1" / "draft")
    for name in ("plain", "m"):
        core.load(name)
    asker = Asker(core)
    wanted = asker.ask("hello", "plain", max_tokens=30, exclude_input_in_output=True).texts()
    answers = asker.ask("hello", max_tokens=30, stream=True, return_perf_metrics=True)
    assert "".join(answers.texts()) == wanted[0]
    assert answers.wait()[-1].outputs["total_accepted_draft_tokens"].array.item() > 5


def test_lookahead_changes_no_text(core: ServingCore, write_llm: WriteModel) -> None:
    write_llm("plain")
    sizes = {"lookahead_window_size": 1, "lookahead_ngram_size": 3, "lookahead_verification_set_size": 2}
    write_llm(**sizes)
    for name in ("plain", "m"):
        core.load(name)
    asker = Asker(core)
    assert asker.ask("hello", max_tokens=60).texts() == asker.ask("hello", "plain", max_tokens=60).texts()


def test_a_decoder_of_several_ends_stops_at_each(core: ServingCore, write_llm: WriteModel, tmp_path: Path) -> None:
    write_llm("plain")
    core.load("plain")
    (whole,) = Asker(core).ask("hello", "plain", max_tokens=40, exclude_input_in_output=True).texts()
    letter = next(letter for letter in whole[5:] if letter.isascii() and letter not in whole[:5] + "helw ")
    place = write_llm()
    path = place / "1" / "genai_config.json"
    described = json.loads(path.read_text())
    described["model"]["eos_token_id"] = [2, byte_level().encode(letter).ids[0]]
    path.write_text(json.dumps(described))
    core.load("m")
    answers = Asker(core).ask("hello", max_tokens=40, exclude_input_in_output=True, return_finish_reason=True)
    assert answers.texts("finish_reason") == ["stop"]
    assert answers.texts() == [whole[: whole.index(letter)]]


TENSORS = """
max_batch_size: 2
input { name: "text_input" data_type: TYPE_STRING dims: [1] }
input { name: "max_tokens" data_type: TYPE_UINT32 dims: [1] }
input { name: "random_seed" data_type: TYPE_UINT64 dims: [1] optional: true }
output { name: "text_output" data_type: TYPE_STRING dims: [-1] }
"""


def test_a_configuration_of_tensorrtllm_backend_is_taken(core: ServingCore, write_llm: WriteModel) -> None:
    write_llm(
        config=TENSORS,
        gpt_model_type="inflight_fused_batching",
        gpt_model_path="/engines",
        kv_cache_free_gpu_mem_fraction="0.9",
        max_beam_width="${max_beam_width}",
        batch_scheduler_policy="guaranteed_no_evict",
    )
    core.load("m")
    request = Asker(core).request("hello", batching=True, random_seed=3)
    request.inputs = {**request.inputs, "max_tokens": Tensor.of(np.array([[5]], np.uint32))}
    assert Asker(core).send(request).texts()


def test_min_tokens_holds_back_every_end_token_of_a_model(core: ServingCore, write_llm: WriteModel) -> None:
    """Llama 3 and Qwen have several; and they are not part of the answer, nor counted."""
    config = write_llm() / "1" / "genai_config.json"
    core.load("m")
    asker = Asker(core)
    wishes: dict[str, Any] = {"max_tokens": 16, "exclude_input_in_output": True, "return_num_output_tokens": True}

    def counted(**more: Any) -> int:
        return int(asker.ask("hello", **wishes, **more).one().outputs["num_output_tokens"].array[0])

    logits = asker.ask("hello", return_generation_logits=True, **wishes).one().outputs["generation_logits"].array
    ends = sorted({int(token) for token in logits[0].argmax(-1)})
    said = {"temperature": 0, "ignore_eos": True, "stop_token_ids": ends}
    assert counted(sampling_parameters=json.dumps(said)) == 1
    assert counted(sampling_parameters=json.dumps(said), min_tokens=9) >= 9
    core.unload("m")
    values = json.loads(config.read_text())
    values["model"]["eos_token_id"] = [2, *ends]
    config.write_text(json.dumps(values))
    core.load("m")
    assert counted() == 0
    assert counted(min_tokens=9) >= 9


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_has_the_reason_of_its_end_where_it_is_wanted_alone(asker: Asker, streamed: bool) -> None:
    wishes: dict[str, Any] = {"max_tokens": 4, "exclude_input_in_output": True, "stream": streamed}

    def ends(**more: Any) -> tuple[set[str], Any, Any]:
        outputs = asker.ask("hello", **wishes, **more).wait()[-1].outputs
        reason, stop = (outputs[name].array.tolist() if name in outputs else None for name in ("finish_reason", STOP))
        return set(outputs), reason, stop

    logits = asker.ask("hello", return_generation_logits=True, max_tokens=4).one().outputs["generation_logits"].array
    last = int(logits[0, -1].argmax())
    stopping = {"sampling_parameters": json.dumps({"temperature": 0, "ignore_eos": True, "stop_token_ids": [last]})}
    assert ends() == ends(**stopping) == ({"text_output"}, None, None)
    assert ends(return_finish_reason=True) == ({"text_output", "finish_reason"}, [b"length"], None)
    assert ends(return_finish_reason=True, **stopping) == ({"text_output", "finish_reason", STOP}, [b"stop"], [last])


@pytest.mark.parametrize(
    "parameters", [{"max_batch_size": 3}, {"max_tokens_in_paged_kv_cache": 96}, {"max_batch_size": 1}]
)
@pytest.mark.parametrize("stream", [True, False])
def test_more_texts_than_fit_run_as_they_fit(
    core: ServingCore, write_llm: WriteModel, parameters: dict[str, int], stream: bool
) -> None:
    """M2: they were refused."""
    write_llm(**parameters)
    core.load("m")
    wishes: dict[str, Any] = {"max_tokens": 20, "num_return_sequences": 8, "top_k": 50, "seed": 7}
    texts: dict[int, str] = dict.fromkeys(range(8), "")
    for response in Asker(core).ask("hello", **wishes, exclude_input_in_output=True, stream=stream).wait():
        assert response.error is None
        number = int(response.outputs["sequence_index"].array.item())
        texts[number] += response.outputs["text_output"].array.item().decode()
    assert len(texts) == len(set(texts.values())) == 8
    refused = Asker(core).ask("hello", max_tokens=2, num_return_sequences=2000, top_k=50).wait()
    assert [str(response.error) for response in refused] == ["num_return_sequences must be at most 1024, not 2000"]


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_a_model_that_pools_answers_with_vectors(
    core: ServingCore, write_llm: WriteModel, decoder: Path, pooling: str, batching: bool
) -> None:
    write_llm(config="max_batch_size: 4" if batching else "", pooling=pooling)
    core.load("m")
    metadata = core.model_metadata("m", "")
    names = [item["name"] for item in metadata["inputs"] + metadata["outputs"]]
    assert names == ["text_input", "input_ids", "embedding", "num_input_tokens"]
    inputs = Asker(core).request("hello world", batching=batching).inputs
    more = {"max_tokens": 0, "stream": True, "n": 3}  # which mean nothing here
    request = InferRequest(Asked("m", inputs, parameters=more))
    response = Asker(core).send(request).one()
    found = response.outputs["embedding"].array
    tokens = Tokenizer.load(decoder).encode("hello world")
    states = Reference(decoder.parent / "decoder-checkpoint").hidden(tokens)
    expected = {"mean": states.mean(axis=0), "last": states[-1], "cls": states[0]}[pooling]
    np.testing.assert_allclose(found[0] if batching else found, expected / np.linalg.norm(expected), atol=1e-5)
    with pytest.raises(InvalidArgumentError):
        Asker(core).ask("", batching=batching).one()


def test_a_pooling_that_is_not_known_is_refused(core: ServingCore, write_llm: WriteModel) -> None:
    write_llm(pooling="max")
    with pytest.raises(RepoAgentError, match="parameter 'pooling' must be one of mean, last, cls, not 'max'"):
        core.load("m")
