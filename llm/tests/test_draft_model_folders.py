"""Draft models from decoder folders: real caches, adapters, pickled configurations."""

import logging
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm import (
    DecodingConfig,
    DraftTargetDecodingConfig,
    Executor,
    ExecutorConfig,
    KvCacheConfig,
    LookaheadDecodingConfig,
    ModelType,
    OutputConfig,
    Request,
    Result,
    RunnerOptions,
    SamplingConfig,
)
from repoagent_llm.builder import Form, build
from repoagent_llm.runner.ort import OrtRunner
from repoagent_llm.runner.protocol import Segment, Seq
from repoagent_llm.types.executor_errors import CheckError

from examples.executor.synthetic import synthetic_checkpoint
from llm.tests.drafting_kit import LIMIT, Pair, drafting, finish, plain
from llm.tests.fake_runner import FakeRunner, hashed_logits
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


def _answers(
    folder: Path, requests: list[Request], drafter: Path | None, together: int = 2, crowd: int | None = 2
) -> list[Result]:
    config = ExecutorConfig()
    config.runner_options = OPTIONS
    if drafter is not None:
        config.speculative_config = DraftTargetDecodingConfig(3, drafter, max_concurrency=crowd)
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
    if form is Form.PAGED:  # all four at once, each with guesses as far as they pay
        for drafter in (folder, stranger):
            crowded = _answers(folder, requests, drafter, together=4, crowd=None)
            assert [result.output_token_ids for result in crowded] == alone
            assert all(rate > 0.99 for rate in _rate(crowded)[:3]) == (drafter == folder)


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


# A draft model that cannot go on, or cannot be: nothing but its drafts is lost.


class Broken(FakeRunner):
    """A runner that fails in one of its methods, or in each."""

    def __init__(self, *broken: str) -> None:
        super().__init__(vocab_size=64)
        self._broken = broken

    def _fail(self, name: str) -> None:
        if name in self._broken:
            raise RuntimeError(f"{name} is broken")

    def open(self) -> Seq | None:
        """See ModelRunner."""
        return None if "open" in self._broken else super().open()

    def free(self, seq: Seq) -> None:
        """See ModelRunner."""
        self._fail("free")
        super().free(seq)

    def truncate(self, seq: Seq, length: int) -> None:
        """See ModelRunner."""
        self._fail("truncate")
        super().truncate(seq, length)

    def step(self, segments: Sequence[Segment]) -> Any:
        """See ModelRunner."""
        self._fail("step")
        return super().step(segments)


@pytest.mark.parametrize("broken", [("open",), ("step",), ("truncate",), ("free",), ("step", "free")])
def test_a_draft_model_that_fails_fails_no_request(broken: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    requests = [Request([5 + number], 20, end_id=99) for number in range(2)]
    model = FakeRunner(vocab_size=64)
    with (
        caplog.at_level(logging.WARNING),
        Executor.from_runner(model, drafting(), Broken(*broken)) as executor,
    ):
        for _ in range(2):
            answers = executor.await_responses(executor.enqueue_requests(requests), LIMIT)
            texts = [response.result.output_token_ids for (response,) in answers]
            assert texts == [result.output_token_ids for result in plain(*requests)]
    assert sum("draft model failed" in line for line in caplog.messages) == 1


def test_a_draft_model_with_less_room_stops_earlier(caplog: pytest.LogCaptureFixture) -> None:
    request = Request([1, 2], 60)
    model, drafter = FakeRunner(vocab_size=64), FakeRunner(vocab_size=64, max_seq_len=28)
    with Executor.from_runner(model, drafting(), drafter) as executor:
        (response,) = executor.await_responses(executor.enqueue_request(request), LIMIT)
        stats = [item.specdec_stats for item in executor.get_latest_iteration_stats() if item.specdec_stats]
    assert response.result.output_token_ids == plain(request)[0].output_token_ids
    # Guesses behind 3, 7, 11 ... 27 tokens; there it can read one more, and so guess two. The rest is said one by one.
    assert [item.num_draft_tokens for item in stats] == [item.num_accepted_tokens for item in stats] == [3] * 6 + [2]
    assert caplog.messages == []


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("sampling", [{}, {"top_k": 5}, {"top_p": 0.9}])
def test_where_it_says_nothing_nothing_is_guessed(
    sampling: dict[str, Any], value: float, caplog: pytest.LogCaptureFixture
) -> None:
    def sometimes(history: list[int]) -> Any:
        return hashed_logits(64)(history) if len(history) % 3 else np.full(64, value, np.float32)

    request = Request([1, 2], 30, sampling_config=SamplingConfig(**sampling))
    with Pair(drafting(), sometimes) as pair:
        (result,) = pair.ask(request)
    assert result.output_token_ids == plain(request)[0].output_token_ids
    assert len(pair.steps.seen) < 24
    assert caplog.messages == []


def test_what_cannot_be_is_refused() -> None:
    text = "the draft model has a vocabulary of 32 tokens, the model that it drafts for one of 64"
    with pytest.raises(CheckError, match=text):
        Executor.from_runner(FakeRunner(vocab_size=64), drafting(), FakeRunner(vocab_size=32))
    lookahead = DecodingConfig(lookahead_decoding_config=LookaheadDecodingConfig(4, 4, 4))
    with pytest.raises(CheckError, match="exclude each other"):
        Executor.from_runner(FakeRunner(), drafting(decoding_config=lookahead), FakeRunner())
    with pytest.raises(CheckError, match="speculative_model_dir must name"):
        Executor.from_runner(FakeRunner(), drafting())
    with pytest.raises(CheckError, match=r"needs ExecutorConfig\.speculative_config"):
        Executor.from_runner(FakeRunner(), ExecutorConfig(), FakeRunner())
    with pytest.raises(CheckError, match="max_draft_len must be an integer > 0, not 0"):
        DraftTargetDecodingConfig(0)
    config = ExecutorConfig()
    config.speculative_config = 3
    with pytest.raises(TypeError, match="must be a DraftTargetDecodingConfig, not int"):
        Executor.from_runner(FakeRunner(), config)


@pytest.mark.parametrize(("most", "tokens", "rows"), [(None, 400, 4), (None, 250, 2), (None, 40, 1), (3, 40, 3)])
def test_the_cache_of_a_draft_model_on_pages_has_what_it_drafts_for(
    most: int | None, tokens: int, rows: int, decoder_folder: Callable[..., Path]
) -> None:
    pytest.importorskip("openvino")
    folder = decoder_folder("llama", Form.PAGED)
    config = ExecutorConfig(kv_cache_config=KvCacheConfig(max_tokens=tokens))
    config.runner_options = RunnerOptions(threads=1, max_seq_len=100)
    config.speculative_config = DraftTargetDecodingConfig(3, folder, max_concurrency=most)
    with Executor(folder, ModelType.DECODER_ONLY, config) as executor:
        model = executor._assembly.engine._drafting._model
        assert model is not None
        assert (model.crowd, model._runner.info.max_sequences) == (rows, rows)


def test_folders_of_other_vocabularies_are_refused(decoder_folder: Callable[..., Path], tmp_path: Path) -> None:
    other = build(synthetic_checkpoint(tmp_path / "checkpoint", vocab_size=80), tmp_path / "decoder")
    config = ExecutorConfig()
    config.speculative_config = DraftTargetDecodingConfig(3, other)
    with pytest.raises(CheckError, match=f"the draft model {other} has a vocabulary of 80 tokens, .* one of 96"):
        Executor(decoder_folder(), ModelType.DECODER_ONLY, config)
