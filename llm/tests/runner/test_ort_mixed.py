"""OrtMixedRunner gives what OrtGqaRunner gives, in fewer runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm import Executor, ExecutorConfig, ModelType, Request, RunnerOptions
from repoagent_llm.builder import Form, Precision
from repoagent_llm.runner.ort import OrtRunner
from repoagent_llm.runner.ort_mixed import OrtMixedRunner
from repoagent_llm.runner.protocol import Embeddings, Logits, Segment, Seq
from repoagent_llm.types.executor_errors import CheckError

from repoagent.errors import InvalidArgumentError

WIDTH = 48  # no row grows beyond it before it is cut


def _plan(source: np.random.Generator, lengths: list[int]) -> list[tuple[int, list[int], Logits]]:
    """(row, tokens, logits) of one step: most rows take a token, some a piece, some sit out."""
    plan = []
    for row in source.permutation(len(lengths)).tolist():
        size = int(source.choice([0, 1, 1, 1, 2, 7, 12]))
        if size:
            wanted = [Logits.LAST, Logits.ALL, Logits.NONE][int(source.integers(3))]
            plan.append((row, source.integers(3, 90, size).tolist(), wanted))
    return plan


@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        ("llama", Precision.FP32),
        ("llama", Precision.INT4),
        ("qwen2", Precision.INT8),
        ("llama", Precision.FP16),
        ("mistral", Precision.FP32),
        ("qwen3", Precision.FP32),
        ("gpt2", Precision.FP32),
    ],
)
def test_any_mixture_of_rows_and_pieces_gives_what_separate_runs_give(
    kind: str, precision: Precision, open_runner: Callable[..., OrtRunner]
) -> None:
    plain, mixed = (open_runner(kind, Form.GQA, precision, mixed=mixed) for mixed in (False, True))
    source = np.random.default_rng(11)
    seqs = [[runner.open() for _ in range(4)] for runner in (plain, mixed)]
    lengths = [0] * 4
    for _ in range(40):
        for row in range(4):
            if lengths[row] > WIDTH:
                lengths[row] = int(source.integers(0, 3)) * 5  # now and then a prompt begins anew
                for runner, ours in zip((plain, mixed), seqs, strict=True):
                    seq = ours[row]
                    assert seq is not None
                    runner.truncate(seq, lengths[row])
        plan = _plan(source, lengths)
        if not plan:
            continue
        found = []
        for runner, ours in zip((plain, mixed), seqs, strict=True):
            segments = [Segment(_some(ours[row]), np.array(tokens, np.int32), logits) for row, tokens, logits in plan]
            result = runner.step(segments)
            found.append([result.logits[rows].copy() for rows in result.rows])
        for row, tokens, _ in plan:
            lengths[row] += len(tokens)
        for expected, got in zip(*found, strict=True):
            np.testing.assert_allclose(got, expected, atol=0.05 if precision is Precision.FP16 else 2e-5)
    for row in range(4):
        kept = [
            runner.export_kv(_some(ours[row]), 0, lengths[row])
            for runner, ours in zip((plain, mixed), seqs, strict=True)
        ]
        np.testing.assert_allclose(kept[1], kept[0], atol=0.05 if precision is Precision.FP16 else 2e-5)


def _some(seq: Seq | None) -> Seq:
    assert seq is not None
    return seq


def test_a_piece_and_the_rows_that_go_on_are_one_run(
    open_runner: Callable[..., OrtRunner], counted_runs: Callable[[OrtRunner], Any]
) -> None:
    runner = open_runner(mixed=True)
    seqs = [_some(runner.open()) for _ in range(3)]
    runner.step([Segment(seq, np.arange(3, 9, dtype=np.int32)) for seq in seqs[:2]])
    counted = counted_runs(runner)
    one = np.array([5], np.int32)
    runner.step([Segment(seqs[0], one), Segment(seqs[1], one), Segment(seqs[2], np.arange(3, 12, dtype=np.int32))])
    assert counted.runs == 1
    assert [runner.length(seq) for seq in seqs] == [7, 7, 9]


def test_rows_stand_in_for_embeddings_of_padded_pieces(open_runner: Callable[..., OrtRunner]) -> None:
    found = []
    for mixed in (False, True):
        runner = open_runner(mixed=mixed)
        size = runner.info.hidden_size
        assert size is not None
        seqs = [_some(runner.open()) for _ in range(3)]
        runner.step([Segment(seqs[0], np.array([3, 4], np.int32))])
        rows = np.random.default_rng(2).standard_normal((2, size)).astype(np.float32)
        pieces = [
            Segment(seq, np.arange(3, 3 + count, dtype=np.int32), embeddings=Embeddings(np.array([1, 3]), rows))
            for seq, count in zip(seqs[1:], (6, 5), strict=True)
        ]
        result = runner.step([Segment(seqs[0], np.array([5], np.int32)), *pieces])
        found.append([result.logits[rows].copy() for rows in result.rows])
    for expected, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5)


def test_adapters_and_additional_outputs_are_refused(decoder_folder: Callable[..., Path]) -> None:
    for options in (RunnerOptions(lora=True), RunnerOptions(extra_outputs=("last_hidden",))):
        with pytest.raises(CheckError, match="mixed goes with neither LoRA"):
            OrtMixedRunner(decoder_folder("llama"), options)
    with pytest.raises(InvalidArgumentError, match="takes LoRA adapters cannot mix"):
        OrtMixedRunner(decoder_folder("llama", Form.GQA, Precision.FP32, True), RunnerOptions())


def test_an_executor_gives_the_same_texts_with_mixed_runs(decoder_folder: Callable[..., Path]) -> None:
    source = np.random.default_rng(4)
    prompts = [source.integers(3, 90, size).tolist() for size in (5, 30, 12, 24, 9)]
    texts = []
    for mixed in (False, True):
        config = ExecutorConfig(max_batch_size=3, enable_chunked_context=True)
        config.max_num_tokens_generating = 8
        config.runner_options = RunnerOptions(threads=1, spinning=False, max_seq_len=64, mixed=mixed)
        with Executor(decoder_folder("llama"), ModelType.DECODER_ONLY, config) as executor:
            ids = executor.enqueue_requests([Request(prompt, 10 + 3 * i) for i, prompt in enumerate(prompts)])
            texts.append([answers[-1].result.output_token_ids for answers in executor.await_responses(ids)])
    assert texts[0] == texts[1]
