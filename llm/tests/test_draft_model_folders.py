"""Draft models from decoder folders: real caches, adapters, pickled configurations."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from repoagent_llm import (
    DraftTargetDecodingConfig,
    Executor,
    ExecutorConfig,
    ModelType,
    OutputConfig,
    Request,
    Result,
    RunnerOptions,
    SamplingConfig,
)
from repoagent_llm.builder import Form, build
from repoagent_llm.runner.ort import OrtRunner

from examples.executor.synthetic import synthetic_checkpoint
from llm.tests.drafting_kit import LIMIT, finish
from llm.tests.lora_sample import SampleAdapter
from llm.tests.reference import Reference

OPTIONS = RunnerOptions(threads=1, spinning=False, max_sequences=4, max_seq_len=100, lora=True)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the same shape with other weights."""
    place = tmp_path_factory.mktemp("stranger")
    return build(synthetic_checkpoint(place / "checkpoint", seed=77, num_hidden_layers=1), place / "decoder")


@pytest.fixture
def requests(reference: Callable[[str], Reference]) -> list[Request]:
    """Greedy and drawn, penalised, adapted, streamed."""
    adapter = SampleAdapter(reference("llama"), 3).config(5)
    output = OutputConfig(return_perf_metrics=True)
    options: list[dict[str, object]] = [
        {},
        {"streaming": True, "stop_words": [[11], [60, 2]]},
        {"sampling_config": SamplingConfig(repetition_penalty=1.4)},
        {"lora_config": adapter},
    ]
    return [
        Request([5, 9, 17 + number], 40, output_config=output, **made)  # type: ignore[arg-type]
        for number, made in enumerate(options)
    ]


def _answers(folder: Path, requests: list[Request], drafter: Path | None, together: int = 2) -> list[Result]:
    config = ExecutorConfig()
    config.runner_options = OPTIONS
    if drafter is not None:
        config.speculative_config = DraftTargetDecodingConfig(3, drafter, max_concurrency=2)
    found: list[Result] = []
    with Executor(folder, ModelType.DECODER_ONLY, pickle.loads(pickle.dumps(config))) as executor:
        for start in range(0, len(requests), together):
            ids = executor.enqueue_requests(requests[start : start + together])
            found += [finish(executor, request_id) for request_id in ids]
    return found


def _rate(results: list[Result]) -> list[float]:
    metrics = [result.request_perf_metrics for result in results]
    return [item.speculative_decoding.acceptance_rate for item in metrics if item is not None]


@pytest.mark.parametrize("form", list(Form))
def test_texts_are_those_of_the_model_alone(
    form: Form, decoder_folder: Callable[..., Path], stranger: Path, requests: list[Request]
) -> None:
    if form is Form.PAGED:
        pytest.importorskip("openvino")
    folder = decoder_folder("llama", form)
    alone = [result.output_token_ids for result in _answers(folder, requests, None)]
    itself, other = _answers(folder, requests, folder), _answers(folder, requests, stranger)
    assert [result.output_token_ids for result in itself] == alone
    assert [result.output_token_ids for result in other] == alone
    assert _rate(itself)[:3] == pytest.approx([1.0] * 3)
    assert max(_rate(other)) < 0.5


@pytest.mark.slow
def test_drawn_texts_are_as_good_as_the_guesses(decoder_folder: Callable[..., Path], stranger: Path) -> None:
    output = OutputConfig(return_perf_metrics=True)
    sampling = [SamplingConfig(top_p=0.9, seed=seed) for seed in range(4)]
    requests = [Request([5, 9], 40, sampling_config=item, output_config=output) for item in sampling]
    alone = [result.output_token_ids for result in _answers(decoder_folder(), requests, None, together=1)]
    itself = _answers(decoder_folder(), requests, decoder_folder(), together=1)
    assert [result.output_token_ids for result in itself] == alone
    assert min(_rate(itself)) > 0.97
    other = _answers(decoder_folder(), requests, stranger)
    assert [result.output_token_ids for result in other] == alone
    assert max(_rate(other)) < 0.7
    crowded = _answers(decoder_folder(), requests, stranger, together=4)
    assert [result.output_token_ids for result in crowded] == alone


def test_the_drafters_memory_goes_with_the_executor(open_runner: Callable[..., OrtRunner]) -> None:
    config = ExecutorConfig()
    config.speculative_config = DraftTargetDecodingConfig(3)
    drafter = open_runner("llama")
    with Executor.from_runner(open_runner("llama"), config, drafter) as executor:
        executor.await_responses(executor.enqueue_request(Request([5, 9], 30)), LIMIT)
        assert drafter._slab.used == 0
    assert drafter._session is None
