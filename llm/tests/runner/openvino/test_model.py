"""Decoders on OpenVINO: what is exact, what is rounded, and what is refused. The contract is in test_contract.py."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from repoagent_llm import (
    CapacitySchedulerPolicy,
    Executor,
    ExecutorConfig,
    KvCacheConfig,
    ModelType,
    OutputConfig,
    Request,
    RunnerOptions,
    SamplingConfig,
    SchedulerConfig,
)
from repoagent_llm.builder import Form, Precision, build
from repoagent_llm.builder.products import dequantize, quantize, quantize_outputs
from repoagent_llm.builder.safetensors import Checkpoint, write_safetensors
from repoagent_llm.runner.decoder_spec import parse_spec, read_spec
from repoagent_llm.runner.openvino.model import OpenVinoModel, open_paged
from repoagent_llm.runner.openvino.operator import core
from repoagent_llm.runner.paged import PagedRunner
from repoagent_llm.runner.protocol import Embeddings, Logits, Segment, Seq
from repoagent_llm.types.executor_errors import CheckError, EngineError, UnsupportedFeatureError

from examples.executor.synthetic import synthetic_checkpoint
from llm.tests.conftest import MakeFolder, need_openvino
from llm.tests.reference import Reference
from tests.extent import in_full

TEXT = np.random.default_rng(5).integers(3, 90, 60).astype(np.int32)
Open = Callable[..., PagedRunner]
Floats = npt.NDArray[np.float32]


@pytest.fixture(autouse=True)
def _needs_openvino() -> None:
    need_openvino()


def _feed(runner: PagedRunner, *pieces: npt.NDArray[np.int32], seq: Seq | None = None) -> Floats:
    """The logits of every token of pieces of one text."""
    seq = runner.open() if seq is None else seq
    assert seq is not None
    return np.concatenate([runner.step([Segment(seq, piece, Logits.ALL)]).logits.copy() for piece in pieces])


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gpt2"])
def test_logits_are_those_of_numpy_and_pieces_those_of_the_whole(
    kind: str, open_runner: Open, reference: Callable[[str], Reference]
) -> None:
    runner = open_runner(kind, Form.PAGED)
    whole = _feed(runner, TEXT)
    np.testing.assert_allclose(whole, reference(kind).logits(TEXT.tolist()), rtol=0, atol=2e-5)
    pieces = _feed(runner, TEXT[:1], TEXT[1:37], TEXT[37:38], TEXT[38:])
    np.testing.assert_allclose(pieces, whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16, Precision.INT8, Precision.INT4])
def test_a_text_does_not_depend_on_those_beside_it(precision: Precision, open_runner: Open) -> None:
    _check_independence(open_runner("llama", Form.PAGED, precision, max_sequences=16), atol=2e-5)


def _check_independence(runner: PagedRunner, *, atol: float) -> None:
    """Sixteen texts in steps that they share have the logits of each alone, in one step."""
    texts = [np.roll(TEXT, number) for number in range(16)]
    seqs = [runner.open() for _ in texts]
    found: list[list[Floats]] = [[] for _ in texts]
    for start, stop in ((0, 33), (33, 34), (34, 35)):
        result = runner.step([Segment(s, t[start:stop], Logits.ALL) for s, t in zip(seqs, texts, strict=True) if s])
        for mine, rows in zip(found, result.rows, strict=True):
            mine.append(result.logits[rows].copy())
    for seq in seqs:
        if seq is not None:
            runner.free(seq)
    for text, mine in zip(texts, found, strict=True):
        np.testing.assert_allclose(np.concatenate(mine), _feed(runner, text[:35]), rtol=0, atol=atol)
        runner.free(Seq(max(runner._sequences)))


def test_four_bits_do_not_depend_on_those_beside_them(tmp_path: Path) -> None:
    """With products so wide that the plugin rounds activations unless it must not: then logits move by 0.07."""
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512}
    checkpoint = synthetic_checkpoint(tmp_path / "checkpoint", **sizes)
    folder = build(checkpoint, tmp_path / "decoder", form=Form.PAGED, precision=Precision.INT4, block=32)
    runner = open_paged(read_spec(folder), RunnerOptions(threads=1, max_seq_len=64, max_sequences=16))
    _check_independence(runner, atol=1e-3)
    runner.close()


def test_threads_leave_the_cores_to_others(open_runner: Open) -> None:
    runner = open_runner("llama", Form.PAGED, threads=2)
    _feed(runner, TEXT, TEXT[:1])
    before = time.process_time()
    time.sleep(0.2)  # threads that wait busily would take all of it
    assert time.process_time() - before < 0.05


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one core there is nothing to be pinned to")
def test_threads_are_not_pinned(open_runner: Open) -> None:
    """Else the threads of all models would be on the same cores."""
    runner, cores, found = open_runner("llama", Form.PAGED, threads=1), os.sched_getaffinity(0), []
    worker = threading.Thread(target=lambda: _feed(runner, *np.split(TEXT, 60)))
    worker.start()
    while worker.is_alive():
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):
                found.append(os.sched_getaffinity(int(thread)))
    assert found
    assert all(one == cores for one in found)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT4, Precision.BF16])
def test_rounded_weights_give_what_their_values_give(
    precision: Precision, tmp_path: Path, checkpoint: Callable[[str], Path], open_runner: Open
) -> None:
    source, rounded = Checkpoint(checkpoint("llama")), {}
    for name in source.names():
        matrix = source.read(name)
        plain = matrix.ndim != 2 or "embed" in name
        if precision is Precision.BF16:
            matrix = matrix if matrix.ndim == 1 else _upper_halves(matrix)
        elif not plain:
            matrix = _rounded(matrix, eight=precision is Precision.INT8 or "lm_head" in name)
        rounded[name] = matrix
    (tmp_path / "config.json").write_bytes((checkpoint("llama") / "config.json").read_bytes())
    write_safetensors(tmp_path / "model.safetensors", rounded)
    exact = Reference(tmp_path)
    if exact.config["tie_word_embeddings"] and precision is not Precision.BF16:
        pytest.skip("the head of this shape is the embedding")
    found = _feed(open_runner("llama", Form.PAGED, precision), TEXT)
    np.testing.assert_allclose(found, exact.logits(TEXT.tolist()), rtol=0, atol=2e-5)


def _upper_halves(matrix: Floats) -> Floats:
    bits = matrix.view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)


def _rounded(matrix: Floats, *, eight: bool) -> Floats:
    if eight:
        levels, scales = quantize_outputs(matrix)
        return np.ascontiguousarray(levels.T.astype(np.float32) * scales[:, None])
    packed, scales = quantize(matrix, 16)
    return dequantize(packed, scales.astype(np.float16).astype(np.float32), matrix.shape[1])


@pytest.mark.parametrize(("kind", "most"), [("f16", 0.02), ("u8", 0.3)])
def test_rounded_caches_stay_close(kind: str, most: float, open_runner: Open) -> None:
    exact = _feed(open_runner("llama", Form.PAGED), TEXT)
    runner = open_runner("llama", Form.PAGED, cache_type=kind)
    assert 0 < np.abs(_feed(runner, TEXT[:33], TEXT[33:34], TEXT[34:]) - exact).max() < most
    assert runner.divisible is (kind == "f16")


def test_numbers_that_are_not_finite_harm_their_own_text_alone(open_runner: Open) -> None:
    runner = open_runner("llama", Form.PAGED, cache_tokens=64)
    expected = _feed(runner, TEXT)
    runner.free(Seq(1))
    wrong = Embeddings(np.arange(40), np.full((40, 64), np.inf, np.float32))
    seq = runner.open()
    assert seq is not None
    assert np.isnan(runner.step([Segment(seq, TEXT[:40], embeddings=wrong)]).logits).any()
    copy = runner.fork(seq)
    assert copy is not None
    runner.truncate(copy, 0)
    runner.free(seq)
    found = _feed(runner, TEXT[:10], TEXT[10:11], TEXT[11:35], seq=copy)
    np.testing.assert_allclose(found, expected[:35], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["f32", "f16", "u8"])
def test_numbers_that_are_not_finite_are_cleared_from_blocks_that_are_taken_again(kind: str, tmp_path: Path) -> None:
    """A block behind a window is read: its unwritten end, too. Kernels of f16 and u8 pass on what they find there."""
    folder = build(synthetic_checkpoint(tmp_path / "c", "mistral", sliding_window=8), tmp_path / "d", form=Form.PAGED)
    runner = open_paged(read_spec(folder), RunnerOptions(threads=1, cache_tokens=128, cache_type=kind, max_seq_len=96))
    pieces = np.split(np.resize(TEXT, 80), range(10, 80, 10))
    seq = runner.open()
    assert seq is not None
    expected = _feed(runner, *pieces, seq=seq)
    runner.free(seq)
    for array in cast(OpenVinoModel, runner._model)._pool:
        array.view(np.uint8)[:] = 0xFF  # not a number, also in the scales between the bytes of u8
    runner._written.update(range(runner.pool.total))  # every block, as if wrong texts had filled the pool
    np.testing.assert_array_equal(_feed(runner, *pieces), expected)
    runner.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_type": "bf16"}, "what is computed in f32 takes no cache of bf16"),
        ({"mixed": True}, "RunnerOptions.mixed is for ONNX Runtime"),
        ({"cache_tokens": 10**12}, r"the KV cache does not fit.*KvCacheConfig\.max_tokens"),
        ({"extra_outputs": ("nothing",)}, "has no tensor 'nothing'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str, open_runner: Open) -> None:
    with pytest.raises(CheckError, match=message):
        open_runner("llama", Form.PAGED, **options)


def test_what_was_not_tried_is_refused(decoder_folder: MakeFolder) -> None:
    spec = read_spec(decoder_folder("llama", Form.PAGED))
    for size in (12, 264):
        with pytest.raises(UnsupportedFeatureError, match=f"a head size of {size} in the paged form"):
            open_paged(replace(spec, head_size=size), RunnerOptions())


def test_a_processor_without_bfloat16_does_not_compute_in_it(open_runner: Open) -> None:
    if "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        runner = open_runner("llama", Form.PAGED, Precision.BF16, exact=False)
        assert runner.info.kv_bytes_per_token == open_runner("llama", Form.PAGED).info.kv_bytes_per_token // 2
        return
    with pytest.raises(UnsupportedFeatureError, match="this processor cannot compute in bf16"):
        open_runner("llama", Form.PAGED, Precision.BF16, exact=False)


@pytest.mark.slow
def test_a_step_is_ended_while_it_runs(tmp_path: Path) -> None:
    """A prompt of 2000 tokens, for which the model takes about a second."""
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "intermediate_size": 1024,
        "max_position_embeddings": 2048,
    }
    folder = build(synthetic_checkpoint(tmp_path / "checkpoint", **sizes), tmp_path / "decoder", form="paged")
    runner = open_paged(read_spec(folder), RunnerOptions(threads=1, max_seq_len=2048))
    seq, begun = runner.open(), threading.Event()
    assert seq is not None
    model = cast(OpenVinoModel, runner._model)
    started = model._request.start_async

    def end() -> None:
        assert begun.wait(60)
        runner.end()

    class Watched:
        """The request, which notes that it runs."""

        def __getattr__(self, name: str) -> Any:
            return getattr(request, name)

        def start_async(self) -> None:
            started()
            begun.set()

    request, model._request = model._request, Watched()
    other = threading.Thread(target=end)
    other.start()
    with pytest.raises(EngineError, match="the step was terminated"):
        runner.step([Segment(seq, np.zeros(2000, np.int32))])
    other.join()
    assert runner.length(seq) == runner.pool.busy == 0
    runner.close()


def test_folders_of_one_form_are_not_taken_for_another(decoder_folder: MakeFolder, open_runner: Open) -> None:
    folder = decoder_folder("llama", Form.PAGED)
    spec = parse_spec((folder / "genai_config.json").read_text(), b"", {})
    with pytest.raises(CheckError, match="an engine buffer cannot hold one"):
        open_paged(spec, RunnerOptions())


def test_the_executor_finds_the_runner_by_the_folder_and_sizes_its_pool(
    decoder_folder: MakeFolder, reference: Callable[[str], Reference], tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    folder = build(checkpoint("qwen3"), tmp_path / "decoder", form="paged")
    config = ExecutorConfig(kv_cache_config=KvCacheConfig(max_tokens=640))
    config.runner_options = RunnerOptions(threads=1, own_weights=True)
    with Executor(folder, ModelType.DECODER_ONLY, config) as executor:
        (folder / read_spec(folder).filename).write_bytes(b"")  # copied, as it was asked for
        assert executor._assembly.budget.total == 20
        prompt = TEXT[:20].tolist()
        ids = executor.enqueue_requests([Request(prompt, 9)])
        ((response,),) = executor.await_responses(ids)
    assert response.result.output_token_ids == [[*prompt, *reference("qwen3").greedy(prompt, 9)]]


@pytest.mark.parametrize("kind", ["f32", "f16", "u8"])
def test_blocks_that_were_written_down_give_the_same_logits_bit_for_bit(kind: str, open_runner: Open) -> None:
    runner, other = (open_runner("qwen3", Form.PAGED, cache_type=kind, max_seq_len=96) for _ in range(2))
    seq, copy = runner.open(), other.open()
    assert seq is not None
    assert copy is not None
    _feed(runner, TEXT[:40], np.roll(TEXT, 7)[:24], seq=seq)
    assert runner.identity == other.identity != open_runner("llama", Form.PAGED, cache_type=kind).identity
    for start in (0, 32):
        piece = runner.export_kv(seq, start, start + 32)
        content = runner.read_block(piece)
        assert len(content) == runner.block_bytes
        back = other.restore(content)
        other.import_kv(copy, back, 32)
        other.drop_kv(back)
        runner.drop_kv(piece)
    np.testing.assert_array_equal(_feed(other, TEXT[50:], seq=copy), _feed(runner, TEXT[50:], seq=seq))
    for one, held in ((runner, seq), (other, copy)):
        one.free(held)
        assert one.pool.free == one.pool.total


@pytest.mark.slow
def test_many_texts_in_a_small_pool_pause_and_go_on_as_if_they_were_alone(
    open_runner: Open, reference: Callable[[str], Reference]
) -> None:
    runner = open_runner("qwen3", Form.PAGED, cache_tokens=640, max_sequences=128, max_seq_len=128)
    policy = SchedulerConfig(CapacitySchedulerPolicy.MAX_UTILIZATION)
    prompts = [np.roll(TEXT, number)[: 5 + 3 * (number % 15)].tolist() for number in range(48)]
    output = OutputConfig(exclude_input_from_output=True)
    forks = SamplingConfig(top_k=4, num_return_sequences=15)
    with Executor.from_runner(runner, ExecutorConfig(scheduler_config=policy, enable_chunked_context=True)) as executor:
        ids = executor.enqueue_requests([Request(prompt, 40, output_config=output) for prompt in prompts])
        found = [responses[0].result.output_token_ids for responses in executor.await_responses(ids)]
        stats = [item.inflight_batching_stats for item in executor.get_latest_iteration_stats()]
        number = executor.enqueue_request(Request(TEXT.tolist(), 3, sampling_config=forks, output_config=output))
        texts: list[Any] = []
        while len(texts) < 15:
            texts += [response.result.output_token_ids[0] for response in executor.await_responses(number)]
    assert sum(item.num_paused_requests for item in stats if item is not None) > 10
    for place in (0, 1, 17, 46):
        assert found[place] == [reference("qwen3").greedy(prompts[place], 40)]
    assert all(len(text) == 3 for text in texts)
    assert len({tuple(text) for text in texts}) > 5
    assert runner.pool.busy == 0


@pytest.mark.slow
@pytest.mark.timeout(in_full(3600, otherwise=300))
def test_long_texts_in_a_pool_and_forks_of_a_long_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In full: 128 texts of up to 8192 tokens where 43,000 fit, as of a model of 125 M in 1 GB; 128 forks."""
    count, longest, room = in_full((128, 8192, 43_000), otherwise=(16, 512, 1500))
    chance = np.random.default_rng(3)
    prompts = [chance.integers(3, 90, int(chance.integers(20, longest - 80))).tolist() for _ in range(count)]
    requests = [Request(prompt, 80, output_config=OutputConfig(exclude_input_from_output=True)) for prompt in prompts]
    alone = in_full(6, otherwise=16)

    def texts(executor: Executor, asked: list[Request]) -> list[Any]:
        found = executor.await_responses(executor.enqueue_requests(asked))
        return [responses[0].result.output_token_ids for responses in found]

    checkpoint = synthetic_checkpoint(tmp_path / "checkpoint", vocab_size=96, max_position_embeddings=2 * longest)
    spec = read_spec(build(checkpoint, tmp_path / "decoder", form="paged"))

    def runner(tokens: int) -> PagedRunner:
        options = RunnerOptions(threads=1, cache_tokens=tokens, max_sequences=128, max_seq_len=longest + 64)
        return open_paged(spec, options)

    with Executor.from_runner(runner(longest + 64), ExecutorConfig(enable_chunked_context=True)) as executor:
        expected = [texts(executor, [request])[0] for request in requests[:alone]]
    policy = SchedulerConfig(CapacitySchedulerPolicy.MAX_UTILIZATION)
    pages = runner(room)
    most, step = [0], pages.step

    def watched(segments: Any) -> Any:
        result = step(segments)
        most.append(max(most.pop(), pages.pool.busy))
        return result

    monkeypatch.setattr(pages, "step", watched)
    config = ExecutorConfig(scheduler_config=policy, enable_chunked_context=True, iter_stats_max_iterations=10**6)
    with Executor.from_runner(pages, config) as executor:
        assert texts(executor, requests)[:alone] == expected
        stats = [item.inflight_batching_stats for item in executor.get_latest_iteration_stats()]
        assert sum(item.num_paused_requests for item in stats if item is not None) > 0
        assert pages.pool.busy == 0
        most[:] = [0]
        forks = SamplingConfig(top_k=4, num_return_sequences=count)
        prompt = chance.integers(3, 90, longest).tolist()
        number = executor.enqueue_request(Request(prompt, 16, sampling_config=forks))
        ended: list[Any] = []
        while len(ended) < count:
            ended += executor.await_responses(number)
        assert not any(response.has_error() for response in ended)
    assert most == [longest // 32 + count]
    assert pages.pool.busy == 0
