"""Pooled hidden states: one vector of length 1 for a prompt, beside NumPy."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from repoagent_llm import (
    AdditionalModelOutput,
    CapacitySchedulerPolicy,
    Executor,
    ExecutorConfig,
    FinishReason,
    KvCacheConfig,
    ModelType,
    OutputConfig,
    Request,
    RunnerOptions,
    SamplingConfig,
    SchedulerConfig,
)
from repoagent_llm.builder import Form

from llm.tests.conftest import MakeFolder, need_openvino
from llm.tests.fake_runner import FakeRunner
from llm.tests.reference import Reference

LIMIT = timedelta(seconds=120)
TEXT = np.random.default_rng(3).integers(3, 90, 150).tolist()
POOLS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda states: states.mean(axis=0),
    "last": lambda states: states[-1],
    "cls": lambda states: states[0],
}


def _config(**settings: Any) -> ExecutorConfig:
    config = ExecutorConfig(additional_model_outputs=[AdditionalModelOutput("last_hidden")], **settings)
    config.runner_options = RunnerOptions(threads=1, spinning=False, max_sequences=8, max_seq_len=256)
    return config


def _request(pooling: str, tokens: list[int], **settings: Any) -> Request:
    request = Request(tokens, 1, **settings)
    vars(request)["pooling"] = pooling
    return request


def _vectors(executor: Executor, *requests: Request) -> list[npt.NDArray[np.float32]]:
    answers = executor.await_responses(executor.enqueue_requests(requests), LIMIT)
    for (response,) in answers:
        assert not response.has_error(), response.error_msg
        assert response.result.finish_reasons == [FinishReason.LENGTH]
        assert len(response.result.output_token_ids[0]) == len(requests[0].input_token_ids)  # nothing was generated
    return [vars(response.result)["embedding"] for (response,) in answers]


@pytest.mark.parametrize("form", [Form.GQA, Form.STD, Form.PAGED])
@pytest.mark.parametrize("pooling", list(POOLS))
def test_vectors_are_those_of_numpy(
    form: Form, pooling: str, decoder_folder: MakeFolder, reference: Callable[[str], Reference]
) -> None:
    if form is Form.PAGED:
        need_openvino()
    expected = POOLS[pooling](reference("llama").hidden(TEXT))
    expected /= np.linalg.norm(expected)
    config = _config(max_num_tokens=40, enable_chunked_context=True)  # the prompt comes in pieces
    with Executor(decoder_folder("llama", form), ModelType.DECODER_ONLY, config) as executor:
        for _ in range(2):  # the second time its blocks are retained
            (vector,) = _vectors(executor, _request(pooling, TEXT))
            assert vector.dtype == np.float32
            np.testing.assert_allclose(vector, expected, rtol=0, atol=1e-5)
        beside = [executor.enqueue_request(Request(TEXT[number:], 5)) for number in range(3)]
        several = _vectors(executor, *[_request(pooling, TEXT) for _ in range(4)])
        assert all(len(executor.await_responses(one, LIMIT)[0].result.output_token_ids[0]) > 9 for one in beside)
    np.testing.assert_allclose(several, [expected] * 4, rtol=0, atol=1e-5)


def test_a_paused_prompt_is_pooled_once(decoder_folder: MakeFolder, reference: Callable[[str], Reference]) -> None:
    """Two texts grow while it is read in pieces, and it gives its blocks back."""
    config = _config(
        max_num_tokens=20,
        enable_chunked_context=True,
        kv_cache_config=KvCacheConfig(max_tokens=9 * 32, enable_block_reuse=False),
        scheduler_config=SchedulerConfig(CapacitySchedulerPolicy.MAX_UTILIZATION),
        iter_stats_max_iterations=1000,
    )
    expected = reference("llama").hidden(TEXT[:100]).mean(axis=0)
    with Executor(decoder_folder("llama"), ModelType.DECODER_ONLY, config) as executor:
        growing = executor.enqueue_requests([Request(TEXT[:61], 60), Request(TEXT[1:62], 60)])
        (vector,) = _vectors(executor, _request("mean", TEXT[:100]))
        executor.await_responses(growing, LIMIT)
        stats = [item.inflight_batching_stats for item in executor.get_latest_iteration_stats()]
    assert any(item is not None and item.num_paused_requests for item in stats)
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "settings", "text"),
    [
        ("max", {}, "must be one of mean, last, cls"),
        ("mean", {"streaming": True}, "nothing else"),
        ("mean", {"output_config": OutputConfig(return_context_logits=True)}, "nothing else"),
        ("mean", {"num_return_sequences": 2}, "one vector"),
        ("mean", {"sampling_config": SamplingConfig(2)}, "one vector"),
    ],
)
def test_what_is_no_vector_is_refused(
    pooling: str, settings: dict[str, Any], text: str, decoder_folder: MakeFolder
) -> None:
    config = _config(max_beam_width=2)
    with Executor(decoder_folder("llama"), ModelType.DECODER_ONLY, config) as executor:
        (response,) = executor.await_responses(executor.enqueue_request(_request(pooling, [5, 6], **settings)), LIMIT)
        assert text in response.error_msg


def test_a_runner_without_hidden_states_refuses_it() -> None:
    with Executor.from_runner(FakeRunner(), ExecutorConfig()) as executor:
        (response,) = executor.await_responses(executor.enqueue_request(_request("mean", [5, 6])), LIMIT)
        assert "'last_hidden' among ExecutorConfig.additional_model_outputs" in response.error_msg
