"""Plans of decoders over the stand-in: token for token what OrtStdRunner gives, and what is refused."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm import Executor, ModelType, Request, SamplingConfig
from repoagent_llm.assembly import load_runner
from repoagent_llm.builder import Form, Precision
from repoagent_llm.engine_config import EngineConfig
from repoagent_llm.runner.decoder_spec import CONFIG_NAME, read_spec
from repoagent_llm.runner.ort import OrtRunner
from repoagent_llm.runner.protocol import DecodeRound, Embeddings, Logits, ModelRunner, Segment
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.runner.tensorrt import TensorRtRunner
from repoagent_llm.types.executor_errors import CheckError, DecoderError, EngineError

from llm.tests.plan_folders import prefill_and_decode
from repoagent.engines.probe import Findings
from tests.engines.platforms import allocations, content_of, new_platform, plan_of
from tests.engines.standin import StandInPlan

PROMPTS = [[3, 5, 9, 17, 4, 22, 8], [11, 2], [40, 41, 42, 43, 44]]


def _greedy(runner: ModelRunner, steps: int) -> tuple[list[list[int]], Any]:
    """The tokens of several sequences at once, and the logits of all of them."""
    seqs, tokens, logits = [], [], []
    for prompt in PROMPTS:
        seq = runner.open()
        assert seq is not None
        found = runner.step([Segment(seq, np.array(prompt, np.int32), Logits.ALL)]).logits
        seqs.append(seq)
        logits.append(found.copy())
        tokens.append([int(found[-1].argmax())])
    going = DecodeRound.of(seqs)
    for _ in range(steps):
        going.tokens[:] = [one[-1] for one in tokens]
        found = runner.step(going).logits
        logits.append(found.copy())
        for line, one in enumerate(tokens):
            one.append(int(found[line].argmax()))
    return tokens, np.concatenate(logits)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gpt2"])
def test_token_for_token_what_onnxruntime_gives(
    kind: str,
    precision: Precision,
    open_plan: Callable[..., TensorRtRunner],
    open_runner: Callable[..., OrtRunner],
) -> None:
    tokens, logits = _greedy(open_plan(kind, precision), 20)
    expected, others = _greedy(open_runner(kind, Form.STD, precision), 20)
    assert tokens == expected
    np.testing.assert_allclose(logits, others, atol=2e-5 if precision is Precision.FP32 else 0.05)


def test_prompts_longer_than_a_profile_go_in_pieces(
    open_plan: Callable[..., TensorRtRunner], open_runner: Callable[..., OrtRunner]
) -> None:
    plan = open_plan("llama", Precision.FP32, *prefill_and_decode(4, 3), name="short")
    tokens, logits = _greedy(plan, 8)
    expected, others = _greedy(open_runner("llama", Form.STD), 8)
    assert tokens == expected
    np.testing.assert_allclose(logits, others, atol=2e-5)


def test_what_a_runner_states_about_itself(open_plan: Callable[..., TensorRtRunner]) -> None:
    info = open_plan("llama", Precision.FP16).info
    assert (info.device, info.dtype, info.max_seq_len, info.max_sequences) == ("gpu:0", "float16", 64, 4)
    assert (info.lora, info.hidden_size, info.extra_outputs) == (None, None, ())


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"lora": True}, r"LoRA adapters \(RunnerOptions\.lora\)"),
        ({"extra_outputs": ("last_hidden",)}, "additional outputs"),
        ({"mixed": True}, "mixed runs"),
    ],
)
def test_what_a_plan_cannot_do_is_refused_by_name(
    open_plan: Callable[..., TensorRtRunner], options: dict[str, Any], what: str
) -> None:
    with pytest.raises(CheckError, match=f"a TensorRT plan has no {what}.*use the decoder's ONNX folder"):
        open_plan("llama", **options)


def test_embeddings_and_named_tensors_are_refused(open_plan: Callable[..., TensorRtRunner]) -> None:
    runner = open_plan("llama")
    seq = runner.open()
    assert seq is not None
    tokens = np.array([1, 2], np.int32)
    embeddings = Embeddings(np.array([0]), np.zeros((1, 8), np.float32))
    with pytest.raises(EngineError, match="a TensorRT plan takes no embeddings"):
        runner.step([Segment(seq, tokens, embeddings=embeddings)])
    with pytest.raises(EngineError, match="a TensorRT plan takes no additional outputs"):
        runner.step([Segment(seq, tokens, extras=("hidden",))])


def test_another_length_than_the_plans_is_refused_at_load(open_plan: Callable[..., TensorRtRunner]) -> None:
    with pytest.raises(CheckError, match="have 65 tokens, so that a sequence holds 64, but max_seq_len is 32"):
        open_plan("llama", max_seq_len=32)


def test_more_sequences_than_the_profiles_allow_are_refused_at_load(open_plan: Callable[..., TensorRtRunner]) -> None:
    with pytest.raises(CheckError, match="5 sequences are asked for, and the plan's profiles allow 4: lower"):
        open_plan("qwen3", Precision.FP32, *prefill_and_decode(4, 7), name="two", max_sequences=5)


def test_a_plan_of_another_decoder_is_refused(decoder_plan: Any, tmp_path: Path) -> None:
    folder = decoder_plan("llama")
    values = json.loads((folder / CONFIG_NAME).read_text())
    values["model"]["decoder"]["num_hidden_layers"] += 1
    (tmp_path / CONFIG_NAME).write_text(json.dumps(values))
    (tmp_path / "model.plan").write_bytes((folder / "model.plan").read_bytes())
    with pytest.raises(DecoderError, match=r"the plan is not that of the decoder in genai_config\.json: it has no"):
        TensorRtRunner(tmp_path, platform=new_platform())


def test_a_plan_that_does_not_update_its_cache_in_place_is_refused(decoder_plan: Any, tmp_path: Path) -> None:
    folder = decoder_plan("llama")
    plan = plan_of((folder / "model.plan").read_bytes())
    (tmp_path / CONFIG_NAME).write_bytes((folder / CONFIG_NAME).read_bytes())
    (tmp_path / "model.plan").write_bytes(content_of(StandInPlan(plan.model)))
    with pytest.raises(DecoderError, match=r"the plan does not update past_key_values\.0\.key in place"):
        TensorRtRunner(tmp_path, platform=new_platform())


def test_a_plan_that_has_changed_since_it_was_built_is_refused(decoder_plan: Any, tmp_path: Path) -> None:
    folder = decoder_plan("llama")
    for name in (CONFIG_NAME, "model.plan"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    statement = {"subject": [{"name": "model.plan", "digest": {"sha256": "0" * 64}}]}
    (tmp_path / "model.plan.intoto.json").write_text(json.dumps(statement))
    with pytest.raises(DecoderError, match=r"model\.plan has changed since it was built"):
        TensorRtRunner(tmp_path, platform=new_platform())


def test_what_fails_while_it_is_opened_leaves_no_memory(decoder_plan: Any) -> None:
    platform = new_platform(memory_bytes=100_000)
    with pytest.raises(Exception, match=r"bytes left, and|cudaErrorMemoryAllocation"):
        TensorRtRunner(decoder_plan("llama"), RunnerOptions(max_sequences=64), platform=platform)
    assert allocations(platform) == 0


def test_a_folder_with_a_plan_chooses_this_runner(decoder_plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = new_platform()
    monkeypatch.setattr("repoagent_llm.runner.tensorrt.find_platform", lambda: platform)
    runner = load_runner(read_spec(decoder_plan("llama")), EngineConfig(max_batch_size=2))
    assert isinstance(runner, TensorRtRunner)
    runner.close()
    assert allocations(platform) == 0


def test_an_executor_gives_the_same_on_both(
    decoder_plan: Any, decoder_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repoagent_llm.runner.tensorrt.find_platform", new_platform)
    answers = []
    for folder in (decoder_plan("llama"), decoder_folder("llama", Form.STD, Precision.FP32, False)):
        config = EngineConfig(max_batch_size=4, max_beam_width=2)
        with Executor(folder, ModelType.DECODER_ONLY, config) as executor:
            requests = [Request(prompt, 12) for prompt in PROMPTS]
            requests.append(Request(PROMPTS[0], 12, sampling_config=SamplingConfig(beam_width=2)))
            ids = executor.enqueue_requests(requests)
            answers.append([_tokens(executor, one) for one in ids])
    assert answers[0] == answers[1]


def _tokens(executor: Executor, request_id: int) -> list[list[int]]:
    while True:
        for response in executor.await_responses(request_id, timedelta(seconds=60)):
            if response.result.is_final:
                found: list[list[int]] = response.result.output_token_ids
                return found


def test_without_a_usable_tensorrt_the_reason_is_given(decoder_plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repoagent.engines.cuda.probe", lambda: Findings(problem="CUDA finds no usable driver"))
    with pytest.raises(Exception, match="TensorRT plans cannot run here: CUDA finds no usable driver"):
        load_runner(read_spec(decoder_plan("llama")), EngineConfig(max_batch_size=2))
