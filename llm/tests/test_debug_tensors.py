"""Debug tensors: what went into each iteration and what came out."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from repoagent_llm import (
    DebugConfig,
    DebugTensorsPerIteration,
    Executor,
    ExecutorConfig,
    ModelType,
    OutputConfig,
    Request,
    RunnerOptions,
)

from llm.tests.fake_runner import FakeRunner

LIMIT = timedelta(seconds=30)
Start = Callable[..., Executor]


@pytest.fixture
def start(decoder_folder: Callable[..., Path]) -> Iterator[Start]:
    """``start(debug_config)``: an executor over a small folder."""
    started: list[Executor] = []

    def make(debug: DebugConfig) -> Executor:
        config = ExecutorConfig(debug_config=debug)
        config.runner_options = RunnerOptions(threads=1, spinning=False)
        started.append(Executor(decoder_folder("llama"), ModelType.DECODER_ONLY, config))
        return started[-1]

    yield make
    for executor in started:
        executor.shutdown()


def _run(executor: Executor, request: Request) -> list[DebugTensorsPerIteration]:
    executor.await_responses(executor.enqueue_request(request), LIMIT)
    return executor.get_latest_debug_tensors()


def test_a_named_tensor_of_every_iteration(start: Start) -> None:
    """The request of TensorRT-LLM's own test: four tokens, five more, ``sequence_length``."""
    executor = start(DebugConfig(debug_tensor_names=["sequence_length"], debug_tensors_max_iterations=5))
    found = _run(executor, Request([1, 2, 3, 4], 5))
    assert [item.iter for item in found] == [0, 1, 2, 3, 4]
    for number, item in enumerate(found):
        assert set(item.debug_tensors) == {"request_ids", "sequence_length"}
        assert item.debug_tensors["request_ids"].tolist() == [1]
        assert item.debug_tensors["sequence_length"].tolist() == [4 + number]
    assert executor.get_latest_debug_tensors() == []


def test_inputs_outputs_and_tensors_of_the_graph(start: Start) -> None:
    debug = DebugConfig(True, True, ["last_hidden"], 10)
    executor = start(debug)
    request = Request([5, 9, 17], 3, output_config=OutputConfig(return_generation_logits=True))
    (response,) = executor.await_responses(executor.enqueue_request(request), LIMIT)
    found = executor.get_latest_debug_tensors()
    tokens = response.result.output_token_ids[0]
    assert [item.debug_tensors["input_ids"].tolist() for item in found] == [[5, 9, 17], [tokens[3]], [tokens[4]]]
    logits = np.concatenate([item.debug_tensors["logits"] for item in found])
    assert np.array_equal(logits, response.result.generation_logits[0])
    assert [item.debug_tensors["last_hidden"].shape for item in found] == [(3, 64), (1, 64), (1, 64)]


def test_old_iterations_make_room_and_the_output_stays_the_same(start: Start) -> None:
    plain = start(DebugConfig())
    watched = start(DebugConfig(True, True, debug_tensors_max_iterations=2))
    texts = []
    for executor in (plain, watched):
        (response,) = executor.await_responses(executor.enqueue_request(Request([5, 9, 17], 6)), LIMIT)
        texts.append(response.result.output_token_ids)
    assert texts[0] == texts[1]
    assert plain.get_latest_debug_tensors() == []
    assert [item.iter for item in watched.get_latest_debug_tensors()] == [4, 5]


def test_watched_requests_keep_their_own_tokens_when_rows_change_places(start: Start) -> None:
    """A priority and a request that ends early: the order of requests is not that of their rows."""
    lengths, priorities = (2, 9, 9, 9), (0.5, 0.5, 0.5, 0.9)
    texts = []
    for executor in (start(DebugConfig()), start(DebugConfig(True, True, debug_tensors_max_iterations=20))):
        requests = [
            Request([5 + number, 7], length, priority=priority)
            for number, (length, priority) in enumerate(zip(lengths, priorities, strict=True))
        ]
        answers = executor.await_responses(executor.enqueue_requests(requests), LIMIT)
        texts.append([answer[0].result.output_token_ids for answer in answers])
    assert texts[0] == texts[1]


def test_a_tensor_that_a_runner_does_not_have_is_named() -> None:
    config = ExecutorConfig(debug_config=DebugConfig(debug_tensor_names=["nowhere"], debug_tensors_max_iterations=1))
    with pytest.raises(RuntimeError, match=r"'nowhere' is not an output of the runner \(history\)"):
        Executor.from_runner(FakeRunner(), config)
